"""The executable specification of the core: plain, obvious Python, one lock per object.

Every test of the core passes on this module, and the compiled backends are compared with it. It is
also a backend of its own (``RSTREAMS_FAST_BACKEND=python``), for where nothing can be
compiled. Read it to learn what a primitive does; the compiled ones do the same, faster.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._common import (
    CANCELLED,
    MISSING,
    TERMINATED,
    Emission,
    RunStatus,
    cancel_quietly,
    check_capacity,
    check_count,
    check_element,
    check_error,
    check_program,
    check_request,
    check_same_process,
    check_subscriber,
    check_timeout,
    check_waker,
    end_error,
    none_returned,
    refuse_overlap,
    refuse_pickle,
    sleeps,
    wake_quietly,
)
from rstreams_fast.core._python_baton import Baton
from rstreams_fast.core._python_bursts import BurstIterator
from rstreams_fast.errors import (
    BufferOverflow,
    DemandExceeded,
    NoneSignal,
    OverlappingCalls,
    RingClosed,
    report_dropped,
    report_unraisable,
    shown,
)

if TYPE_CHECKING:
    from rstreams_fast.core._python_records import RecordRing
    from rstreams_fast.core._python_window import CallWindow

__all__ = [
    "Baton",
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "FusedRun",
    "RecordRing",
    "SignalSerializer",
    "SpscRing",
]


def __getattr__(name: str) -> Any:
    # The window alone needs asyncio, which is not loaded before somebody asks for it.
    if name == "CallWindow":
        from rstreams_fast.core._python_window import CallWindow

        return CallWindow
    if name == "RecordRing":  # it stands on this module
        from rstreams_fast.core._python_records import RecordRing

        return RecordRing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class DemandCounter:
    """How many elements were requested and not yet delivered. Any thread may call any method."""

    __slots__ = ("__weakref__", "_lock", "_value")

    def __init__(self, initial: int = 0) -> None:
        # Reentrant, for the collector and signal handlers may run anything anywhere, and so use the
        # counter. Between a look at the value and its change no call is made: none comes in there.
        self._lock = threading.RLock()
        self._value = min(check_count("initial", initial), UNBOUNDED)

    def request(self, n: int, /) -> int:
        """Add ``n``; return the demand before it, or the sentinel: then this was a NOP (§3.6).

        Saturates at ``UNBOUNDED``, and stays there (§3.17). ``n <= 0`` is a ``ValueError``, a
        non-int a ``TypeError``; both change nothing (§3.9).
        """
        if self._value < 0:
            return self._value
        n = check_request(n)  # before the lock is taken: __index__ may use this counter, too
        with self._lock:
            before = self._value
            if before >= 0:
                self._value = before + n if n < UNBOUNDED - before else UNBOUNDED
            return before

    def fulfil(self, n: int = 1, /) -> int:
        """Take ``n`` delivered elements off and return what is left, or the sentinel.

        More than was requested is a ``DemandExceeded`` and changes nothing (§1.1).
        """
        n = check_count("n", n)
        with self._lock:
            if self._value < 0 or self._value == UNBOUNDED:
                return self._value
            if n > self._value:
                raise DemandExceeded(
                    f"§1.1: {shown(n)} elements delivered, only {self._value} were requested"
                )
            self._value -= n
            return self._value

    def cancel(self) -> bool:
        """End the demand for good; ``True`` if this call was the one that ended it."""
        return self._end(CANCELLED)

    def terminate(self) -> bool:
        """End the demand because the stream has ended; ``True`` if this call ended it."""
        return self._end(TERMINATED)

    def _end(self, sentinel: int) -> bool:
        with self._lock:
            if self._value < 0:
                return False
            self._value = sentinel
            return True

    @property
    def value(self) -> int:
        """The demand, or the sentinel ``CANCELLED`` or ``TERMINATED``."""
        return self._value

    @property
    def pending(self) -> int:
        """The demand; 0 after ``cancel`` or ``terminate``."""
        return max(self._value, 0)

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel`` came first."""
        return self._value == CANCELLED

    @property
    def terminated(self) -> bool:
        """Whether ``terminate`` came first."""
        return self._value == TERMINATED

    def __repr__(self) -> str:
        words = {CANCELLED: "cancelled", TERMINATED: "terminated", UNBOUNDED: "unbounded"}
        return f"<DemandCounter {words.get(self._value, self._value)}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


