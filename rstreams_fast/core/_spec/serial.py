"""``SignalSerializer``: several threads signal one subscriber, which gets one signal at a time."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Subscriber
from rstreams_fast.core._common import (
    Emission,
    Waiters,
    cancel_quietly,
    check_same_process,
    refuse_pickle,
)
from rstreams_fast.errors import (
    BufferOverflowError,
    NoneSignalError,
    OverlappingCallsError,
    check_element,
    check_error,
    check_subscriber,
    report_dropped,
)

__all__ = ["SignalSerializer"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers read this, but no program imports it

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class SignalSerializer(Generic[T]):
    """Lets any number of threads signal one subscriber, which gets one signal at a time (§1.3).

    A thread that signals an element delivers it, if no other thread is delivering. Otherwise the
    thread puts the element into a mailbox (a queue), and the delivering thread delivers it later.
    Each thread's elements stay in order. Only the first terminal signal has an effect (§1.7).
    ``on_complete`` comes after all queued elements. ``on_error`` comes before the queued elements,
    which are dropped; with ``delay_error`` it comes after them. A signal from within ``on_next`` is
    queued, so recursion has depth 1 (§3.3).

    The serializer is also the subscription of its subscriber: ``request`` goes upstream, and
    ``cancel`` ends the stream. If the subscriber raises an exception, upstream is cancelled, and
    the exception goes to ``on_dropped_error`` (§2.13). No signalling thread gets the exception.
    Only ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` propagate, on the delivering
    thread.

    Args:
        subscriber: Any object with the four methods of ``Subscriber``.
        capacity: The largest number of elements in the mailbox.
        on_full: What ``on_next`` does when the mailbox is full. With ``"error"`` it ends the stream
            with a ``BufferOverflowError``. With ``"wait"`` it waits for room. But a call from
            within the subscriber would wait for ever, so such a call ends the stream with the same
            error.
        delay_error: Signal an error after the queued elements, not before them.
        fail_fast: Queue nothing. While a signal is being delivered, ``on_next`` raises
            ``OverlappingCallsError``, and ``try_next`` returns ``BUSY``.
    """

    def __init__(
        self,
        subscriber: Subscriber[T],
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
        self._subscriber: Any = subscriber
        self._subscription: Any = None
        self._on_subscribe_pending = False  # whether to call the subscriber's on_subscribe
        self._mailbox: deque[Any] = deque()
        # The lock is reentrant, because a finalizer or a signal handler may take the lock on the
        # thread that holds it.
        self._lock = threading.RLock()
        self._waiters = Waiters()
        self._creator = os.getpid()
        self._owner: int | None = None
        # The terminal signal: an error, or True for completion. None: no terminal signal has come.
        self._terminal: BaseException | bool | None = None
        self._finished = False
        self._cancelled = False

    # -- the signals, for any thread ---------------------------------------------------------------

    def on_subscribe(self, subscription: Any, /) -> None:
        """Call the subscriber's ``on_subscribe`` with this serializer as the subscription.

        If there was a subscription before, or the stream has ended, cancel ``subscription`` (§2.5).

        Args:
            subscription: The subscription that upstream made.
        """
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        with self._lock:
            first = self._subscription is None and not self._cancelled and not self._finished
            if first:
                self._subscription = subscription
                self._on_subscribe_pending = True
                if not self._acquire():
                    return
        if first:
            self._drain()
        else:
            cancel_quietly(subscription)

    def on_next(self, element: T, /) -> None:
        """Deliver or queue ``element``.

        Args:
            element: The element; not ``None``.
        """
        answer = self._next(element, wait=self._wait)
        if answer is Emission.FULL:
            subscription = self._subscription
            overflow = BufferOverflowError(
                f"the mailbox of {self._capacity} elements is full, one was dropped"
            )
            # Several threads may find the mailbox full. Only one of them ends the stream.
            if self._terminate(overflow) and subscription is not None:
                cancel_quietly(subscription)
        elif answer is Emission.BUSY:
            raise OverlappingCallsError("§1.3: another thread is signalling, and fail_fast is set")

    def try_next(self, element: T, /) -> Emission:
        """Deliver or queue ``element``, but never wait for room. Return an ``Emission``.

        Args:
            element: The element; not ``None``.
        """
        return self._next(element, wait=False)

    def on_error(self, error: BaseException, /) -> None:
        """Deliver ``error`` as the last signal.

        Args:
            error: An exception instance.
        """
        check_error(error)
        if not self._terminate(error):
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """Deliver completion as the last signal."""
        self._terminate(True)

    # -- the methods of the subscription, for any thread -------------------------------------------

    def request(self, n: int, /) -> None:
        """Request ``n`` more elements from upstream.

        Args:
            n: The number of elements, 1 or more.
        """
        subscription = self._subscription
        if subscription is not None:
            subscription.request(n)

    def cancel(self) -> None:
        """Cancel upstream. Drop queued elements and the reference to the subscriber (§3.13)."""
        with self._lock:
            if self._cancelled or self._finished:
                return
            self._cancelled = True
            subscription, self._subscription = self._subscription, None
            self._mailbox.clear()
            if self._owner is None:
                self._subscriber = None
            self._waiters.wake_all()
        if subscription is not None:
            cancel_quietly(subscription)

    @property
    def queued(self) -> int:
        """The number of elements that wait in the mailbox."""
        return len(self._mailbox)

    @property
    def capacity(self) -> int:
        """The largest number of elements in the mailbox."""
        return self._capacity

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    # -- delivering signals ------------------------------------------------------------------------

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
        while (answer := self._add(element)) is Emission.FULL and wait:
            # The delivering thread must not wait for room: no other thread can make room.
            if self._owner == threading.get_ident():
                break
            check_same_process(self, self._creator)
            self._waiters.wait_for(self._has_room, None)
        return answer

    def _has_room(self) -> bool:
        return self._state() is not Emission.OK or len(self._mailbox) < self._capacity

    def _add(self, element: Any) -> Emission:
        """Put ``element`` into the mailbox if it has room. Deliver if no other thread does."""
        with self._lock:
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
        with self._lock:
            if self._state() is not Emission.OK:
                return False
            self._terminal = terminal
            self._waiters.wake_all()
            if not self._acquire():
                return True
        self._drain()
        return True

    def _next_signal(self) -> Callable[[Any], None] | None:
        """Return a function that delivers the next signal, or ``None`` if no signal is left.

        The caller must hold ``_lock``.
        """
        if not self._cancelled and not self._finished:
            if self._on_subscribe_pending:
                self._on_subscribe_pending = False
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
            with self._lock:
                signal = self._next_signal()
                self._waiters.wake_all()
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
                    with self._lock:
                        self._next_signal()
                    raise
            else:
                del signal, subscriber
