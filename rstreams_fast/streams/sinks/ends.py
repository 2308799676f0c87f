"""The ends of a stream: what subscribes, asks, and hands the outcome to a person's code.

Everything here takes any ``Publisher``. The blocking ends park until the stream has ended; a
``KeyboardInterrupt`` wakes them, cancels upstream and leaves. Inside a running event loop they
refuse, and their ``*_async`` twins take over.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, overload

from rstreams_fast._checks import (
    check_count,
    check_plain,
    check_timeout,
    describe_callable,
    refuse_coroutine,
)
from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.core import MISSING, DemandCounter, FunctionSlot, Missing
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.errors import NoneSignalError, check_error, report_dropped
from rstreams_fast.runtime.awaiting import awaited_nowhere
from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.parking import (
    acquire,
    new_event,
    refuse_in_loop,
    refuse_to_wait_for_oneself,
    signallers_here,
)
from rstreams_fast.streams.engine.boundary import FunctionSubscriber
from rstreams_fast.streams.engine.defaults import PREFETCH, replenish_at
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.engine.sink_subscriber import (
    Failure,
    SinkSubscriber,
    check_process,
    check_publisher,
    failure_of,
    is_async_cancellation,
    not_a_cancellation,
    raise_failure,
    subscribe,
)
from rstreams_fast.streams.sinks.iterate import Iteration

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "ForEach",
    "Run",
    "check_functions",
    "drive",
    "first",
    "first_async",
    "for_each",
    "last",
    "run",
    "run_async",
    "to_list",
    "to_list_async",
]

T = TypeVar("T")
D = TypeVar("D")

_HINT: Final = "; make the calls with map_async, and end with run() or run_async()"


class Run:
    """A stream that is being consumed: cancel it, wait for its end, or await it.

    Any thread may call any method, and any number of event loops may await it. ``await run`` raises
    as ``result`` does; cancelling the task that awaits cancels the stream.
    """

    __slots__ = (
        "__weakref__",
        "_claimed",
        "_done",
        "_end",
        "_failure",
        "_lock",
        "_pid",
        "_seen",
        "_waiting",
    )

    __reduce__ = not_picklable

    def __init__(self, end: _RunEnd[Any]) -> None:
        # Reentrant, for the collector may run anything anywhere.
        self._lock = threading.RLock()
        self._end: _RunEnd[Any] | None = end
        self._claimed = DemandCounter()  # terminated by the thread that decides how this ends
        self._done = False
        self._seen = False
        self._failure: Failure | None = None
        self._waiting: list[Callable[[], object]] = []
        self._pid = process_id()

    @property
    def done(self) -> bool:
        """Whether the stream has ended: complete, failed or cancelled."""
        return self._done

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the stream's boundaries while it goes on, as ``metrics_of`` gives them."""
        end = self._end
        return () if end is None else end.upstream.metrics()

    def cancel(self) -> None:
        """Cancel upstream, once. It does nothing when the stream has ended, and never blocks.

        An ``on_next`` that is running returns in its own time; no other call follows.
        """
        end = self._end
        if end is not None and self.claim():
            end.drop_references()
            try:
                end.upstream.cancel()
            finally:  # which Ctrl-C may leave, say: others wait for the end
                self._seen = True  # by who cancelled
                self.settle(failure_of(CancelledError("the stream was cancelled")))

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end of the stream, at most ``timeout`` seconds.

        After a time-out or Ctrl-C the stream goes on: cancel it. The stream's own functions must
        not wait for its end, since it cannot end before they return: ``on_next``, ``on_error`` and
        ``on_complete`` get a ``RuntimeError`` if they wait without a ``timeout``; functions of
        stages above would wait for ever.

        Args:
            timeout: Seconds. Default: no limit.

        Raises:
            Exception: The stream's error, or the exception of ``on_next`` or ``on_complete``, as
                itself.
            concurrent.futures.CancelledError: ``cancel`` was called.
            TimeoutError: The stream goes on.
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
        """Wait for the end without blocking the loop; raises as ``result`` does.

        Cancelling the task that awaits cancels the stream.
        """
        return self._wait().__await__()

    def _refuse_within(self) -> None:
        """Refuse to wait, in a function of the end, for that function."""
        end = self._end
        frame: FrameType | None = sys._getframe()
        try:
            while frame is not None and end is not None:
                if _is_within(frame, end):
                    raise RuntimeError(
                        "result() would wait for ever: it was called from within a function of the "
                        "very stream, which cannot end before that function returns"
                    )
                frame = frame.f_back
        finally:
            del end, frame  # the traceback keeps this frame

    def _park(self, timeout: float | None) -> None:
        event = new_event()
        if self._when_done(event.release):
            try:
                if not acquire(event, timeout):
                    raise TimeoutError(f"the stream has not ended within {timeout} seconds")
            finally:
                self._forget(event.release)

    async def _wait(self) -> None:
        import asyncio

        if not self._done:
            check_process(self._pid)
            bell = Bell()
            if self._when_done(bell):
                try:
                    await bell.future
                except asyncio.CancelledError:
                    self.cancel()
                    raise
                finally:
                    self._forget(bell)
        self._seen = True
        failure = self._failure
        if failure is not None and is_async_cancellation(failure[0]):
            failure = failure_of(not_a_cancellation(failure[0], "the stream"))
        try:
            raise_failure(failure)
        finally:
            del failure

    def _when_done(self, callback: Callable[[], object]) -> bool:
        with self._lock:
            if not self._done:
                self._waiting.append(callback)
                return True
        return False

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._waiting:
                self._waiting.remove(callback)

    # -- for the subscriber ----------------------------------------------------------------------

    def claim(self) -> bool:
        """Decide how this ends: true for the first caller, who then calls ``settle``."""
        return self._claimed.terminate()

    def settle(self, failure: Failure | None, seen: bool = False) -> None:
        """Make the end known to all who wait."""
        with self._lock:
            self._failure = failure
            self._seen = self._seen or seen
            self._done = True
            self._end = None
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def __del__(self) -> None:
        failure = self._failure
        if failure is None or self._seen or not isinstance(failure[0], Exception):
            return
        if call_from_finalizer is None:  # at the exit modules are empty
            return
        what = "a stream failed, and nobody looked at the result of its Run"
        call_from_finalizer(report_dropped, failure[0], what)

    def __repr__(self) -> str:
        if not self._done:
            return "<Run going on>"
        return "<Run complete>" if self._failure is None else f"<Run failed: {self._failure[0]!r}>"