class Putting:
    """One call in the producer's side of a ring, for a ``with inside, inside``.

    ``done`` is to say how many were put in; so that who waits for them is woken, on the way out.
    An interrupt may come before the first step of an ``__exit__``. The side is left by the inner
    one, and by the outer one what the inner one did not come to.
    """

    __slots__ = ("_leaving", "_left", "_ring", "_surrounded", "done")

    side = "producer"

    def __init__(self, ring: BoundedRing) -> None:
        self._ring = ring
        self._surrounded = self._leaving = self._left = False
        self.done = 0

    def __enter__(self) -> None:
        if self._surrounded and self._ring._inside.setdefault(self.side, self) is not self:
            refuse_overlap(self._ring, self.side)
        self._surrounded = True

    def __exit__(self, *raised: object) -> None:
        if self._left:
            return
        self._leaving = self._leaving or self._ring._inside.get(self.side) is self
        if self._leaving:
            if self._ring._inside.get(self.side) is self:
                del self._ring._inside[self.side]
            if self.done:
                self._wake()
        self._left = True

    def _wake(self) -> None:
        self._ring._wake_consumer()


class Taking(Putting):
    """The same in the consumer's side."""

    __slots__ = ()

    side = "consumer"

    def _wake(self) -> None:
        self._ring._wake_producer()


