"""``Run``, a handle of a running stream, and ``RunSubscriber``, a subscriber that has a ``Run``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rstreams_fast._checks import check_timeout
from rstreams_fast.api import Subscription
from rstreams_fast.core import Latch
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.errors import check_error, report_dropped
from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.parking import acquire, new_event, refuse_in_loop
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.sink_subscriber import (
    Failure,
    SerialUpstream,
    check_process,
    failure_of,
    not_a_cancellation,
    raise_failure,
)

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Run", "RunSubscriber"]

T = TypeVar("T")


class Run:
    """A handle with which a caller cancels a stream, waits for its end, or awaits its end.

    Any thread may call any method. Tasks on several event loops may await the same ``Run``.
    ``await run`` raises the same exceptions as ``run.result()``. If the awaiting task is cancelled,
    the stream is cancelled.
    """

    __slots__ = (
        "__weakref__",
        "_claimed",
        "_done",
        "_end_callbacks",
        "_failure",
        "_lock",
        "_pid",
        "_seen",
        "_subscriber",
    )

    __reduce__ = not_picklable

    def __init__(self, subscriber: RunSubscriber[Any]) -> None:
        # Reentrant: while a thread holds this lock, the garbage collector may run a finalizer on
        # the thread, and the finalizer may call a method of this object.
        self._lock = threading.RLock()
        self._subscriber: RunSubscriber[Any] | None = subscriber
        self._claimed = Latch()  # the first call of its ``win`` decides how the ``Run`` ends
        self._done = False
        self._seen = False  # whether a caller, or the user's ``on_error``, has got the failure
        self._failure: Failure | None = None
        self._end_callbacks: list[Callable[[], object]] = []
        self._pid = process_id()

    @property
    def done(self) -> bool:
        """Whether the stream has ended: it is complete, has failed, or was cancelled."""
        return self._done

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the stream's boundaries (such as ``publish_on``).

        See ``metrics_of``. After the end of the stream the tuple is empty.
        """
        subscriber = self._subscriber
        return () if subscriber is None else subscriber.upstream.metrics()

    def cancel(self) -> None:
        """Cancel the stream. The call never blocks, and has no effect after the stream has ended.

        A running call of ``on_next`` is not interrupted. ``on_next`` is not called again.
        """
        subscriber = self._subscriber
        if subscriber is not None and self.claim():
            subscriber.drop_references()
            try:
                subscriber.upstream.cancel()
            finally:
                # Wake the waiting threads, even if upstream.cancel() raises a KeyboardInterrupt.
                # This ``Run`` ends with a CancelledError. Set _seen, so that __del__ does not
                # report this error: the user knows about it, because the user has called cancel().
                self._seen = True
                self.settle(CancelledError("the stream was cancelled"))

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end of the stream, at most ``timeout`` seconds.

        After a time-out or Ctrl-C the stream goes on, until ``cancel`` is called.

        A function that the stream calls must not wait for the end of the stream: the stream cannot
        end before the function returns. Without a ``timeout``, ``result`` raises a ``RuntimeError``
        in the functions ``on_next``, ``on_error`` and ``on_complete``. In a function of a stage,
        such as ``map``, ``result`` may wait for ever.

        Args:
            timeout: The longest time to wait, in seconds. Default: no limit.

        Raises:
            Exception: The stream's error, or the exception of ``on_next`` or ``on_complete``, not
                wrapped.
            concurrent.futures.CancelledError: ``cancel`` was called.
            TimeoutError: The stream has not ended within ``timeout`` seconds.
            RuntimeError: An event loop runs in this thread. Use ``await run`` instead.
        """
        timeout = check_timeout(timeout)
        if not self._done:
            refuse_in_loop("result()", "await the Run instead")
            check_process(self._pid)
            if timeout is None:
                self._refuse_within()
            self._park(timeout)
        self._seen = True
        raise_failure(self._failure)

    def __await__(self) -> Generator[Any, None, None]:
        """Await the end of the stream. Raises the same exceptions as ``result``.

        If the awaiting task is cancelled, the stream is cancelled.
        """
        return self._wait().__await__()

    def _refuse_within(self) -> None:
        """Raise a ``RuntimeError`` if a function that this stream is calling has called ``result``.

        The stream cannot end before the function returns, so ``result`` would wait for ever.
        """
        subscriber = self._subscriber
        frame: FrameType | None = sys._getframe()
        try:
            while frame is not None and subscriber is not None:
                if subscriber.is_called_by(frame):
                    raise RuntimeError(
                        "result() would wait for ever: it was called from within a function of the "
                        "very stream, which cannot end before that function returns"
                    )
                frame = frame.f_back
        finally:
            # An error's traceback keeps this frame's variables alive, so delete them (§3.13).
            del subscriber, frame

    def _park(self, timeout: float | None) -> None:
        event = new_event()
        if self._add_callback(event.release):
            try:
                if not acquire(event, timeout):
                    raise TimeoutError(f"the stream has not ended within {timeout} seconds")
            finally:
                self._remove_callback(event.release)

    async def _wait(self) -> None:
        import asyncio

        if not self._done:
            check_process(self._pid)
            bell = Bell()
            if self._add_callback(bell):
                try:
                    await bell.future
                except asyncio.CancelledError:
                    self.cancel()
                    raise
                finally:
                    self._remove_callback(bell)
        self._seen = True
        raise_failure(self._failure)

    def _add_callback(self, callback: Callable[[], object]) -> bool:
        """Have ``callback`` called when the stream ends. Return false if it has ended already."""
        with self._lock:
            if not self._done:
                self._end_callbacks.append(callback)
                return True
        return False

    def _remove_callback(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._end_callbacks:
                self._end_callbacks.remove(callback)

    # -- methods that the subscriber calls ---------------------------------------------------------

    def claim(self) -> bool:
        """Return true to the first caller only, which must then call ``settle``.

        So only one of several events, such as an error and a ``cancel``, ends the ``Run``.
        """
        return self._claimed.win()

    def settle(self, error: BaseException | None, seen: bool = False) -> None:
        """Record how the stream has ended, and wake the threads and tasks that wait for its end.

        ``error`` is ``None`` if the stream is complete. An asyncio ``CancelledError`` is replaced,
        because nobody has cancelled the caller of ``result``. ``seen`` says whether a function of
        the user has received the error. If nobody receives it, ``__del__`` reports it.
        """
        if error is not None:
            error = not_a_cancellation(error, "the stream")
        with self._lock:
            self._failure = None if error is None else failure_of(error)
            self._seen = self._seen or seen
            self._done = True
            self._subscriber = None
            callbacks, self._end_callbacks = self._end_callbacks, []
        for callback in callbacks:
            callback()

    def has_failed_with(self, error: BaseException) -> bool:
        """Return whether ``error`` is the stream's error, or both have the same ``__cause__``."""
        known = None if self._failure is None else self._failure[0]
        cause = error.__cause__
        same_cause = known is not None and cause is not None and known.__cause__ is cause
        return known is error or same_cause

    def __del__(self) -> None:
        failure = self._failure
        if failure is None or self._seen or not isinstance(failure[0], Exception):
            return
        # ``call_from_finalizer`` is None if Python has cleared the globals at interpreter exit.
        if call_from_finalizer is None:
            return
        what = "a stream failed, and nobody looked at the result of its Run"
        call_from_finalizer(report_dropped, failure[0], what)

    def __repr__(self) -> str:
        if not self._done:
            return "<Run going on>"
        return "<Run complete>" if self._failure is None else f"<Run failed: {self._failure[0]!r}>"