class _RunEnd(SinkSubscriber, Generic[T]):
    """A subscriber whose outcome is a ``Run``."""

    __slots__ = ("run",)

    def __init__(self, demand: int) -> None:
        super().__init__(demand)
        self.run = Run(self)

    def on_error(self, error: BaseException, /) -> None:
        """End with the error of upstream.

        Args:
            error: An exception instance.
        """
        check_error(error)
        if self.upstream.ended() and self.run.claim():
            self.finish(error)
        else:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """End: upstream has completed."""
        if self.upstream.ended() and self.run.claim():
            self.finish(None)

    def fail(self, error: BaseException) -> None:
        """End from this side: upstream is cancelled (§2.6)."""
        self.upstream.cancel()
        if self.run.claim():
            self.finish(error)
        elif isinstance(error, Exception):
            report_dropped(error, "an error after the end of the stream")

    def finish(self, error: BaseException | None) -> None:
        """The stream has ended: for the one who claimed it."""
        self.drop_references()
        self.run.settle(None if error is None else failure_of(error))

    def on_next(self, element: T, /) -> None:
        raise NotImplementedError

    def drop_references(self) -> None:
        """Take no element any more, and drop what belongs to the user."""


class ForEach(FunctionSubscriber, _RunEnd[T]):
    """Functions, as a subscriber that asks for ``prefetch`` elements ahead."""

    __slots__ = ("_consumed", "_on_complete", "_on_error", "_on_next", "_over", "_replenish")

    def __init__(
        self,
        on_next: Callable[[T], object],
        on_error: Callable[[BaseException], object] | None,
        on_complete: Callable[[], object] | None,
        prefetch: int,
    ) -> None:
        super().__init__(prefetch)
        self._on_next: Callable[[T], object] | None = on_next
        self._on_error = on_error
        self._on_complete = on_complete
        self._consumed = 0
        self._over: list[None] = []  # not empty: no element is wanted any more
        # Unbounded: there is nothing to count.
        self._replenish = replenish_at(prefetch) if prefetch < UNBOUNDED else 0

    #: Whether ``on_next`` may say ``False`` for "no more".
    _false_is_enough: ClassVar[bool] = False

    def on_next(self, element: T, /) -> None:
        """Call the function with ``element``.

        Args:
            element: The element; not ``None`` (§2.13).
        """
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        on_next = self._on_next
        if on_next is None:
            self._unwanted(element)
            return
        try:
            more = on_next(element)
            if more is False or type(more) is CoroutineType:
                self._answered(on_next, more)
        except BaseException as raised:
            name = describe_callable(on_next)
            del element, on_next  # the traceback keeps this frame (§3.13)
            self._failed(name, raised)
        else:
            if self._replenish:
                self._consumed += 1
                if self._consumed == self._replenish:
                    self._consumed = 0
                    self.ask(self._replenish)

    @property
    def slot(self) -> FunctionSlot | None:
        """The function, unless what it has consumed is counted."""
        on_next = self._on_next
        if on_next is None or self._replenish:
            return None
        answered = partial(self._answered, on_next)
        failed = partial(self._failed, describe_callable(on_next))
        return FunctionSlot(on_next, self._over, answered, self._unwanted, failed)

    def _answered(self, on_next: Callable[[T], object], answer: object) -> None:
        """Look at what the function returned: ``False`` or a coroutine."""
        if answer is not False:
            refuse_coroutine("on_next", on_next, answer, _HINT)
        elif self._false_is_enough:
            self._enough()

    def _unwanted(self, _element: T) -> None:
        self.upstream.unwanted()  # §2.8

    def _failed(self, name: str, raised: BaseException) -> None:
        """Act on what the function ``name`` raised."""
        if isinstance(raised, Exception):
            self.fail(raised)
        elif is_async_cancellation(raised):
            self.fail(not_a_cancellation(raised, name))
        else:
            self.leave(raised)
            raise raised

    def _enough(self) -> None:
        """Nothing more is wanted: the end, though upstream would go on."""
        self.upstream.cancel()
        if self.run.claim():
            super().finish(None)

    def leave(self, leaving: BaseException) -> None:
        """``KeyboardInterrupt`` and its like are on their way out: end without a callback."""
        self.upstream.cancel()
        self.drop_references()
        if self.run.claim():
            self.run.settle(failure_of(leaving))

    def finish(self, error: BaseException | None) -> None:
        on_error, on_complete = self._on_error, self._on_complete
        self.drop_references()
        seen = False
        try:
            if error is None:
                if on_complete is not None:
                    on_complete()
            elif on_error is not None:
                seen = True
                on_error(error)
        except Exception as raised:
            if error is None:
                error = raised
            else:
                report_dropped(raised, "§2.13: on_error raised")
        except BaseException as leaving:
            self.run.settle(failure_of(leaving))
            raise
        self.run.settle(None if error is None else failure_of(error), seen)

    def drop_references(self) -> None:
        self._over.append(None)
        self._on_next = self._on_error = self._on_complete = None


