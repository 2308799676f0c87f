"""The common base of the rings, and ``SpscRing``, the ring of objects.

A ring has two *sides*: the producer's and the consumer's. One call at a time may run on each side.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from rstreams_fast._checks import check_capacity, check_count, check_timeout
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.core._common import (
    Waiters,
    check_same_process,
    check_waker,
    end_error,
    refuse_overlap,
    refuse_pickle,
    wake_quietly,
)
from rstreams_fast.errors import RingClosed, check_element

__all__ = ["BoundedRing", "PutCall", "SpscRing", "TakeCall"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers read this, but no program imports it

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class PutCall:
    """Marks that a call of the producer is running, so that the ring refuses a second call.

    The ring's method stores in ``done`` how many elements it has put in. If ``done`` is not 0,
    ``__exit__`` wakes the consumer. ``call`` is the name of the method in the error for a closed
    ring. If ``call`` is ``None``, a closed ring raises no error.

    The method runs ``with inside, inside``: it enters the object twice. If a ``KeyboardInterrupt``
    stops the inner ``__exit__``, the outer ``__exit__`` removes the mark.
    """

    __slots__ = ("_call", "_exited", "_exiting", "_outer_entered", "_ring", "done")

    side = "producer"

    def __init__(self, ring: BoundedRing, call: str | None = None) -> None:
        self._ring = ring
        self._call = call
        self._outer_entered = self._exiting = self._exited = False
        self.done = 0

    def __enter__(self) -> None:
        ring = self._ring
        if self._outer_entered and ring._running_calls.setdefault(self.side, self) is not self:
            ring._end_lost_call(self.side)
            if ring._running_calls.setdefault(self.side, self) is not self:
                refuse_overlap(ring, self.side)
        if self._outer_entered and self._call is not None:
            self._ring._check_open(self._call)
        self._outer_entered = True

    def __exit__(self, *raised: object) -> None:
        if self._exited:
            return
        self._exiting = self._exiting or self._ring._running_calls.get(self.side) is self
        if self._exiting:
            if self._ring._running_calls.get(self.side) is self:
                del self._ring._running_calls[self.side]
            if self.done:
                self._wake()
        self._exited = True

    def _wake(self) -> None:
        self._ring._wake_consumer()


class TakeCall(PutCall):
    """Marks that a call of the consumer is running, so that the ring refuses a second call.

    The ring's method stores in ``done`` how many elements it has taken out. If ``done`` is not 0,
    ``__exit__`` wakes the producer. The method runs ``with inside, inside``: it enters the object
    twice. If a ``KeyboardInterrupt`` stops the inner ``__exit__``, the outer one removes the mark.
    """

    __slots__ = ()

    side = "consumer"

    def _wake(self) -> None:
        self._ring._wake_producer()


class BoundedRing:
    """The common base of rings: closing, waiting, and the check that calls do not overlap."""

    _put_call: type[Any] = PutCall
    _take_call: type[Any] = TakeCall

    def __init__(self, capacity: int) -> None:
        self._capacity = check_capacity("capacity", capacity)
        # The lock is reentrant: while a thread holds it, the garbage collector may run any code on
        # that thread, such as disarm().
        self._lock = threading.RLock()
        self._waiters = Waiters()
        # Maps a side, "producer" or "consumer", to the call that is running on this side.
        self._running_calls: dict[str, PutCall] = {}
        self._closed = False
        self._error: BaseException | None = None
        self._waker: Callable[[], object] | None = None
        self._producer_waker: Callable[[], object] | None = None
        # Maps a side, "producer" or "consumer", to a pair: the waiting call of aput or aget, and
        # the waker (a ``Bell``) that wakes this call. disarm() removes only a waker of arm(). If it
        # removed the ``Bell``, the call would wait for ever.
        self._awaiting: dict[str, tuple[PutCall, Bell]] = {}
        self._creator = os.getpid()

    @property
    def capacity(self) -> int:
        """The largest number of elements (or records) in the ring."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. The ring may still hold elements."""
        return self._closed

    def __len__(self) -> int:
        raise NotImplementedError

    # -- checks ------------------------------------------------------------------------------------

    def _check_open(self, call: str) -> None:
        if self.closed:
            raise RingClosed(f"{call} on a closed ring")

    # -- waiting for elements or for room ----------------------------------------------------------

    def arm(self, waker: Callable[[], object], /) -> bool:
        """Have ``waker()`` called once, when the next element is put in or the ring is closed.

        The thread that puts the element in, or closes the ring, calls ``waker``. So a consumer can
        wait without blocking a thread. ``get`` removes the waker.

        Args:
            waker: A plain function. If it raises an exception, the call that puts the element in
                raises this exception.

        Returns:
            ``False`` if the ring is closed or has an element already. Then no waker is set.
        """
        check_waker(waker)
        check_same_process(self, self._creator)
        inside = TakeCall(self)
        with inside, inside, self._lock:
            self._waker = None if self._has_data() else waker
            return self._waker is not None

    def disarm(self) -> None:
        """Remove the waker that ``arm`` set. A call of the waker that has begun goes on."""
        with self._lock:
            if "consumer" not in self._awaiting:
                self._waker = None

    def arm_producer(self, waker: Callable[[], object], /) -> bool:
        """Have ``waker()`` called once, when the next element is taken out or the ring is closed.

        The thread that takes the element out, or closes the ring, calls ``waker``. So a producer
        can wait without blocking a thread. ``put`` removes the waker.

        Args:
            waker: A plain function. Its exceptions go to ``sys.unraisablehook``. If ``get`` raised
                them, the element that ``get`` has taken out would be lost.

        Returns:
            ``False`` if the ring is closed or has room already. Then no waker is set.
        """
        check_waker(waker)
        check_same_process(self, self._creator)
        inside = PutCall(self)
        with inside, inside, self._lock:
            self._producer_waker = None if self._has_room() else waker
            return self._producer_waker is not None

    def disarm_producer(self) -> None:
        """Remove the waker that ``arm_producer`` set. See ``disarm``."""
        with self._lock:
            if "producer" not in self._awaiting:
                self._producer_waker = None

    def _has_data(self) -> bool:
        return len(self) > 0 or self._closed

    def _has_room(self) -> bool:
        return len(self) < self._capacity or self._closed

    def _wait_for_data(self, timeout: float | None) -> None:
        """Block the thread until the ring has an element. Calls of the consumer use this.

        If the ring is closed and empty, raise the argument of ``close``, or ``RingClosed``.
        """
        with self._lock:
            self._waker = None
        if not self._wait_for(self._has_data, timeout):
            raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
        with self._lock:
            self._check_data()

    def _wait_for_room(self, call: str, timeout: float | None) -> None:
        """Block the thread until the ring has room. If the ring is closed, raise ``RingClosed``."""
        with self._lock:
            self._producer_waker = None
        if not self._wait_for(self._has_room, timeout):
            raise TimeoutError(f"the ring stayed full for {timeout} seconds")
        self._check_open(call)

    def _check_data(self) -> None:
        if len(self) == 0:
            raise end_error(self._error)

    async def _await_data(self, inside: PutCall) -> None:
        """Await an element. ``inside``, a ``TakeCall`` (and ``PutCall``), marks the waiting call.

        If the ring is closed and empty, raise the argument of ``close``, or ``RingClosed``.
        """
        self._waker = None
        while True:
            bell = Bell()
            with self._lock:
                if self._has_data():
                    self._check_data()
                    return
                check_same_process(self, self._creator)
                self._waker, self._awaiting[inside.side] = bell, (inside, bell)
            try:
                await bell.future
            finally:
                self._end_awaiting(inside)

    async def _await_room(self, inside: PutCall, call: str) -> None:
        self._producer_waker = None
        while True:
            bell = Bell()
            with self._lock:
                if self._has_room():
                    self._check_open(call)
                    return
                check_same_process(self, self._creator)
                self._producer_waker, self._awaiting[inside.side] = bell, (inside, bell)
            try:
                await bell.future
            finally:
                self._end_awaiting(inside)

    def _end_awaiting(self, inside: PutCall) -> bool:
        """Remove the waker of the ``aput`` or ``aget`` that ``inside`` marks: its wait is over.

        Return ``False`` if ``_end_lost_call`` did so before, because the call's loop was closed.
        """
        with self._lock:
            if self._awaiting.get(inside.side, (None,))[0] is not inside:
                return False
            del self._awaiting[inside.side]
            if inside.side == "consumer":
                self._waker = None
            else:
                self._producer_waker = None
            return True

    def _end_lost_call(self, side: str) -> bool:
        """End the ``aput`` or ``aget`` that waits on ``side``, if its event loop was closed.

        ``side`` is ``"producer"`` or ``"consumer"``. Such a call never continues, so the ring would
        refuse all later calls of the producer or consumer. Return whether a call was ended.
        """
        inside, bell = self._awaiting.get(side, (None, None))
        if inside is None or bell is None or not bell.is_lost() or not self._end_awaiting(inside):
            return False
        inside.__exit__()
        return True

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        def holds() -> bool:
            with self._lock:
                return condition()

        if holds():
            return True
        check_same_process(self, self._creator)
        return self._waiters.wait_for(holds, timeout)

    def _wake_consumer(self) -> None:
        """Call the consumer's waker, after elements were put in.

        The caller must hold no lock, because the waker is user code.
        """
        with self._lock:  # no other thread may change _waker between the read and the write
            waker, self._waker = self._waker, None
        if waker is not None:
            waker()

    def _wake_producer(self) -> None:
        """Call the producer's waker, after elements were taken out.

        The caller must hold no lock, because the waker is user code.
        """
        with self._lock:
            waker, self._producer_waker = self._producer_waker, None
        if waker is not None:
            wake_quietly(waker)

    # -- methods that any thread may call ----------------------------------------------------------

    def close(self, error: BaseException | None = None) -> None:
        """Accept no more elements. Only the first call has an effect.

        Args:
            error: The exception that ``get`` raises when the ring is empty. Default:
                ``RingClosed``.

        Raises:
            TypeError: ``error`` is not an exception instance.
        """
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
        with self._lock:
            if self.closed:
                return
            self._error = error
            self._close()
        self._wake_both()

    def _close(self) -> None:
        self._closed = True
        self._waiters.wake_all()

    def _wake_both(self) -> None:
        try:
            self._wake_consumer()
        finally:
            self._wake_producer()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<{type(self).__name__} {len(self)}/{self._capacity}{state}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