#: The code objects of the two methods of ``Drain`` (the loop that delivers elements) that call C
#: code, which then calls the user's function. C code has no frame on the stack. So ``is_called_by``
#: looks for the frames of these two methods, to find out whether the stream is calling a function.
_DRAINING: Final = (Drain._burst_on.__code__, Drain._flush.__code__)


class RunSubscriber(Generic[T]):
    """A base class of subscribers. Its attribute ``run`` is a ``Run``, the handle of the stream.

    With the handle a caller waits for the end of the stream, or cancels the stream. ``demand`` is
    the number of elements in the first request.
    """

    __slots__ = ("__weakref__", "_demand", "run", "upstream")

    __reduce__ = not_picklable

    def __init__(self, demand: int) -> None:
        self.upstream = SerialUpstream()
        self._demand = demand
        self.run = Run(self)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Accept the first subscription, and request elements (§2.1). Cancel any other (§2.5).

        Args:
            subscription: The subscription to upstream.
        """
        if self.upstream.attach(subscription):
            self.ask(self._demand)

    def on_next(self, element: T, /) -> None:
        raise NotImplementedError

    def on_error(self, error: BaseException, /) -> None:
        """End ``run``, the stream's handle, with the error of upstream.

        Args:
            error: The error of upstream, an exception instance.
        """
        check_error(error)
        if self.upstream.ended() and self.run.claim():
            self.finish(error)
        else:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """End ``run``, the stream's handle, without an error, because upstream has completed."""
        if self.upstream.ended() and self.run.claim():
            self.finish(None)

    def ask(self, n: int) -> None:
        """Request ``n`` more elements from upstream. Any thread may call this."""
        try:
            self.upstream.ask(n)
        except Exception as raised:
            self.upstream.request_raised(raised, self.fail)

    def fail(self, error: BaseException) -> None:
        """Cancel upstream, and end ``run``, the stream's handle, with ``error`` (§2.6)."""
        try:
            self.upstream.cancel()
        finally:
            if self.run.claim():
                self.finish(error)
            elif isinstance(error, Exception) and not self.run.has_failed_with(error):
                report_dropped(error, "an error after the end of the stream")

    def finish(self, error: BaseException | None) -> None:
        """End ``run``, the stream's handle, with ``error``. ``None`` means that there is no error.

        Before this call, ``run.claim()`` must have returned true. ``claim`` returns true only once.
        """
        self.drop_references()
        self.run.settle(error)

    def drop_references(self) -> None:
        """Drop the references to objects of the user, and ignore later elements."""

    def is_called_by(self, frame: FrameType) -> bool:
        """Return whether ``frame`` (on the stack) belongs to code that signals to this subscriber.

        ``Run.result`` asks this for each frame, because a function that the stream calls must not
        wait for the end of the stream.
        """
        return frame.f_code in _DRAINING and frame.f_locals["self"]._subscriber is self