# What these call cannot wait for the end of the stream.
_CALLING: Final = (ForEach.on_next.__code__, ForEach.finish.__code__)
_RUNNING: Final = (Drain._burst_on.__code__, Drain._flush.__code__)


def _is_within(frame: FrameType, end: _RunEnd[Any]) -> bool:
    """Whether the frame calls a function of the stream that ends at ``end``."""
    if frame.f_code in _CALLING:
        return frame.f_locals.get("self") is end
    return frame.f_code in _RUNNING and frame.f_locals["self"]._subscriber is end


class _Trusting(_RunEnd[T]):
    """For one of our publishers, which sends no ``None``: the list takes them itself."""

    __slots__ = ("on_next",)

    def __init__(self, append: Callable[[T], None]) -> None:
        super().__init__(UNBOUNDED)
        self.on_next = append  # type: ignore[method-assign]


class _First(_RunEnd[T]):
    __slots__ = ("element",)

    def __init__(self) -> None:
        super().__init__(1)
        self.element: T | Literal[Missing.MISSING] = MISSING

    def on_next(self, element: T, /) -> None:
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        if self.run.claim():
            self.element = element
            self.upstream.cancel()
            self.run.settle(None)
        else:
            self.upstream.unwanted()


def drive(publisher: Publisher[T], end: _RunEnd[T]) -> None:
    """Subscribe and wait for the end, on this thread. For ends that are this call's own."""
    outcome = end.run
    signallers = signallers_here()
    before = len(signallers)
    try:
        with awaited_nowhere():
            subscribe(publisher, end)
            if not outcome.done:
                refuse_to_wait_for_oneself(signallers[before:])
            outcome.result()
    except BaseException:
        outcome.cancel()  # a NOP if this is the stream's own error
        raise
    finally:
        # A traceback keeps this frame, which must not keep the subscriber (§3.13).
        del end, outcome


def _append_all(publisher: Publisher[T], elements: list[T] | deque[T]) -> None:
    """Wait for all elements, which go into ``elements``."""
    append = elements.append
    try:
        if isinstance(publisher, Pipeline):
            drive(publisher, _Trusting(append))
        else:
            drive(publisher, ForEach(append, None, None, UNBOUNDED))
    finally:
        del elements, append  # a traceback keeps this frame


def check_functions(**functions: object) -> None:
    """Refuse what cannot be called on signals; all but the first function may be ``None``."""
    needed = True
    for name, function in functions.items():
        if function is not None or needed:
            check_plain(name, function, _HINT)
        needed = False


