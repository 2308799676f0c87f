"""``for`` and ``async for`` over a publisher: elements are requested as the consumer takes them.

Upstream refers to the subscriber (``_IteratorSubscriber``), and the consumer refers to the
``Iteration``. The subscriber does not refer to the ``Iteration``. So if the consumer drops the
``Iteration``, it is garbage-collected, and cancels upstream.

The subscriber puts elements into a ring (a bounded queue) with room for ``prefetch`` elements. The
iteration takes them out in bursts (lists). A burst is consumed when the consumer asks for the
element after the burst. When three quarters of ``prefetch`` are consumed, as many elements are
requested again. So ``prefetch`` bounds the number of elements that are requested, or are in the
ring or the burst. With ``prefetch=1``, an element is requested after the previous one was consumed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Publisher, Subscription
from rstreams_fast.core import MISSING, BurstIterator, Missing, SpscRing
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.errors import (
    DemandExceededError,
    NoneSignalError,
    OverlappingCallsError,
    check_error,
    report_dropped,
)
from rstreams_fast.runtime.awaiting import with_running_loop, without_loop
from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.gil_yield import yield_gil
from rstreams_fast.runtime.parking import (
    Doorbell,
    Signaller,
    acquire,
    new_event,
    refuse_in_loop,
    refuse_to_wait_for_oneself,
    running_loop,
    signallers_of_thread,
)
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import RingSubscriber
from rstreams_fast.streams.engine.defaults import PREFETCH, replenish_at
from rstreams_fast.streams.engine.not_picklable import is_internal, not_picklable
from rstreams_fast.streams.engine.sink_subscriber import (
    Failure,
    SerialUpstream,
    check_process,
    check_publisher,
    failure_of,
    is_async_cancellation,
    not_a_cancellation,
    raise_failure,
    subscribe_end,
)

if TYPE_CHECKING:
    import asyncio

__all__ = ["Iteration", "iterate"]

T = TypeVar("T")


# Weak references to the open iterations. In a forked child, ``_remove_bursts_in_child`` removes the
# elements of these iterations, which belong to the parent. A WeakSet would be slower.
_live_iterations: set[weakref.ref[Iteration[Any]] | None] = set()
_parent_elements: list[Any] = []


def _remove_bursts_in_child() -> None:
    """In a forked child, remove the elements of all iterations, because the parent delivers them.

    An iteration without elements checks the process id at its next step, and raises an error in the
    child. So the id need not be checked for each element. The removed elements are kept in a list,
    because a finalizer of an element must run only in the parent.
    """
    for reference in list(_live_iterations):
        iteration = None if reference is None else reference()
        while iteration is not None and (element := iteration._next_of_burst()) is not MISSING:
            _parent_elements.append(element)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remove_bursts_in_child)


class _IteratorSubscriber(RingSubscriber):
    """The subscriber of an ``Iteration``: puts elements into a ring, and wakes the consumer."""

    __slots__ = (
        "__weakref__",
        "_offer",
        "_only_consumer_requests",
        "_prefetch",
        "bell",
        "ended",
        "failure",
        "ring",
        "subscriber_thread",
        "turns",
        "upstream",
    )

    __reduce__ = not_picklable

    def __init__(self, prefetch: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self.upstream = SerialUpstream()
        self._prefetch = prefetch
        # The id of the thread that calls ``subscribe``. 0 after ``subscribe`` has returned.
        self.subscriber_thread = get_ident()
        # ``_only_consumer_requests``: true for a publisher of this package that calls
        # ``on_subscribe`` within ``subscribe``. It may make all elements in ``request``, while the
        # consumer waits. So only ``request_for_a_turn`` makes requests, for at most a millisecond
        # in each call.
        self._only_consumer_requests = False
        self.bell = Doorbell()
        self.turns = None if loop is None else Turns(self.bell.ring)
        if self.turns is not None:
            # Begin a turn (a time slice of a millisecond). A drain (a loop that delivers elements)
            # that runs within ``subscribe`` pauses at the end of the turn, so that other tasks run.
            self.turns.begin(loop)
        self.ended = False
        """Whether upstream sends no more elements. The ring may still contain elements."""
        self.failure: Failure | None = None
        """The error of the stream, with its traceback."""
        self.ring: SpscRing | None = SpscRing(prefetch)
        self._offer: Callable[[Any], bool] | None = self.ring.offer

    def on_subscribe(self, subscription: Subscription, /) -> None:
        if not self.upstream.attach(subscription):
            return
        if get_ident() == self.subscriber_thread and is_internal(subscription):
            self._only_consumer_requests = True
            self.upstream.due = self._prefetch  # _start() requests these after ``subscribe``
        else:
            self._request(self._prefetch)

    def request_for_a_turn(self, loop: asyncio.AbstractEventLoop | None, n: int = 0) -> bool:
        """Request ``n`` more elements, and the elements that earlier calls had no time to request.

        ``loop`` is the event loop of an asynchronous consumer, or ``None``. The call occupies the
        loop for at most a turn (a time slice of a millisecond). If the time does not suffice, later
        calls request the rest. Return false if there was nothing to do: no elements to request, and
        no paused drain (a loop that delivers elements) to resume. Only the consumer calls this.
        """
        try:
            turns = self.turns
            if turns is not None:
                turns.begin(loop)
            resumed = turns is not None and turns.resume_paused()
            if not self._only_consumer_requests:
                if n:
                    self._request(n)
                return resumed or n > 0
            if resumed:
                self.upstream.due += n
                return True
            try:
                return self.upstream.request_for_a_turn(n)
            except Exception as raised:
                self.upstream.request_raised(raised, self.fail)
                return False
        except BaseException as raised:
            if not is_async_cancellation(raised):
                raise
            # No task was cancelled here, because this method awaits nothing. So a function of the
            # stream has raised the CancelledError, which becomes the stream's error.
            self.fail(not_a_cancellation(raised, "the stream"))
            return False

    def _request(self, n: int) -> None:
        try:
            self.upstream.ask(n)
        except Exception as raised:
            self.upstream.request_raised(raised, self.fail)

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise NoneSignalError("§2.13: None is not an element")
        offer = self._offer
        if offer is None:  # the iteration has ended, but upstream may still send elements (§2.8)
            self.upstream.on_late_element()
            return
        try:
            accepted = offer(element)
        except OverlappingCallsError as overlap:
            self.fail(overlap)
            return
        if not accepted:
            self.fail(
                DemandExceededError(f"§1.1: more than the {self._prefetch} requested elements came")
            )

    def on_burst(self) -> None:
        """Do nothing: the ring has woken the consumer at the first element of the burst (list)."""

    def arm(self) -> bool:
        """Have the ring wake the consumer at the next element.

        Return false if the consumer need not wait: there are elements, or the stream has ended.
        """
        ring = self.ring
        return ring is not None and not self.ended and ring.arm(self.bell.ring)

    def on_error(self, error: BaseException, /) -> None:
        check_error(error)
        if self.upstream.ended():
            self._end(error)
        else:
            report_dropped(error, "an error after the end of an iteration")

    def on_complete(self) -> None:
        if self.upstream.ended():
            self._end(None)

    def fail(self, error: BaseException) -> None:
        """End the iteration with ``error``, and cancel upstream, because upstream broke a rule."""
        if not self.upstream.over:
            try:
                self.upstream.cancel()
            finally:
                self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.failure = failure_of(not_a_cancellation(error, "the stream"))
        self._offer = None
        self.ended = True
        self.bell.ring()

    def abandon(self) -> None:
        """Cancel upstream, and drop all elements, because the consumer has closed the iteration.

        Any thread may call this, any number of times.
        """
        self.ended = True
        self._offer = self.ring = self.failure = None
        try:
            self.upstream.cancel()
        finally:
            if self.turns is not None:
                self.turns.end()
            self.bell.ring()


class Iteration(BurstIterator[T]):
    """An iterator over a publisher's elements, for ``for`` and ``async for``. A context manager.

    The iteration subscribes when the ``with`` block is entered, or at the first ``next`` or
    ``anext``. Upstream is cancelled by ``close``, by the end of the ``with`` block, by an exception
    of ``next`` or ``anext`` (such as a cancel), and when the iteration is garbage-collected. After
    that the iteration cannot be used again. A synchronous publisher runs on the consumer's thread.

    An error of the stream is raised once, after the elements that came before the error. Only one
    consumer may iterate at a time: a ``next`` while another ``next`` waits raises
    ``OverlappingCallsError``. Any thread may call ``close``, which also ends a waiting ``next``.

    In two cases ``next`` raises ``RuntimeError``: if it would have to wait on a thread that runs an
    event loop, and in the child of a fork, if the parent began the iteration.
    """

    __slots__ = (
        "__weakref__",
        "_busy",
        "_consumed",
        "_fetched",
        "_live_reference",
        "_pid",
        "_prefetch",
        "_publisher",
        "_replenish",
        "_signallers",
        "_subscriber",
        "_unclosed",
    )

    def __init__(self, publisher: Publisher[T], prefetch: int) -> None:
        # Set these fields before the checks: __del__ reads them even if a check fails.
        self._subscriber: _IteratorSubscriber | None = None
        self._live_reference: weakref.ref[Iteration[T]] | None = None
        check_publisher(publisher)
        self._prefetch = check_capacity("prefetch", prefetch)
        self._replenish = replenish_at(self._prefetch)
        self._publisher: Publisher[T] | None = publisher
        self._fetched = 0
        self._consumed = 0
        self._busy = threading.Lock()
        self._pid = process_id()
        self._signallers: list[Signaller] = []
        # The futures for which ``aclose`` waits. A future is done when an asynchronous source, or a
        # call of ``map_async``, has released its resources.
        self._unclosed: set[asyncio.Future[Any]] = set()

    @property
    def prefetch(self) -> int:
        """The bound on the sum of requested, buffered and currently consumed elements."""
        return self._prefetch

    @property
    def buffered(self) -> int:
        """The number of elements that wait in the ring (the buffer) now."""
        subscriber = self._subscriber
        ring = None if subscriber is None else subscriber.ring
        return 0 if ring is None else len(ring)

    # -- methods that only the consumer calls ------------------------------------------------------

    def _refill(self) -> T:
        self._acquire_busy()
        try:
            # This thread has found no stored element. But before it acquired ``_busy``, another
            # thread may have fetched and stored elements. So look for stored elements again.
            element = self._next_of_burst()
            if element is MISSING:
                with without_loop():
                    element = self._next_element()
        except BaseException:
            self.close()
            raise
        finally:
            self._busy.release()
        if element is MISSING:
            raise_failure(self._finish())
            raise StopIteration
        return element

    def _next_element(self) -> T | Literal[Missing.MISSING]:
        subscriber = self._start_or_request(None)
        try:
            while subscriber is not None:
                burst = self._fetch(subscriber)
                if burst is None:
                    break
                if burst:
                    return self._first_of(burst)
                if not subscriber.request_for_a_turn(None):
                    self._park(subscriber)
            return MISSING
        finally:
            # An error's traceback keeps this frame's variables alive, so clear them (§3.13).
            subscriber = burst = None

    async def _refill_async(self) -> T:
        burst = await self.next_burst()
        if not burst:
            raise StopAsyncIteration
        return self._first_of(burst)

    async def next_burst(self) -> list[T]:
        """Await elements, and return a list of at most three quarters of ``prefetch`` elements.

        The oldest element comes first. An empty list means the end of the stream. The next call
        treats the elements as consumed, and so may request more elements. Each call lets other
        tasks of the event loop run. If the awaiting task is cancelled, the iteration is closed.
        """
        self._acquire_busy()
        try:
            with with_running_loop(self._unclosed):
                burst = await self._next_burst()
            if not burst:
                failure = self._finish()
                await self.aclose()
        except GeneratorExit:  # this coroutine is being closed, so it must not await anything
            self._unclosed.clear()
            self.close()
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._busy.release()
        if not burst:
            raise_failure(failure)
        try:
            return burst
        finally:
            del burst  # a traceback that refers to this frame would keep the elements alive (§3.13)

    async def _next_burst(self) -> list[T]:
        import asyncio

        loop = asyncio.get_running_loop()
        subscriber = self._start_or_request(loop)
        try:
            if subscriber is not None:
                yield_gil()
                await asyncio.sleep(0)  # let other tasks run, even if elements are always ready
            while subscriber is not None:
                burst = self._fetch(subscriber)
                if burst is None:
                    break
                if burst:
                    return burst
                if not subscriber.request_for_a_turn(loop):
                    await self._wait(subscriber)
                elif not self.buffered:  # the request brought no element yet: let other tasks run
                    yield_gil()
                    await asyncio.sleep(0)
            return []
        finally:
            # An error's traceback keeps this frame's variables alive, so clear them (§3.13).
            subscriber = burst = None

    def _first_of(self, burst: list[T]) -> T:
        """Return the first element of ``burst``. Keep the other elements for later calls.

        If ``close`` was called meanwhile, drop the other elements.
        """
        element = super()._first_of(burst)
        if self._subscriber is None:
            self._forget_burst()
        return element

    def _acquire_busy(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise OverlappingCallsError(
                "an iteration has one consumer at a time, and one waits already"
            )

    def _start_or_request(
        self, loop: asyncio.AbstractEventLoop | None
    ) -> _IteratorSubscriber | None:
        """On the first call, subscribe. On later calls, request as many elements as were consumed.

        Return the subscriber, or ``None`` if the iteration is closed.
        """
        subscriber = self._subscriber
        if subscriber is None:
            return self._start(loop)
        check_process(self._pid)
        self._consumed += self._fetched
        self._fetched = 0
        if self._consumed >= self._replenish and not subscriber.ended:
            consumed, self._consumed = self._consumed, 0
            subscriber.request_for_a_turn(loop, consumed)
        return subscriber

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> _IteratorSubscriber | None:
        if self._publisher is None:
            return None
        self._pid = process_id()
        self._live_reference = weakref.ref(self)
        _live_iterations.add(self._live_reference)
        # Another thread may call close(), which first removes the publisher, and then the
        # subscriber. So set the subscriber here before reading the publisher. Then either the
        # publisher is None here, or close() finds the subscriber, and cancels upstream.
        self._subscriber = subscriber = _IteratorSubscriber(self._prefetch, loop)
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            self.close()
            return None
        try:
            signallers = signallers_of_thread()
            before = len(signallers)
            subscribe_end(publisher, subscriber)
            self._signallers = signallers[before:]
            subscriber.subscriber_thread = 0
            subscriber.request_for_a_turn(loop)
        except BaseException:
            self.close()
            raise
        return subscriber

    def _fetch(self, subscriber: _IteratorSubscriber) -> list[T] | None:
        """Return the elements that are in the ring, or ``None`` at the end of the stream."""
        # Read ``ended`` before the ring: if it is true, no more elements come into the ring.
        ended = subscriber.ended
        ring = subscriber.ring
        if ring is None:
            return None
        burst: list[T] = ring.poll_many(self._replenish)
        self._fetched = len(burst)
        return None if ended and not burst else burst

    def _park(self, subscriber: _IteratorSubscriber) -> None:
        refuse_in_loop("next()", "use 'async for' there")
        refuse_to_wait_for_oneself(self._signallers)
        event = new_event()
        subscriber.bell.arm(event.release)
        try:
            if subscriber.arm():
                acquire(event)
        finally:
            subscriber.bell.disarm()

    async def _wait(self, subscriber: _IteratorSubscriber) -> None:
        # A ``Bell`` is a callback that wakes this coroutine. If the event loop is closed during the
        # ``await``, the coroutine never continues. The next call of the ``Bell``, for example when
        # an element comes, then calls ``subscriber.abandon``, which cancels upstream.
        bell = Bell(subscriber.abandon)
        subscriber.bell.arm(bell)
        try:
            if subscriber.arm():
                await bell.future
        finally:
            subscriber.bell.disarm()

    def _finish(self) -> Failure | None:
        """Close the iteration at the end of the stream. Return the stream's error, or ``None``."""
        subscriber = self._subscriber
        failure = None if subscriber is None else subscriber.failure
        self.close()
        if failure is not None and isinstance(failure[0], StopIteration | StopAsyncIteration):
            return failure_of(_stop_iteration_error(failure[0]))
        return failure

    # -- closing the iteration ---------------------------------------------------------------------

    def close(self) -> None:
        """Close the iteration: cancel upstream, and drop the buffered elements.

        Any thread may call this, any number of times. The call never blocks.
        """
        self._publisher = None
        subscriber, self._subscriber = self._subscriber, None
        self._signallers = []
        self._forget_burst()
        if subscriber is not None:
            _live_iterations.discard(self._live_reference)
            subscriber.abandon()

    async def aclose(self) -> None:
        """Close the iteration, and await the release of the stream's resources.

        Asynchronous sources, and calls of ``map_async``, may need time to release resources. If the
        awaiting task is cancelled, the task stops waiting, but the resources are still released.
        """
        self.close()
        if self._unclosed:
            await self._wait_until_closed()

    async def _wait_until_closed(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        try:
            while waiting := [f for f in self._unclosed if not f.done() and f.get_loop() is loop]:
                await asyncio.wait(waiting)
        finally:
            # If this task was cancelled, it must end soon. Forget the futures, so that a second
            # call of ``aclose``, for example by ``__aexit__``, does not wait for them again.
            self._unclosed.clear()

    def __enter__(self) -> Self:
        with without_loop():
            return self._open(None)

    def _open(self, loop: asyncio.AbstractEventLoop | None) -> Self:
        self._acquire_busy()
        try:
            if self._subscriber is None and self._publisher is None:
                raise RuntimeError("an iteration is for one use, and this one is over")
            self._start(loop)
        finally:
            self._busy.release()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        with with_running_loop(self._unclosed):
            return self._open(running_loop())

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        subscriber = self._subscriber
        # ``call_from_finalizer`` is None if Python has cleared the globals at interpreter exit.
        if subscriber is not None and call_from_finalizer is not None:
            _live_iterations.discard(self._live_reference)
            call_from_finalizer(subscriber.abandon)


def _stop_iteration_error(error: BaseException) -> RuntimeError:
    # If ``next`` raised the stream's error StopIteration, a ``for`` loop would end without an
    # error. So raise a RuntimeError instead, as generators do (PEP 479).
    failure = RuntimeError(f"the stream failed with {type(error).__name__}")
    failure.__cause__ = error
    return failure


def iterate(publisher: Publisher[T], *, prefetch: int = PREFETCH) -> Iteration[T]:
    """Return an iterator over ``publisher``: see ``Stream.iterate``."""
    return Iteration(publisher, prefetch)