class BoundedRing:
    """What rings have in common: two sides, one call on each at a time; closing; waiting."""

    _capacity: int

    def __init__(self) -> None:
        # Reentrant, for the collector may run anything anywhere, and so disarm. To be entered as
        # it is: an interrupt may come within the condition's own __enter__.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside: dict[str, Putting] = {}  # by side
        self._closed = False
        self._error: BaseException | None = None
        self._waker: Callable[[], object] | None = None
        self._producer_waker: Callable[[], object] | None = None
        self._data_awaited = False  # by a coroutine, whose waker is nobody else's to forget
        self._room_awaited = False
        self._creator = os.getpid()

    @property
    def capacity(self) -> int:
        """The bound, in elements."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. Elements may still be inside."""
        return self._closed

    def __len__(self) -> int:
        raise NotImplementedError

    # -- sides -----------------------------------------------------------------------------------

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise RingClosed(f"{call} on a closed ring")

    # -- waiting ---------------------------------------------------------------------------------

    def arm(self, waker: Callable[[], object], /) -> bool:
        """Have ``waker()`` called, once, by whoever next puts an element in, or closes the ring.

        The consumer's way to wait without a thread. ``False`` if there is an element, or the ring
        is closed: look again. What the waker raises leaves through the call that put the element
        in. ``get`` disarms.
        """
        check_waker(waker)
        check_same_process(self, self._creator)
        inside = Taking(self)
        with inside, inside, self._lock:
            self._waker = None if self._has_data() else waker
            return self._waker is not None

    def disarm(self) -> None:
        """Forget the waker that ``arm`` was given, if any. Another thread may be about to call it
        all the same.
        """
        with self._lock:
            if not self._data_awaited:
                self._waker = None

    def arm_producer(self, waker: Callable[[], object], /) -> bool:
        """Have ``waker()`` called, once, by whoever next takes an element out, or closes the ring.

        The producer's way to wait without a thread. ``False`` if there is room, or the ring is
        closed: look again. What ``Exception`` the waker raises goes to ``sys.unraisablehook``, for
        it must not keep elements from who took them out. ``put`` disarms.
        """
        check_waker(waker)
        check_same_process(self, self._creator)
        inside = Putting(self)
        with inside, inside, self._lock:
            self._producer_waker = None if self._has_room() else waker
            return self._producer_waker is not None

    def disarm_producer(self) -> None:
        """Forget the producer's waker. See ``disarm``."""
        with self._lock:
            if not self._room_awaited:
                self._producer_waker = None

    def _has_data(self) -> bool:
        return len(self) > 0 or self._closed

    def _has_room(self) -> bool:
        return len(self) < self._capacity or self._closed

    def _wait_for_data(self, timeout: float | None) -> None:
        """Wait, inside the consumer's side and with the lock, for an element; raise at the end."""
        self._waker = None
        if not self._wait_for(self._has_data, timeout):
            raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
        self._check_data()

    def _wait_for_room(self, call: str, timeout: float | None) -> None:
        """Wait, inside the producer's side and with the lock, for room."""
        self._producer_waker = None
        if not self._wait_for(self._has_room, timeout):
            raise TimeoutError(f"the ring stayed full for {timeout} seconds")
        self._check_open(call)

    def _check_data(self) -> None:
        if len(self) == 0:
            raise end_error(self._error)

    async def _await_data(self) -> None:
        """The same as ``_wait_for_data``, without the lock, in a coroutine."""
        from rstreams_fast.core._awaiting import new_bell

        self._waker = None
        while True:
            future, bell = new_bell()
            with self._lock:
                if self._has_data():
                    self._check_data()
                    return
                check_same_process(self, self._creator)
                self._waker, self._data_awaited = bell, True
            try:
                await future
            finally:
                self._waker, self._data_awaited = None, False

    async def _await_room(self, call: str) -> None:
        from rstreams_fast.core._awaiting import new_bell

        self._producer_waker = None
        while True:
            future, bell = new_bell()
            with self._lock:
                if self._has_room():
                    self._check_open(call)
                    return
                check_same_process(self, self._creator)
                self._producer_waker, self._room_awaited = bell, True
            try:
                await future
            finally:
                self._producer_waker, self._room_awaited = None, False

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        if condition():
            return True
        check_same_process(self, self._creator)
        return any(self._changed.wait_for(condition, sleep) for sleep in sleeps(timeout))

    def _wake_consumer(self) -> None:
        """Without the lock, after elements were put in."""
        with self._lock:  # or a waker that came between the look and the clearing would be lost
            waker, self._waker = self._waker, None
        if waker is not None:
            waker()

    def _wake_producer(self) -> None:
        """Without the lock, after elements were taken out."""
        with self._lock:
            waker, self._producer_waker = self._producer_waker, None
        if waker is not None:
            wake_quietly(waker)

    # -- anybody ---------------------------------------------------------------------------------

    def close(self, error: BaseException | None = None) -> None:
        """Let nothing more in. The first call counts; ``get`` raises ``error`` at the end."""
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
        with self._lock:
            if self._closed:
                return
            self._closed, self._error = True, error
            self._changed.notify_all()
        try:
            self._wake_consumer()
        finally:
            self._wake_producer()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__name__} {len(self)}/{self._capacity}{state}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


