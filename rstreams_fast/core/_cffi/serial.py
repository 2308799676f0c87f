"""``SignalSerializer`` on the C type ``rsf_serial``, which has a bounded mailbox (queue).

A Python list holds the elements of the mailbox. C code manages the indices of the list, as in
``_cffi/ring.py``. Only one thread at a time delivers signals. A thread waits for another thread
only if the mailbox is full and ``on_full`` is ``"wait"``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from rstreams_fast.api import Subscriber
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import Emission, cancel_quietly, check_same_process
from rstreams_fast.core._spec import serial as spec
from rstreams_fast.errors import NoneSignalError, check_element, report_dropped

_BUSY: Final[int] = lib.RSF_GLUE_BUSY
_IDLE: Final[int] = lib.RSF_GLUE_IDLE
_NOTHING: Final[int] = lib.RSF_GLUE_NOTHING
_ELEMENT: Final[int] = lib.RSF_GLUE_ELEMENT
_TERMINAL: Final[int] = lib.RSF_GLUE_TERMINAL
_WITH_ELEMENT: Final = (_ELEMENT, lib.RSF_GLUE_OVER)

_ANSWERS: Final = {
    lib.RSF_SERIAL_OK: Emission.OK,
    lib.RSF_SERIAL_FULL: Emission.FULL,
    lib.RSF_SERIAL_TERMINATED: Emission.TERMINATED,
    lib.RSF_SERIAL_CANCELLED: Emission.CANCELLED,
}


class SignalSerializer(spec.SignalSerializer[spec.T]):
    def __init__(self, subscriber: Subscriber[spec.T], **options: Any) -> None:
        super().__init__(subscriber, **options)
        # The lock guards _subscription. It is reentrant, because a finalizer or a signal handler
        # may call cancel(), which takes the lock, on the thread that holds it.
        self._subscribing = threading.RLock()
        places = lib.rsf_serial_slots(self._capacity)
        self._slots: list[Any] = [None] * places
        self._cells: Any = ffi.new("rsf_serial_cell[]", places)
        self._serial: Any = ffi.new("rsf_serial *")
        lib.rsf_serial_init(self._serial, self._cells, self._capacity)
        self._take_at: Any = ffi.new("uint64_t *")  # only the delivering thread uses this index

    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        with self._subscribing:
            first = (
                self._subscription is None
                and not self._finished
                and not lib.rsf_serial_is_cancelled(self._serial)
            )
            if first:
                self._subscription = subscription
                self._on_subscribe_pending = True
        if not first:
            cancel_quietly(subscription)
        elif lib.rsf_serial_enter(self._serial):
            self._drain()

    def cancel(self) -> None:
        if self._finished or not lib.rsf_serial_cancel(self._serial):
            return
        with self._subscribing:
            subscription, self._subscription = self._subscription, None
        self._wake()
        # If no thread is delivering, this thread drops the queued elements and the subscriber.
        # Otherwise the delivering thread does so.
        if lib.rsf_serial_enter(self._serial):
            self._drain()
        if subscription is not None:
            cancel_quietly(subscription)

    @property
    def queued(self) -> int:
        if lib.rsf_serial_is_cancelled(self._serial):
            return 0  # after a cancel the elements in the mailbox count as dropped
        return lib.rsf_serial_size(self._serial)

    # -- sending signals ---------------------------------------------------------------------------

    def _next(self, element: Any, *, wait: bool) -> Emission:
        check_element(element)
        while True:
            answer = self._signal(element)
            if (
                answer is not Emission.FULL
                or not wait
                # The delivering thread must not wait for room: no other thread can make room.
                or self._owner == threading.get_ident()
            ):
                return answer
            check_same_process(self, self._creator)
            self._waiters.wait_for(self._has_room, None)

    def _has_room(self) -> bool:
        return not lib.rsf_serial_prepare_wait(self._serial)

    def _signal(self, element: Any) -> Emission:
        held = lib.rsf_glue_acquire(self._serial)
        if held == _BUSY:
            if not self._fail_fast:
                return self._queue(element)
            state = _ANSWERS[lib.rsf_glue_state(self._serial)]
            return Emission.BUSY if state is Emission.OK else state
        raised: BaseException | None = None
        answer = Emission.OK
        try:
            if held == _IDLE and not self._on_subscribe_pending:
                # The mailbox is empty: deliver the element directly.
                self._owner = threading.get_ident()
                raised = self._deliver(self._subscriber.on_next, element)
            else:
                # Signals are queued. Deliver them first, because they came first.
                raised = self._deliver_queued()
                answer = self._queue(element)
        except BaseException as interrupt:
            raised = interrupt
        self._drain(raised)
        return answer

    def _queue(self, element: Any) -> Emission:
        index = lib.rsf_glue_reserve_signal(self._serial)
        if index < 0:
            return _ANSWERS[-index]
        try:
            self._slots[lib.rsf_serial_slot(self._serial, index)] = element
        finally:
            # Publish the reserved index even after a KeyboardInterrupt. Otherwise the elements at
            # all later indices would never be delivered.
            drain = lib.rsf_glue_publish_enter(self._serial, index)
        if drain:
            self._drain()
        return Emission.OK

    def _terminate(self, terminal: BaseException | bool) -> bool:
        serial = self._serial
        if lib.rsf_serial_is_cancelled(serial) or not lib.rsf_serial_latch_terminal(serial):
            return False
        self._terminal = terminal
        kind = lib.RSF_SERIAL_COMPLETE if terminal is True else lib.RSF_SERIAL_ERROR
        lib.rsf_serial_publish_terminal(serial, kind)
        self._wake()
        if lib.rsf_serial_enter(serial):
            self._drain()
        return True

    def _wake(self) -> None:
        """Wake the threads that wait for room in the mailbox."""
        if lib.rsf_serial_take_waiting(self._serial):
            self._waiters.wake_all()

    # -- delivering signals ------------------------------------------------------------------------

    def _drain(self, raised: BaseException | None = None) -> None:
        """Deliver all queued signals, and let other threads deliver again. Then raise ``raised``.

        ``raised`` is ``None``, or an exception such as ``KeyboardInterrupt`` that is no
        ``Exception``. If there is such an exception, first cancel the stream.
        """
        try:
            while True:
                try:
                    if raised is not None:
                        self.cancel()
                    raised = self._deliver_queued() or raised
                except BaseException as interrupt:  # e.g. a KeyboardInterrupt between two signals
                    raised = interrupt
                    continue
                self._owner = None
                if lib.rsf_serial_leave(self._serial):
                    break
            if raised is not None:
                raise raised
        finally:
            del raised

    def _deliver_queued(self) -> BaseException | None:
        """Deliver the queued signals. If the stream has ended, drop the signals.

        If the subscriber raises an exception that is no ``Exception``, such as
        ``KeyboardInterrupt``, return it.
        """
        self._owner = threading.get_ident()
        raised: BaseException | None = None
        while (step := self._step()) is not None:
            raised = self._deliver(*step) or raised
            del step
        return raised

    def _step(self) -> tuple[Any, ...] | None:
        """Return a tuple: the subscriber's method to call next, and its argument, if any.

        Return ``None`` if no signal is left.
        """
        while True:
            if self._finished or lib.rsf_serial_is_cancelled(self._serial):
                self._drop_queued()
                self._subscriber = self._terminal = None
                with self._subscribing:
                    late = None
                    if self._on_subscribe_pending:  # a subscription after the end: cancelled below
                        late, self._subscription = self._subscription, None
                    self._on_subscribe_pending = False
                if late is not None:
                    cancel_quietly(late)
                return None
            if self._on_subscribe_pending:
                self._on_subscribe_pending = False
                return (self._subscriber.on_subscribe, self)
            found = lib.rsf_glue_next(self._serial, not self._delay_error, self._take_at)
            if found == _NOTHING:
                return None
            if found == _ELEMENT:
                return (self._subscriber.on_next, self._release())
            if found == _TERMINAL:
                with self._subscribing:
                    self._finished = True
                    # If _on_subscribe_pending is set, on_subscribe() has just stored a
                    # subscription, although the stream ends here. Then do not clear _subscription:
                    # the next call of _step() cancels this subscription.
                    if not self._on_subscribe_pending:
                        self._subscription = None
                self._drop_queued()  # an error overtakes queued elements, completion does not
                if self._terminal is True:
                    return (self._subscriber.on_complete,)
                return (self._subscriber.on_error, self._terminal)
            # rsf_glue_next has found that the stream was cancelled. So repeat the loop, whose first
            # branch drops the queued elements.

    def _release(self) -> Any:
        at = self._take_at[0]
        element = self._slots[at]
        self._slots[at] = None
        if lib.rsf_glue_release(self._serial):
            self._waiters.wake_all()
        return element

    def _drop_queued(self) -> None:
        while lib.rsf_glue_next(self._serial, False, self._take_at) in _WITH_ELEMENT:
            self._release()

    def _deliver(self, method: Callable[..., Any], *signal: Any) -> BaseException | None:
        """Call ``method`` of the subscriber. If it raises an exception, cancel the stream.

        Pass an ``Exception`` to the hook ``on_dropped_error``, and return ``None``. Return any
        other exception, such as ``KeyboardInterrupt``: the caller raises it later.
        """
        try:
            method(*signal)
        except BaseException as raised:
            del method, signal
            self.cancel()
            if not isinstance(raised, Exception):
                return raised
            report_dropped(raised, "§2.13: a subscriber raised")
        return None