def for_each(
    publisher: Publisher[T],
    on_next: Callable[[T], object],
    on_error: Callable[[BaseException], object] | None = None,
    on_complete: Callable[[], object] | None = None,
    *,
    prefetch: int = UNBOUNDED,
) -> Run:
    """Call ``on_next`` with every element, on the threads that the publisher signals on.

    ``prefetch`` elements are asked for ahead, and again when three quarters of them are consumed; 1
    is stop-and-wait. ``on_error`` or ``on_complete`` is called at the end, and then the
    ``Run`` that is returned is done. What ``on_next`` raises cancels upstream and is the
    stream's error (a coroutine that it returns is one, too: nobody would await it); so is what
    ``on_complete`` raises. What ``on_error`` raises goes to
    ``on_dropped_error``, and so does an error that neither ``on_error`` nor anybody who asked the
    run's result has seen.
    ``KeyboardInterrupt`` and its like leave through the call they happened in.

    A source that works on the caller has done so when this returns, and one without end never
    returns: give it a thread by ``subscribe_on``, or subscribe a ``SyncSubscriber``, whose
    ``run`` is there before, for another thread to cancel.
    """
    check_publisher(publisher)
    check_functions(on_next=on_next, on_error=on_error, on_complete=on_complete)
    prefetch = min(check_count("prefetch", prefetch, 1), UNBOUNDED)
    end = ForEach(on_next, on_error, on_complete, prefetch)
    outcome = end.run
    try:
        with awaited_nowhere():
            subscribe(publisher, end)
    except BaseException as leaving:
        end.leave(leaving)
        raise
    return outcome


def run(publisher: Publisher[Any]) -> None:
    """Consume the stream to its end, for its side effects, and raise its error as itself.

    Blocks; inside a running event loop that is a ``RuntimeError``: use ``run_async`` there.
    """
    check_publisher(publisher)
    refuse_in_loop("run()", "use 'await run_async()' there")
    _append_all(publisher, deque(maxlen=0))


def to_list(publisher: Publisher[T]) -> list[T]:
    """Return all elements in a list (of unbounded size), or raise the stream's error as itself.

    Blocks; inside a running event loop that is a ``RuntimeError``: use ``to_list_async`` there.
    """
    check_publisher(publisher)
    refuse_in_loop("to_list()", "use 'await to_list_async()' there")
    elements: list[T] = []
    try:
        _append_all(publisher, elements)
        return elements
    finally:
        del elements  # a traceback keeps this frame


def last(publisher: Pipeline[T], default: Any) -> Any:
    """Wait for the end, and return the last element; of none, see ``first``."""
    refuse_in_loop("last()", "use 'await last_async()' there")
    newest: deque[T] = deque(maxlen=1)
    _append_all(publisher, newest)
    return _or_default(newest[0] if newest else MISSING, default)


@overload
def first(publisher: Publisher[T]) -> T: ...
@overload
def first(publisher: Publisher[T], default: D) -> T | D: ...
def first(publisher: Publisher[T], default: Any = MISSING) -> Any:
    """Return the first element: exactly one is asked for, and then upstream is cancelled.

    An empty stream is a ``LookupError``, or ``default`` if there is one. Blocks; inside a running
    event loop that is a ``RuntimeError``: use ``first_async`` there.
    """
    check_publisher(publisher)
    refuse_in_loop("first()", "use 'await first_async()' there")
    end: _First[T] = _First()
    try:
        drive(publisher, end)
        return _or_default(end.element, default)
    finally:
        del end


def _or_default(element: Any, default: Any) -> Any:
    if element is not MISSING:
        return element
    if default is MISSING:
        raise LookupError("the stream is empty, and no default was given")
    return default


async def run_async(publisher: Publisher[Any]) -> None:
    """Consume the stream to its end without blocking the loop, and raise its error as itself.

    At most 1024 elements are asked for ahead. Cancelling the task cancels upstream, once.
    """
    iteration = Iteration(publisher, PREFETCH)
    try:
        while await iteration.next_burst():
            pass
    finally:
        await iteration.aclose()


async def to_list_async(publisher: Publisher[T]) -> list[T]:
    """Return all elements in a list without blocking the loop, or raise the stream's error.

    At most 1024 elements are asked for ahead. Cancelling the task cancels upstream, once.
    """
    elements: list[T] = []
    iteration = Iteration(publisher, PREFETCH)
    try:
        while burst := await iteration.next_burst():
            elements += burst
    finally:
        await iteration.aclose()
    return elements


@overload
async def first_async(publisher: Publisher[T]) -> T: ...
@overload
async def first_async(publisher: Publisher[T], default: D) -> T | D: ...
async def first_async(publisher: Publisher[T], default: Any = MISSING) -> Any:
    """Return the first element without blocking the loop; else as ``first``.

    Cancelling the task cancels upstream, once.
    """
    iteration = Iteration(publisher, 1)
    try:
        burst = await iteration.next_burst()
    finally:
        await iteration.aclose()
    return _or_default(burst[0] if burst else MISSING, default)
