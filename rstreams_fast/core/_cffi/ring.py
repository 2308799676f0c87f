"""``SpscRing``, the single-producer single-consumer ring, on the C type ``rsf_ring``.

A Python list holds the elements, so that the garbage collector sees them. The C ring manages the
indices of the list. The producer stores an element before it publishes the index. The consumer
drops its references to taken elements last, when it has released the indices and its call has
ended: dropping a reference may run a finalizer, which may use the ring.

While a method of the ring runs, a context manager (``inside``) marks that the producer or the
consumer is making a call. If the mark stayed after the method, the ring would refuse all later
calls of this producer or consumer. An *interrupt* is an exception of a signal handler, such as
``KeyboardInterrupt``. An interrupt may come between almost any two steps of Python, even before the
first step of ``__exit__`` and within a ``finally``. So each method enters ``inside`` twice: ``with
inside, inside``. If an interrupt stops the inner ``__exit__``, the outer ``__exit__`` removes the
mark. Otherwise the outer ``__exit__`` does nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rstreams_fast._checks import check_count
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import (
    check_same_process,
    check_waker,
    end_error,
    refuse_overlap,
    sleeps,
    wake_quietly,
)
from rstreams_fast.core._spec import ring as spec
from rstreams_fast.errors import RingClosed, check_element

_OVERLAP: Final[int] = lib.RSF_GLUE_OVERLAP
_CLOSED: Final[int] = lib.RSF_GLUE_CLOSED


class _Event:
    """Lets the producer or the consumer of a ring sleep until the other side wakes it."""

    __slots__ = ("_permit",)

    def __init__(self) -> None:
        # This lock is normally locked. sleep() waits until wake() releases it.
        self._permit = threading.Lock()
        self._permit.acquire()

    def wake(self) -> None:
        # If no thread has slept since the last wake(), the lock is still unlocked. Then release()
        # raises a RuntimeError, which can be ignored.
        with contextlib.suppress(RuntimeError):
            self._permit.release()

    def sleep(self, timeout: float | None) -> bool:
        """Wait until another thread calls ``wake``, and return ``True``.

        If ``wake`` was called since the last ``sleep``, return immediately. If no thread calls
        ``wake`` within ``timeout`` seconds, return ``False``.
        """
        return any(self._permit.acquire(timeout=sleep) for sleep in sleeps(timeout))


class PutCall(spec.PutCall):
    """Marks that a call of the producer is running, which puts in at most ``count`` elements.

    ``__enter__`` sets the mark, and stores in ``available`` how many of the elements fit.
    """

    __slots__ = ("_count", "available")

    _ring: BoundedRing

    def __init__(self, ring: BoundedRing, call: str | None = None, count: int = 1) -> None:
        super().__init__(ring, call)
        self._count = count
        self.available = 0

    def __enter__(self) -> None:
        # The ring's methods run ``with inside, inside``, so that the outer __exit__ can complete an
        # interrupted inner __exit__. The outer __enter__ only sets _outer_entered. The inner
        # __enter__ marks that a call of the producer is running (in a TakeCall: of the consumer).
        if self._outer_entered:
            self.available = self._enter()
        self._outer_entered = True

    def __exit__(self, *raised: object) -> None:
        if self._exited:
            return
        interrupted, self._exiting = self._exiting, True
        # An interrupt may have stopped the first call of this method, the inner __exit__, before it
        # woke the other side's thread. So wake that thread here. A needless wake does no harm.
        if self._leave() or (interrupted and self.done):
            self._wake()
        self._exited = True

    def _enter(self) -> int:
        ring = self._ring
        room: int = lib.rsf_glue_begin_put(
            ring._ring, ring._producer, id(self), self._count, self._call is None
        )
        if room == _OVERLAP:
            return self._enter_occupied()
        if room == _CLOSED:
            raise RingClosed(f"{self._call} on a closed ring")
        return room

    def _enter_occupied(self) -> int:
        """Begin this call although another call of the same producer or consumer has not ended.

        Raises ``OverlappingCallsError``, unless the other call belongs to a coroutine whose event
        loop was closed.
        """
        ring, side = self._ring, self.side
        if not ring._end_lost_call(side):
            refuse_overlap(ring, side)
        return self._enter()

    def _leave(self) -> bool:
        """Note that the producer's call has ended. Return whether the consumer must be woken."""
        ring = self._ring
        return lib.rsf_glue_end_put(ring._ring, ring._producer, id(self), self.done)