class SpscRing(BoundedRing, Generic[T]):
    """A bounded first-in first-out buffer between one producer and one consumer.

    The producer's calls are ``offer``, ``offer_many``, ``put``, ``aput`` and ``arm_producer``; the
    consumer's are ``poll``, ``poll_many``, ``get``, ``aget`` and ``arm``. Any thread may make these
    calls. But if the producer makes a call before its previous call has ended, the new call raises
    ``OverlappingCallsError``, even if the previous call only waits. The same holds for the
    consumer. Any thread may use ``close``, ``closed`` and ``len`` at any time.

    Args:
        capacity: The largest number of elements in the ring, 1 or more.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, element: T, /) -> bool:
        """Put ``element`` in, without waiting.

        Args:
            element: The element; not ``None``.

        Returns:
            ``False`` when the ring is full.

        Raises:
            RingClosed: The ring is closed.
        """
        return self._offer([element]) == 1

    def offer_many(self, elements: list[T] | tuple[T, ...], start: int = 0) -> int:
        """Put in as many of ``elements[start:]`` as fit. Return how many were put in.

        Args:
            elements: A list or tuple.
            start: The index of the first element to put in.

        Raises:
            TypeError: An element that would be put in is ``None``. Then no element is put in.
            RingClosed: The ring is closed.
        """
        if not isinstance(elements, list | tuple):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        return self._offer(elements[check_count("start", start) :])

    def _offer(self, elements: list[T] | tuple[T, ...]) -> int:
        inside = PutCall(self)
        with inside, inside, self._lock:
            self._check_open("offer")
            fitting = elements[: self._capacity - len(self._items)]
            if not fitting:
                check_element(elements[0] if elements else ...)
            for element in fitting:
                check_element(element)
            self._waiters.wake_all()
            inside.done = len(fitting)
            self._items.extend(fitting)
        return len(fitting)

    def put(self, element: T, timeout: float | None = None) -> None:
        """Put ``element`` in. First wait for room.

        Args:
            element: The element; not ``None``.
            timeout: Seconds. Default: no limit.

        Raises:
            TimeoutError: There was no room for ``timeout`` seconds.
            RingClosed: The ring is closed.
        """
        check_element(element)
        timeout = check_timeout(timeout)
        inside = self._put_call(self, "put")
        with inside, inside:
            self._wait_for_room("put", timeout)
            self._put_one(inside, element)

    async def aput(self, element: T) -> None:
        """Put ``element`` in. First await room.

        The consumer may be in another thread or loop. If the task that awaits ``aput`` is
        cancelled, the element is not put in.

        Args:
            element: The element; not ``None``.

        Raises:
            RingClosed: The ring is closed.
        """
        check_element(element)
        inside = self._put_call(self, "aput")
        with inside, inside:
            await self._await_room(inside, "aput")
            self._put_one(inside, element)

    def _put_one(self, inside: Any, element: T) -> None:
        with self._lock:
            self._check_open(inside._call)
            self._waiters.wake_all()
            inside.done = 1
            self._items.append(element)

    def poll(self) -> T | None:
        """Take out the oldest element. Return ``None`` if the ring is empty, even if closed."""
        taken = self.poll_many(1)
        return taken[0] if taken else None

    def poll_many(self, max: int, /) -> list[T]:
        """Take out up to ``max`` elements. Return them in a list, the oldest first.

        Args:
            max: The largest number of elements to take out.
        """
        count = check_count("max", max)
        inside = TakeCall(self)
        taken: list[T] = []
        with inside, inside, self._lock:
            self._waiters.wake_all()
            inside.done = min(count, len(self._items))
            taken += [self._items.popleft() for _ in range(inside.done)]
        return taken

    def get(self, timeout: float | None = None) -> T:
        """Take out the oldest element. First wait until there is an element.

        Args:
            timeout: Seconds. Default: no limit.

        Raises:
            TimeoutError: There was no element for ``timeout`` seconds.
            RingClosed: The ring is closed and empty, and ``close`` was given no error.
        """
        timeout = check_timeout(timeout)
        inside = self._take_call(self)
        with inside, inside:
            self._wait_for_data(timeout)
            return self._take_one(inside)

    async def aget(self) -> T:
        """Take out the oldest element. First await an element.

        If the ring is closed and empty, ``aget`` raises the same error as ``get``. The producer may
        be in another thread or loop. If the task that awaits ``aget`` is cancelled, nothing is
        taken out.
        """
        inside = self._take_call(self)
        with inside, inside:
            await self._await_data(inside)
            return self._take_one(inside)

    def _take_one(self, inside: Any) -> T:
        with self._lock:
            self._waiters.wake_all()
            inside.done = 1
            return self._items.popleft()
