"""The bounded single-producer single-consumer ring on ``rsf_ring``.

The C ring hands out places in a Python list, which holds the references: so the garbage collector
sees them. A reference is in its place before the place is published; it is dropped only after the
place was given back and the side left, because dropping may run any code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import (
    check_capacity,
    check_count,
    check_element,
    check_same_process,
    check_timeout,
    refuse_pickle,
    sleeps,
)
from rstreams_fast.errors import OverlappingCalls, RingClosed

_OVERLAP: Final[int] = lib.RSF_GLUE_OVERLAP


class _Event:
    """What one side sleeps on. Only that side waits; a wake that nobody waits for is kept."""

    __slots__ = ("_permit",)

    def __init__(self) -> None:
        self._permit = threading.Lock()  # free only between a wake and the end of the wait
        self._permit.acquire()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # woken already
            self._permit.release()

    def sleep(self, timeout: float | None) -> bool:
        """Wait for a wake, perhaps an old one; ``False`` after ``timeout`` seconds."""
        return any(self._permit.acquire(timeout=sleep) for sleep in sleeps(timeout))


class SpscRing:
    """A bounded first-in first-out buffer between one producer and one consumer.

    The producer's calls are ``offer``, ``offer_many``, ``put``; the consumer's ``poll``,
    ``poll_many``, ``get``, ``arm``, ``disarm``. Two calls that overlap on one side raise
    ``OverlappingCalls``; which thread makes them does not matter. ``close``, ``closed`` and ``len``
    are anybody's.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = check_capacity("capacity", capacity)
        self._ring: Any = ffi.new("rsf_ring *")
        lib.rsf_ring_init(self._ring, self._capacity)
        self._slots: list[Any] = [None] * lib.rsf_ring_slots(self._ring)
        # Where the C side says which place is meant: one for each side.
        self._put_at: Any = ffi.new("uint64_t *")
        self._take_at: Any = ffi.new("uint64_t *")
        self._data = _Event()
        self._waker: Callable[[], object] | None = None
        self._room = _Event()
        self._closing = threading.Lock()
        self._error: BaseException | None = None
        self._creator = os.getpid()

    @property
    def capacity(self) -> int:
        """The bound, in elements."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. Elements may still be inside."""
        return lib.rsf_ring_is_closed(self._ring)

    def __len__(self) -> int:
        return lib.rsf_ring_size(self._ring)

    # -- producer --------------------------------------------------------------------------------

    def offer(self, element: Any, /) -> bool:
        """Put ``element`` in; ``False`` when full. ``RingClosed`` when closed."""
        room = self._begin_put(1, "offer")
        done = 0
        try:
            check_element(element)
            if room:
                self._slots[self._put_at[0]] = element
                done = 1
        finally:
            self._end_put(done)
        return done == 1

    def offer_many(self, elements: list[Any] | tuple[Any, ...], start: int = 0) -> int:
        """Put in as many of ``elements[start:]`` as fit and return how many that were.

        ``None`` among those that would fit is a ``TypeError``, and nothing is put in.
        """
        if not isinstance(elements, list | tuple):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        start = check_count("start", start)
        room = self._begin_put(max(len(elements) - start, 0), "offer")
        done = 0
        try:
            # A copy: the list may change meanwhile. At least one: a full ring refuses None, too.
            fitting = elements[start : start + max(room, 1)]
            for element in fitting:
                check_element(element)
            if room:
                done = self._fill(self._put_at[0], fitting)
        finally:
            self._end_put(done)
        return done

    def put(self, element: Any, timeout: float | None = None) -> None:
        """Put ``element`` in, waiting for room. ``TimeoutError`` after ``timeout`` seconds."""
        check_element(element)
        timeout = check_timeout(timeout)
        room = self._begin_put(1, "put")
        done = 0
        try:
            if not room:
                self._wait_for_room(timeout)
            self._slots[self._put_at[0]] = element
            done = 1
        finally:
            self._end_put(done)

    def _begin_put(self, count: int, call: str) -> int:
        room = lib.rsf_glue_begin_put(self._ring, count, self._put_at)
        if room < 0:
            if room == _OVERLAP:
                raise OverlappingCalls("two calls overlap on the producer side of an SpscRing")
            raise RingClosed(f"{call} on a closed ring")
        return room

    def _end_put(self, count: int) -> None:
        if lib.rsf_glue_end_put(self._ring, count):
            self._wake_consumer()

    def _fill(self, at: int, elements: list[Any] | tuple[Any, ...]) -> int:
        slots = self._slots
        piece = min(len(elements), len(slots) - at)
        slots[at : at + piece] = elements[:piece]
        slots[: len(elements) - piece] = elements[piece:]
        return len(elements)

    def _wait_for_room(self, timeout: float | None) -> None:
        ring = self._ring
        if not self._wait(
            lambda: (
                lib.rsf_ring_is_closed(ring) or lib.rsf_glue_reserve(ring, 1, self._put_at) != 0
            ),
            lib.rsf_ring_prepare_wait_producer,
            self._room,
            timeout,
        ):
            raise TimeoutError(f"the ring stayed full for {timeout} seconds")
        if lib.rsf_ring_is_closed(ring):
            raise RingClosed("put on a closed ring")

    # -- consumer --------------------------------------------------------------------------------

    def poll(self) -> Any | None:
        """Take the oldest element out; ``None`` when empty, closed or not."""
        ready = self._begin_take(1)
        done = 0
        element = None
        try:
            if ready:
                element = self._empty_one()
                done = 1
        finally:
            self._end_take(done)
        return element

    def poll_many(self, max: int, /) -> list[Any]:
        """Take up to ``max`` elements out, oldest first."""
        ready = self._begin_take(min(check_count("max", max), self._capacity))
        done = 0
        taken: list[Any] = []
        try:
            if ready:
                taken = self._empty(self._take_at[0], ready)
                done = ready
        finally:
            self._end_take(done)
        return taken

    def get(self, timeout: float | None = None) -> Any:
        """Take the oldest element out, waiting for one.

        ``TimeoutError`` after ``timeout`` seconds. Once closed and empty: raises the error given to
        ``close``, else ``RingClosed``.
        """
        timeout = check_timeout(timeout)
        ready = self._begin_take(1)
        done = 0
        try:
            self._waker = None
            if not ready:
                self._wait_for_data(timeout)
            element = self._empty_one()
            done = 1
        finally:
            self._end_take(done)
        return element

    def arm(self, waker: Callable[[], object], /) -> bool:
        """Have ``waker()`` called, once, by whoever next puts an element in, or closes the ring.

        The consumer's way to wait without a thread. ``False`` if there is an element, or the ring
        is closed: look again. What the waker raises leaves through the call that put the element
        in. ``get`` disarms.
        """
        check_same_process(self, self._creator)
        self._begin_take(0)
        try:
            self._waker = waker  # before the flag that it is there for
            armed: bool = lib.rsf_ring_prepare_wait_consumer(self._ring)
            if not armed:
                self._waker = None
            return armed
        finally:
            self._end_take(0)

    def disarm(self) -> None:
        """Forget the waker; it may be about to be called by another thread all the same."""
        self._waker = None

    def _wake_consumer(self) -> None:
        waker, self._waker = self._waker, None
        if waker is None:
            self._data.wake()
        else:
            waker()

    def _begin_take(self, count: int) -> int:
        ready = lib.rsf_glue_begin_take(self._ring, count, self._take_at)
        if ready < 0:
            raise OverlappingCalls("two calls overlap on the consumer side of an SpscRing")
        return ready

    def _end_take(self, count: int) -> None:
        if lib.rsf_glue_end_take(self._ring, count):
            self._room.wake()

    def _empty_one(self) -> Any:
        at = self._take_at[0]
        element = self._slots[at]
        self._slots[at] = None
        return element

    def _empty(self, at: int, count: int) -> list[Any]:
        slots = self._slots
        piece = min(count, len(slots) - at)
        taken = slots[at : at + piece] + slots[: count - piece]
        slots[at : at + piece] = [None] * piece
        slots[: count - piece] = [None] * (count - piece)
        return taken

    def _wait_for_data(self, timeout: float | None) -> None:
        ring = self._ring
        if not self._wait(
            lambda: lib.rsf_glue_peek(ring, 1, self._take_at) != 0 or lib.rsf_ring_is_drained(ring),
            lib.rsf_ring_prepare_wait_consumer,
            self._data,
            timeout,
        ):
            raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
        if lib.rsf_glue_peek(ring, 1, self._take_at) == 0:
            raise self._error or RingClosed("the ring is closed and empty")

    # -- anybody ---------------------------------------------------------------------------------

    def close(self, error: BaseException | None = None) -> None:
        """Let nothing more in; ``get`` raises ``error`` at the end. The first call counts."""
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
        with self._closing:
            if lib.rsf_ring_is_closed(self._ring):
                return
            self._error = error
            lib.rsf_ring_close(self._ring)
        if lib.rsf_ring_take_waiting_consumer(self._ring):
            self._wake_consumer()
        if lib.rsf_ring_take_waiting_producer(self._ring):
            self._room.wake()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<SpscRing {len(self)}/{self._capacity}{state}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    # -- parking ---------------------------------------------------------------------------------

    def _wait(
        self,
        over: Callable[[], bool],
        prepare: Callable[[Any], bool],
        event: _Event,
        timeout: float | None,
    ) -> bool:
        """Sleep until ``over()``, inside one's side; ``False`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not over():
            check_same_process(self, self._creator)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if prepare(self._ring):
                event.sleep(left)
            else:
                # There is something; or the ring is closed, and a producer that came before the
                # close is about to leave: let it.
                time.sleep(0)
        return True
