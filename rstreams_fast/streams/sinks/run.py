"""``Run``, a handle of a running stream, and ``RunSubscriber``, a base class of subscribers."""

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
    is_async_cancellation,
    not_a_cancellation,
    raise_failure,
)

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Run", "RunSubscriber"]

T = TypeVar("T")


class Run:
    """A handle of a stream that is being consumed: cancel it, wait for its end, or await it.

    Any thread may call any method, and any number of event loops may await the run. ``await run``
    raises the same exceptions as ``result``. Cancelling the awaiting task cancels the stream.
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
        # The lock is reentrant: while this thread holds the lock, the garbage collector can run a
        # finalizer that calls a method of this object.
        self._lock = threading.RLock()
        self._subscriber: RunSubscriber[Any] | None = subscriber
        self._claimed = Latch()  # lets only one thread decide how the run ends
        self._done = False
        self._seen = False  # whether a caller or a function of the user has received the failure
        self._failure: Failure | None = None
        self._end_callbacks: list[Callable[[], object]] = []
        self._pid = process_id()

    @property
    def done(self) -> bool:
        """Whether the stream has ended: complete, failed or cancelled."""
        return self._done

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the stream's boundaries, as ``metrics_of`` does.

        After the end the tuple is empty.
        """
        subscriber = self._subscriber
        return () if subscriber is None else subscriber.upstream.metrics()

    def cancel(self) -> None:
        """Cancel upstream, once. The call never blocks, and has no effect after the end.

        A running call of ``on_next`` is not interrupted. ``on_next`` is not called again.
        """
        subscriber = self._subscriber
        if subscriber is not None and self.claim():
            subscriber.drop_references()
            try:
                subscriber.upstream.cancel()
            finally:
                # Wake waiting threads, even if a KeyboardInterrupt comes. With ``_seen`` nobody
                # reports the CancelledError: the caller of cancel() knows of the cancel.
                self._seen = True
                self.settle(failure_of(CancelledError("the stream was cancelled")))

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end of the stream, at most ``timeout`` seconds.

        After a time-out or Ctrl-C the stream goes on, until ``cancel`` is called. A function that
        the stream calls must not wait for the stream's end, because the stream cannot end before
        the function returns. ``on_next``, ``on_error`` and ``on_complete`` get a ``RuntimeError``
        if they wait without a ``timeout``. A function of a stage, such as ``map``, waits for ever.

        Args:
            timeout: Seconds. Default: no limit.

        Raises:
            Exception: The stream's error, or the exception of ``on_next`` or ``on_complete``, not
                wrapped.
            concurrent.futures.CancelledError: ``cancel`` was called.
            TimeoutError: The stream has not ended within ``timeout`` seconds.
            RuntimeError: Waiting would block a running event loop: await the run there.
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
        """Wait for the end without blocking the loop; raises the same exceptions as ``result``.

        Cancelling the awaiting task cancels the stream.
        """
        return self._wait().__await__()

    def _refuse_within(self) -> None:
        """Raise a ``RuntimeError`` if the caller is within a function that the stream calls."""
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
            del subscriber, frame  # a traceback would keep the subscriber alive (§3.13)

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
        failure = self._failure
        if failure is not None and is_async_cancellation(failure[0]):
            failure = failure_of(not_a_cancellation(failure[0], "the stream"))
        try:
            raise_failure(failure)
        finally:
            del failure

    def _add_callback(self, callback: Callable[[], object]) -> bool:
        """Have ``callback`` called when the run ends. Return false if the run has ended already."""
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
        """Return true to the first caller only. This caller must then end the run by ``settle``."""
        return self._claimed.win()

    def settle(self, failure: Failure | None, seen: bool = False) -> None:
        """Record the end, and wake the threads and tasks that wait for it.

        ``seen``: whether a function of the user has received the failure. If nobody receives it,
        ``__del__`` reports it.
        """
        with self._lock:
            self._failure = failure
            self._seen = self._seen or seen
            self._done = True
            self._subscriber = None
            callbacks, self._end_callbacks = self._end_callbacks, []
        for callback in callbacks:
            callback()

    def __del__(self) -> None:
        failure = self._failure
        if failure is None or self._seen or not isinstance(failure[0], Exception):
            return
        if call_from_finalizer is None:  # at interpreter exit the globals may be None already
            return
        what = "a stream failed, and nobody looked at the result of its Run"
        call_from_finalizer(report_dropped, failure[0], what)

    def __repr__(self) -> str:
        if not self._done:
            return "<Run going on>"
        return "<Run complete>" if self._failure is None else f"<Run failed: {self._failure[0]!r}>"


#: The code objects of the methods in which a drain (the loop that delivers elements) calls its
#: subscriber. If C code makes the call, the call itself has no Python frame. So ``is_called_by``
#: looks for the frames of these methods.
_DRAINING: Final = (Drain._burst_on.__code__, Drain._flush.__code__)


class RunSubscriber(Generic[T]):
    """A base class of subscribers that end their ``Run`` when the stream ends.

    ``demand`` is the number of elements in the first request.
    """

    __slots__ = ("__weakref__", "_demand", "run", "upstream")

    __reduce__ = not_picklable

    def __init__(self, demand: int) -> None:
        self.upstream = SerialUpstream()
        self._demand = demand
        self.run = Run(self)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription and cancel any other (§2.5); request elements (§2.1).

        Args:
            subscription: The subscription.
        """
        if self.upstream.attach(subscription):
            self.ask(self._demand)

    def on_next(self, element: T, /) -> None:
        raise NotImplementedError

    def on_error(self, error: BaseException, /) -> None:
        """End the run with the error of upstream.

        Args:
            error: An exception instance.
        """
        check_error(error)
        if self.upstream.ended() and self.run.claim():
            self.finish(error)
        else:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """End the run, because upstream has completed."""
        if self.upstream.ended() and self.run.claim():
            self.finish(None)

    def ask(self, n: int) -> None:
        """Request ``n`` more elements of upstream. Any thread may call this."""
        try:
            self.upstream.ask(n)
        except Exception as raised:  # upstream broke §3.16: request must not raise
            self.fail(raised)

    def fail(self, error: BaseException) -> None:
        """Cancel upstream, and end the run with ``error`` (§2.6)."""
        self.upstream.cancel()
        if self.run.claim():
            self.finish(error)
        elif isinstance(error, Exception):
            report_dropped(error, "an error after the end of the stream")

    def finish(self, error: BaseException | None) -> None:
        """End the run. Only the caller for which ``run.claim()`` returned true may call this."""
        self.drop_references()
        self.run.settle(None if error is None else failure_of(error))

    def drop_references(self) -> None:
        """Accept no more elements, and drop the references to objects of the user."""

    def is_called_by(self, frame: FrameType) -> bool:
        """Return whether ``frame`` is a call that is sending a signal to this subscriber."""
        return frame.f_code in _DRAINING and frame.f_locals["self"]._subscriber is self