class SpscRing(BoundedRing):
    """A bounded first-in first-out buffer between one producer and one consumer.

    The producer's calls are ``offer``, ``offer_many``, ``put``, ``aput``, ``arm_producer``; the
    consumer's ``poll``, ``poll_many``, ``get``, ``aget``, ``arm``. Two calls that overlap on one
    side raise ``OverlappingCalls``; which thread makes them does not matter, and who waits is
    inside. ``close``, ``closed`` and ``len`` are anybody's.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = check_capacity("capacity", capacity)
        self._items: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, element: Any, /) -> bool:
        """Put ``element`` in; ``False`` when full. ``RingClosed`` when closed."""
        return self._offer([element]) == 1

    def offer_many(self, elements: list[Any] | tuple[Any, ...], start: int = 0) -> int:
        """Put in as many of ``elements[start:]`` as fit and return how many that were.

        An element that is ``None`` among those that would fit is a ``TypeError`` and nothing is put
        in.
        """
        if not isinstance(elements, list | tuple):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        return self._offer(elements[check_count("start", start) :])

    def _offer(self, elements: list[Any] | tuple[Any, ...]) -> int:
        inside = Putting(self)
        with inside, inside, self._lock:
            self._check_open("offer")
            fitting = elements[: self._capacity - len(self._items)]
            if not fitting:
                check_element(elements[0] if elements else ...)
            for element in fitting:
                check_element(element)
            self._changed.notify_all()
            inside.done = len(fitting)
            self._items.extend(fitting)
        return len(fitting)

    def put(self, element: Any, timeout: float | None = None) -> None:
        """Put ``element`` in, waiting for room. ``TimeoutError`` after ``timeout`` seconds."""
        check_element(element)
        timeout = check_timeout(timeout)
        inside = Putting(self)
        with inside, inside, self._lock:
            self._check_open("put")
            self._wait_for_room("put", timeout)
            self._put_one(inside, element)

    async def aput(self, element: Any) -> None:
        """Put ``element`` in, awaiting room.

        The other side may be in another thread or loop. When the awaiting task is cancelled, the
        element has not been put in.
        """
        check_element(element)
        inside = Putting(self)
        with inside, inside:
            await self._await_room("aput")
            with self._lock:
                self._check_open("aput")
                self._put_one(inside, element)

    def _put_one(self, inside: Putting, element: Any) -> None:
        self._changed.notify_all()
        inside.done = 1
        self._items.append(element)

    def poll(self) -> Any | None:
        """Take the oldest element out; ``None`` when empty, closed or not."""
        taken = self.poll_many(1)
        return taken[0] if taken else None

    def poll_many(self, max: int, /) -> list[Any]:
        """Take up to ``max`` elements out, oldest first."""
        count = check_count("max", max)
        inside = Taking(self)
        taken: list[Any] = []
        with inside, inside, self._lock:
            self._changed.notify_all()
            inside.done = min(count, len(self._items))
            taken += [self._items.popleft() for _ in range(inside.done)]
        return taken

    def get(self, timeout: float | None = None) -> Any:
        """Take the oldest element out, waiting for one.

        ``TimeoutError`` after ``timeout`` seconds. Once closed and empty: raises the error given to
        ``close``, else ``RingClosed``.
        """
        timeout = check_timeout(timeout)
        inside = Taking(self)
        with inside, inside, self._lock:
            self._wait_for_data(timeout)
            return self._take_one(inside)

    async def aget(self) -> Any:
        """Take the oldest element out, awaiting one. At the end it raises what ``get`` does.

        The other side may be in another thread or loop. When the awaiting task is cancelled,
        nothing has been taken out.
        """
        inside = Taking(self)
        with inside, inside:
            await self._await_data()
            with self._lock:
                return self._take_one(inside)

    def _take_one(self, inside: Putting) -> Any:
        self._changed.notify_all()
        inside.done = 1
        return self._items.popleft()


class SignalSerializer:
    """Lets any number of threads signal one subscriber, who sees one signal at a time (§1.3).

    The thread that finds nobody at work delivers; the others leave their element in a mailbox of
    ``capacity`` elements and go. Each thread's elements stay in order. The first terminal signal
    counts and comes last (§1.7): ``on_complete`` after everything queued; ``on_error`` before it,
    unless ``delay_error``. A signal from within ``on_next`` is queued, so recursion has depth 1
    (§3.3).

    When the mailbox is full, ``on_next`` with ``on_full="error"`` ends the stream with
    ``BufferOverflow``, and with ``"wait"`` waits (from within the subscriber that would wait for
    itself, so there it is the error, too). With ``fail_fast`` nothing is queued: ``on_next`` while
    another thread delivers raises ``OverlappingCalls``, and ``try_next`` answers ``BUSY``.

    It is its own subscription: ``request`` goes upstream, ``cancel`` stops everything. What the
    subscriber raises cancels upstream and goes to ``on_dropped_error`` (§2.13), never to a
    signaller; only ``KeyboardInterrupt`` and its like leave through the delivering thread.
    """

    def __init__(
        self,
        subscriber: Any,
        *,
        capacity: int = 1024,
        on_full: str = "error",
        delay_error: bool = False,
        fail_fast: bool = False,
    ) -> None:
        check_subscriber(subscriber)
        if on_full not in ("error", "wait"):
            raise ValueError(f"on_full must be 'error' or 'wait', got {on_full!r}")
        self._capacity = check_capacity("capacity", capacity)
        self._wait = on_full == "wait"
        self._delay_error = delay_error
        self._fail_fast = fail_fast
        self._subscriber = subscriber
        self._subscription: Any = None
        self._announce = False  # on_subscribe is the next signal to deliver
        self._mailbox: deque[Any] = deque()
        self._changed = threading.Condition()  # reentrant, as the lock of a DemandCounter
        self._creator = os.getpid()
        self._owner: int | None = None  # the thread that delivers
        self._terminal: BaseException | bool | None = None  # an error, or True for completion
        self._finished = False
        self._cancelled = False

    # -- signals, any thread ---------------------------------------------------------------------

    def on_subscribe(self, subscription: Any, /) -> None:
        """Pass the subscription on, wrapped; a second one is cancelled (§2.5)."""
        if subscription is None:
            raise NoneSignal("§2.13: subscription is None")
        with self._changed:
            first = self._subscription is None and not self._cancelled and not self._finished
            if first:
                self._subscription = subscription
                self._announce = True
                if not self._acquire():
                    return
        if first:
            self._drain()
        else:
            cancel_quietly(subscription)

    def on_next(self, element: Any, /) -> None:
        """Deliver or queue ``element``."""
        answer = self._next(element, wait=self._wait)
        if answer is Emission.FULL:
            subscription = self._subscription
            overflow = BufferOverflow(
                f"the mailbox of {self._capacity} elements is full, one was dropped"
            )
            # Of several threads that overflow it, and of those that end the stream, one counts.
            if self._terminate(overflow) and subscription is not None:
                cancel_quietly(subscription)
        elif answer is Emission.BUSY:
            raise OverlappingCalls("§1.3: another thread is signalling, and fail_fast is set")

    def try_next(self, element: Any, /) -> Emission:
        """Deliver or queue ``element`` if that needs no waiting, and say how it went."""
        return self._next(element, wait=False)

    def on_error(self, error: BaseException, /) -> None:
        """Deliver ``error`` as the last signal."""
        check_error(error)
        if not self._terminate(error):
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """Deliver completion as the last signal."""
        self._terminate(True)

    # -- subscription, any thread ----------------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask upstream for ``n`` more elements."""
        subscription = self._subscription
        if subscription is not None:
            subscription.request(n)

    def cancel(self) -> None:
        """Cancel upstream, drop what is queued and forget the subscriber (§3.13)."""
        with self._changed:
            if self._cancelled or self._finished:
                return
            self._cancelled = True
            subscription, self._subscription = self._subscription, None
            self._mailbox.clear()
            if self._owner is None:
                self._subscriber = None
            self._changed.notify_all()
        if subscription is not None:
            cancel_quietly(subscription)

    @property
    def queued(self) -> int:
        """How many elements wait in the mailbox."""
        return len(self._mailbox)

    @property
    def capacity(self) -> int:
        """The mailbox's bound, in elements."""
        return self._capacity

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    # -- delivery --------------------------------------------------------------------------------

    def _state(self) -> Emission:
        if self._cancelled:
            return Emission.CANCELLED
        return Emission.OK if self._terminal is None else Emission.TERMINATED

    def _acquire(self) -> bool:
        if self._owner is not None:
            return False
        self._owner = threading.get_ident()
        return True

    def _next(self, element: Any, *, wait: bool) -> Emission:
        check_element(element)
        with self._changed:
            if wait and self._owner != threading.get_ident():
                check_same_process(self, self._creator)
                for sleep in sleeps(None):
                    if self._changed.wait_for(
                        lambda: self._state() or len(self._mailbox) < self._capacity, sleep
                    ):
                        break
            state = self._state()
            if state is not Emission.OK:
                return state
            if self._fail_fast and self._owner is not None:
                return Emission.BUSY
            if len(self._mailbox) >= self._capacity:
                return Emission.FULL
            self._mailbox.append(element)
            if not self._acquire():
                return Emission.OK
        self._drain()
        return Emission.OK

    def _terminate(self, terminal: BaseException | bool) -> bool:
        with self._changed:
            if self._state() is not Emission.OK:
                return False
            self._terminal = terminal
            self._changed.notify_all()
            if not self._acquire():
                return True
        self._drain()
        return True

    def _pick(self) -> Callable[[Any], None] | None:
        """The next signal to deliver; ``None`` gives the drain up. Called with the lock held."""
        if not self._cancelled and not self._finished:
            if self._announce:
                self._announce = False
                return lambda subscriber: subscriber.on_subscribe(self)
            terminal = self._terminal
            if isinstance(terminal, BaseException) and not self._delay_error:
                self._mailbox.clear()
            if self._mailbox:
                element = self._mailbox.popleft()
                return lambda subscriber: subscriber.on_next(element)
            if terminal is not None:
                self._finished = True
                self._subscription = None
                if isinstance(terminal, BaseException):
                    return lambda subscriber: subscriber.on_error(terminal)
                return lambda subscriber: subscriber.on_complete()
        if self._cancelled or self._finished:
            self._mailbox.clear()
            self._subscriber = self._subscription = None
        self._owner = None
        return None

    def _drain(self) -> None:
        while True:
            with self._changed:
                signal = self._pick()
                self._changed.notify_all()
                if signal is None:
                    return
                subscriber = self._subscriber
            try:
                signal(subscriber)
            except BaseException as raised:
                del signal, subscriber
                self.cancel()
                if isinstance(raised, Exception):
                    report_dropped(raised, "§2.13: a subscriber raised")
                else:
                    with self._changed:
                        self._pick()
                    raise
            else:
                del signal, subscriber