class TakeCall(PutCall):
    """Marks that a call of the consumer is running, which takes out at most ``count`` elements.

    ``__enter__`` sets the mark, and stores in ``available`` how many elements the ring's method can
    take. The method stores in ``done`` how many elements it has taken.
    """

    __slots__ = ()

    side = "consumer"

    def _enter(self) -> int:
        ring = self._ring
        ready: int = lib.rsf_glue_begin_take(ring._ring, ring._consumer, id(self), self._count)
        if ready == _OVERLAP:
            return self._enter_occupied()
        return ready

    def _leave(self) -> bool:
        ring = self._ring
        return lib.rsf_glue_end_take(ring._ring, ring._consumer, id(self), self.done)

    def _wake(self) -> None:
        self._ring._wake_producer()


class BoundedRing(spec.BoundedRing):
    _put_call = PutCall
    _take_call = TakeCall

    def __init__(self, capacity: int) -> None:
        spec.BoundedRing.__init__(self, capacity)
        self._ring: Any = ffi.new("rsf_ring *")
        lib.rsf_ring_init(self._ring, self._capacity)
        # For the producer and for the consumer: the id of the running PutCall or TakeCall (0:
        # none), and ``at``, the index of the first element that this call stores or takes. By the
        # id, the __exit__ of an interrupted call finds out whether the call has begun.
        self._producer: Any = ffi.new("rsf_glue_side *")
        self._consumer: Any = ffi.new("rsf_glue_side *")
        self._data = _Event()
        self._room = _Event()

    @property
    def closed(self) -> bool:
        return lib.rsf_ring_is_closed(self._ring)

    def __len__(self) -> int:
        return lib.rsf_ring_size(self._ring)

    # -- waking the other side of the ring ---------------------------------------------------------

    def arm(self, waker: Callable[[], object], /) -> bool:
        return self._arm(TakeCall, self._set_waker, lib.rsf_ring_prepare_wait_consumer, waker)

    def arm_producer(self, waker: Callable[[], object], /) -> bool:
        prepare = lib.rsf_ring_prepare_wait_producer
        return self._arm(PutCall, self._set_producer_waker, prepare, waker)

    def _arm(self, side: type[PutCall], keep: Any, prepare: Any, waker: object) -> bool:
        check_waker(waker)
        check_same_process(self, self._creator)
        inside = side(self)
        with inside, inside:
            keep(waker)  # must come before prepare(), which tells the other side to call the waker
            armed: bool = prepare(self._ring)
            if not armed:
                keep(None)
        return armed

    def _set_waker(self, waker: Callable[[], object] | None) -> None:
        with self._lock:
            self._waker = waker

    def _set_producer_waker(self, waker: Callable[[], object] | None) -> None:
        with self._lock:
            self._producer_waker = waker

    def _wake_consumer(self) -> None:
        with self._lock:  # no other thread may change _waker between the read and the write
            waker, self._waker = self._waker, None
        if waker is None:
            self._data.wake()
        else:
            waker()

    def _wake_producer(self) -> None:
        with self._lock:
            waker, self._producer_waker = self._producer_waker, None
        if waker is None:
            self._room.wake()
        else:
            wake_quietly(waker)

    # -- waiting, within a call of the producer or the consumer ------------------------------------

    def _has_data(self) -> bool:
        return lib.rsf_glue_peek(self._ring, self._consumer, 1) != 0

    def _room_for(self, call: str) -> bool:
        if lib.rsf_ring_is_closed(self._ring):
            raise RingClosed(f"{call} on a closed ring")
        return lib.rsf_glue_reserve(self._ring, self._producer, 1) != 0

    def _check_end(self) -> None:
        if lib.rsf_ring_is_drained(self._ring):
            raise end_error(self._error)

    def _wait_for_data(self, timeout: float | None) -> None:
        self._set_waker(None)
        if not self._wait(
            lambda: self._has_data() or lib.rsf_ring_is_drained(self._ring),
            lib.rsf_ring_prepare_wait_consumer,
            self._data,
            timeout,
        ):
            raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
        if not self._has_data():
            self._check_end()

    def _wait_for_room(self, call: str, timeout: float | None) -> None:
        self._set_producer_waker(None)
        if not self._wait(
            lambda: self._room_for(call), lib.rsf_ring_prepare_wait_producer, self._room, timeout
        ):
            raise TimeoutError(f"the ring stayed full for {timeout} seconds")

    async def _await_data(self, inside: spec.PutCall) -> None:
        from asyncio import sleep

        self._set_waker(None)
        while not self._has_data():
            self._check_end()
            bell = self._begin_awaiting(inside, self._set_waker)
            try:
                if lib.rsf_ring_prepare_wait_consumer(self._ring):
                    await bell.future
                elif lib.rsf_ring_is_closed(self._ring):
                    await sleep(0)  # a call of the producer is still running: it may add an element
            finally:
                if self._end_awaiting(inside):
                    lib.rsf_ring_take_waiting_consumer(self._ring)

    async def _await_room(self, inside: spec.PutCall, call: str) -> None:
        self._set_producer_waker(None)
        while not self._room_for(call):
            bell = self._begin_awaiting(inside, self._set_producer_waker)
            try:
                if lib.rsf_ring_prepare_wait_producer(self._ring):
                    await bell.future
            finally:
                if self._end_awaiting(inside):
                    lib.rsf_ring_take_waiting_producer(self._ring)

    def _begin_awaiting(self, inside: spec.PutCall, keep: Callable[[Bell], None]) -> Bell:
        check_same_process(self, self._creator)
        bell = Bell()
        with self._lock:
            self._awaiting[inside.side] = inside, bell
            keep(bell)
        return bell

    def _wait(
        self,
        over: Callable[[], bool],
        prepare: Callable[[Any], bool],
        event: _Event,
        timeout: float | None,
    ) -> bool:
        """Sleep until ``over()`` is true, at most ``timeout`` seconds. Return whether it is true.

        ``prepare`` is the function of the C ring that announces the wait to the other side.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not over():
            check_same_process(self, self._creator)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if prepare(self._ring):
                event.sleep(left)
            else:
                # prepare() returned false: it did not announce a wait. Either the other side has
                # just put in or taken out an element, or the ring is closed while a call of the
                # producer is still running. So let another thread run, and then check again.
                time.sleep(0)
        return True

    # -- methods that any thread may call ----------------------------------------------------------

    def _close(self) -> None:
        lib.rsf_ring_close(self._ring)

    def _wake_both(self) -> None:
        try:
            if lib.rsf_ring_take_waiting_consumer(self._ring):
                self._wake_consumer()
        finally:
            if lib.rsf_ring_take_waiting_producer(self._ring):
                self._wake_producer()


class SpscRing(BoundedRing, spec.SpscRing[spec.T]):
    def __init__(self, capacity: int) -> None:
        BoundedRing.__init__(self, capacity)
        self._slots: list[Any] = [None] * lib.rsf_ring_slots(self._ring)

    # -- the methods of the producer ---------------------------------------------------------------

    def offer(self, element: Any, /) -> bool:
        inside = PutCall(self, "offer")
        with inside, inside:
            check_element(element)
            if inside.available:
                self._put_one(inside, element)
        return inside.done == 1

    def offer_many(self, elements: list[Any] | tuple[Any, ...], start: int = 0) -> int:
        if not isinstance(elements, list | tuple):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        start = check_count("start", start)
        inside = PutCall(self, "offer", max(len(elements) - start, 0))
        with inside, inside:
            # Copy the elements that fit, because another thread may change the list. Even if no
            # element fits, copy and check one: None is an error, even if the ring is full.
            fitting = elements[start : start + max(inside.available, 1)]
            for element in fitting:
                check_element(element)
            if inside.available:
                self._put_many(inside, fitting)
        return inside.done

    def _put_one(self, inside: Any, element: Any) -> None:
        self._slots[self._producer.at] = element
        inside.done = 1

    def _put_many(self, inside: Any, elements: list[Any] | tuple[Any, ...]) -> None:
        slots, at, count = self._slots, self._producer.at, len(elements)
        piece = min(count, len(slots) - at)
        slots[at : at + piece] = elements[:piece]
        slots[: count - piece] = elements[piece:]
        inside.done = count

    # -- the methods of the consumer ---------------------------------------------------------------

    def poll(self) -> Any | None:
        inside = TakeCall(self)
        element = None
        with inside, inside:
            if inside.available:
                element = self._take_one(inside)
        return element

    def poll_many(self, max: int, /) -> list[Any]:
        inside = TakeCall(self, None, min(check_count("max", max), self._capacity))
        taken: list[Any] = []
        with inside, inside:
            if inside.available:
                taken = self._take_many(inside)
        return taken

    def _take_one(self, inside: Any) -> Any:
        at = self._consumer.at
        element = self._slots[at]
        self._slots[at] = None
        inside.done = 1
        return element

    def _take_many(self, inside: Any) -> list[Any]:
        slots, at, count = self._slots, self._consumer.at, inside.available
        piece = min(count, len(slots) - at)
        taken = slots[at : at + piece] + slots[: count - piece]
        slots[at : at + piece] = [None] * piece
        slots[: count - piece] = [None] * (count - piece)
        inside.done = count
        return taken