class _StageFailed(Exception):
    def __init__(self, error: Exception) -> None:
        self.error = error


class _SlotFailed(Exception):
    def __init__(self, error: Exception) -> None:
        self.error = error


_ABSORBED: Final = object()
_DROPPED: Final = object()


class FusedRun:
    """A run of stages without a boundary, executed as one loop over its source.

    ``source`` is an iterator, an ``SpscRing`` (whose emptiness is not its end), or ``None`` when
    elements come through ``push``. ``program`` is a tuple of stages::

        ("map", f) ("map_not_none", f) ("filter", p) ("take", n) ("take_while", p) ("skip", n)
        ("scan", f, seed) ("reduce", f, seed) ("batch", n) ("do_on_next", f)

    ``scan`` emits each new accumulation (the seed itself is not emitted); with ``MISSING`` as the
    seed the first element passes as it is. ``reduce`` emits one element, at the end. ``slot`` is
    called with every result (or, if it is an ``SpscRing``, offered it: its capacity must cover the
    demand). No more than ``demand`` says is delivered (§1.1), and after ``demand.cancel()``, even
    by the slot itself, no further element.

    One caller at a time; that is the drain's owner. An ``Exception`` is an answer (``FAILED``,
    ``SLOT_FAILED``, with ``error``); ``KeyboardInterrupt`` and its like are raised. ``None`` from a
    source or a ``map`` is ``FAILED`` with a ``TypeError`` that names the stage; ``do_on_next``
    errors go to ``sys.unraisablehook``.
    """

    #: What sources and slots, and the demand, may be.
    _ring_type: type[Any] = SpscRing
    _demand_type: type[Any] = DemandCounter

    def __init__(
        self,
        source: Any,
        program: tuple[tuple[Any, ...], ...],
        slot: Callable[[Any], Any] | SpscRing,
        demand: DemandCounter,
    ) -> None:
        self._busy = threading.Lock()
        self._clear_later = False
        self._pull = self._puller(source)
        self._program = check_program(program)
        self._slot: Any = slot
        self._to_ring = isinstance(slot, self._ring_type)
        if isinstance(slot, self._ring_type):
            self._slot = slot.offer
        elif not callable(slot):
            raise TypeError(f"slot must be callable or an SpscRing, got {type(slot).__name__}")
        if not isinstance(demand, self._demand_type):
            raise TypeError(f"demand must be a DemandCounter, got {type(demand).__name__}")
        self._demand: DemandCounter = demand
        self._state = [self._initial_state(op) for op in self._program]
        # How many source elements one result takes at least: what demand allows to be pulled.
        self._ratio = 1
        for op in self._program:
            if op[0] == "batch":
                self._ratio = min(self._ratio * op[1], UNBOUNDED)
            elif op[0] == "reduce":
                self._ratio = UNBOUNDED
        self._ended = any(op[0] == "take" and op[1] == 0 for op in self._program)
        self.error: Exception | None = None
        """What the source, a stage or the slot raised."""
        self.refund = 0
        """After ``DROPPED``: how many elements may be asked upstream in place of that one."""
        self.pulled = 0
        """How many elements have been taken from the source or pushed."""

    def _puller(self, source: Any) -> Callable[[], Any]:
        """Return a function for the next element; StopIteration means "no more now"."""
        if isinstance(source, self._ring_type):

            def from_ring() -> Any:
                element = source.poll()
                if element is None:
                    raise StopIteration
                return element

            return from_ring
        iterator = iter(()) if source is None else iter(source)
        pull: Callable[[], Any] = iterator.__next__
        return pull

    @staticmethod
    def _initial_state(op: tuple[Any, ...]) -> Any:
        if op[0] in ("take", "skip"):
            return op[1]
        if op[0] in ("scan", "reduce"):
            return op[2]
        return [] if op[0] == "batch" else None

    @property
    def execution(self) -> str:
        """How this run executes: here, ``"interpreted"``."""
        return "interpreted"

    @property
    def ratio(self) -> int:
        """How many source elements one result takes at least (the product of batch sizes)."""
        return self._ratio

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    def drain(self, limit: int, /) -> RunStatus:
        """Pull, process and deliver one burst of at most ``limit`` source elements."""
        limit = check_count("limit", limit, 1)
        with self._owned():
            return self._drain(limit)

    def _drain(self, limit: int) -> RunStatus:
        demand = self._demand.value
        if demand < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        if demand == 0:
            return RunStatus.IDLE
        delivered = 0
        exhausted = False
        try:
            for _ in range(min(limit, demand * self._ratio)):
                try:
                    element = self._pull()
                except StopIteration:
                    exhausted = True
                    break
                except Exception as raised:
                    raise _StageFailed(raised) from None
                self.pulled += 1
                if element is None:
                    raise _StageFailed(NoneSignal("§2.13: the source produced None"))
                result = self._process(element, 0)
                if result is not _ABSORBED and result is not _DROPPED:
                    delivered += 1
                    self._deliver(result)
                if self._ended or self._demand.value < 0:
                    break
        except (_StageFailed, _SlotFailed) as failed:
            return self._fail(failed)
        finally:
            left = self._demand.fulfil(delivered)
        if left < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        if exhausted:
            return RunStatus.EXHAUSTED
        return RunStatus.MORE if left else RunStatus.IDLE

    def push(self, element: Any, /) -> RunStatus:
        """Process and deliver one element that came from upstream by itself.

        ``MORE`` when it was delivered or kept, ``DROPPED`` when it was filtered out. A delivery
        without demand is ``FAILED`` with ``DemandExceeded`` (§1.1).
        """
        check_element(element)
        with self._owned():
            return self._push(element)

    def _push(self, element: Any) -> RunStatus:
        if self._demand.value < 0:
            return RunStatus.CANCELLED
        if self._ended:
            return RunStatus.ENDED
        self.pulled += 1
        try:
            result = self._process(element, 0)
            if result is _DROPPED:
                return RunStatus.ENDED if self._ended else RunStatus.DROPPED
            if result is not _ABSORBED:
                if not self._fulfil_one():
                    return RunStatus.FAILED if self.error else RunStatus.CANCELLED
                self._deliver(result)
        except (_StageFailed, _SlotFailed) as failed:
            return self._fail(failed)
        if self._demand.value < 0:
            return RunStatus.CANCELLED
        return RunStatus.ENDED if self._ended else RunStatus.MORE

    def finish(self) -> RunStatus:
        """Deliver what batches and reductions still hold; the source has ended.

        ``IDLE`` when that needs demand: call again after the next request. ``DONE`` at the end.
        """
        with self._owned():
            return self._finish()

    def _finish(self) -> RunStatus:
        try:
            for index, op in enumerate(self._program):
                if self._demand.value < 0:
                    return RunStatus.CANCELLED
                held = self._state[index]
                if (op[0] == "batch" and held) or (op[0] == "reduce" and held is not MISSING):
                    if self._demand.value == 0:
                        return RunStatus.IDLE
                    self._state[index] = [] if op[0] == "batch" else MISSING
                    result = self._process(held, index + 1)
                    if result is not _ABSORBED and result is not _DROPPED:
                        if not self._fulfil_one():
                            return RunStatus.FAILED if self.error else RunStatus.CANCELLED
                        self._deliver(result)
        except (_StageFailed, _SlotFailed) as failed:
            return self._fail(failed)
        return RunStatus.CANCELLED if self._demand.value < 0 else RunStatus.DONE

    def clear(self) -> None:
        """Let go of source, program and slot (§3.13). Nothing else may be called afterwards.

        During another call, from within the slot for instance, it takes effect when that ends.
        """
        self._clear_later = True
        if self._busy.acquire(blocking=False):
            self._leave()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise OverlappingCalls("two calls overlap on a FusedRun")
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._clear_later:
            self._clear_later = False
            self._let_go()
        self._busy.release()

    def _let_go(self) -> None:
        self._pull = iter(()).__next__
        self._program = ()
        self._state = []
        self._slot = None
        self.error = None

    def _fail(self, failed: _StageFailed | _SlotFailed) -> RunStatus:
        self.error = failed.error
        slot = isinstance(failed, _SlotFailed)
        return RunStatus.SLOT_FAILED if slot else RunStatus.FAILED

    def _fulfil_one(self) -> bool:
        try:
            return self._demand.fulfil(1) >= 0
        except DemandExceeded as exceeded:
            self.error = exceeded
            return False

    def _deliver(self, element: Any) -> None:
        try:
            accepted = self._slot(element)
        except Exception as raised:
            raise _SlotFailed(raised) from None
        if self._to_ring and not accepted:
            raise _SlotFailed(BufferOverflow("the ring that takes the results is full"))

    def _process(self, element: Any, start: int) -> Any:
        """Pass ``element`` through the stages from ``start`` on."""
        refund = 1
        for index in range(start, len(self._program)):
            op = self._program[index]
            try:
                element = self._step(index, op, element)
            except Exception as raised:
                raise _StageFailed(raised) from None
            if element is _ABSORBED:
                return _ABSORBED
            if element is _DROPPED:
                self.refund = refund
                return _DROPPED
            if op[0] == "batch":
                refund *= op[1]
        return element

    def _step(self, index: int, op: tuple[Any, ...], element: Any) -> Any:
        """One stage; its own exceptions are the stage's failure."""
        match op[0]:
            case "map":
                result = op[1](element)
                if result is None:
                    raise none_returned(index, "map", op[1])
                return result
            case "map_not_none":
                result = op[1](element)
                return _DROPPED if result is None else result
            case "filter":
                return element if op[1](element) else _DROPPED
            case "do_on_next":
                try:
                    op[1](element)
                except Exception as raised:
                    report_unraisable(raised, "do_on_next", op[1])
                return element
            case "skip":
                if self._state[index] > 0:
                    self._state[index] -= 1
                    return _DROPPED
                return element
            case "take":
                if self._state[index] == 0:
                    return _DROPPED
                self._state[index] -= 1
                if self._state[index] == 0:
                    self._ended = True
                return element
            case "take_while":
                if self._state[index] is None and op[1](element):
                    return element
                self._state[index] = self._ended = True
                return _DROPPED
            case "scan" | "reduce":
                held = self._state[index]
                result = element if held is MISSING else op[1](held, element)
                if result is None:
                    raise none_returned(index, op[0], op[1])
                self._state[index] = result
                return result if op[0] == "scan" else _ABSORBED
            case _:  # batch
                self._state[index].append(element)
                if len(self._state[index]) < op[1]:
                    return _ABSORBED
                result, self._state[index] = self._state[index], []
                return result
