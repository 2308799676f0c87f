"""The signal serializer on ``rsf_serial``: a bounded mailbox, a drain, a terminal latch.

As with the ring, C hands out places in a Python list. Whoever holds the drain delivers; nobody
waits for another thread, but for room in the mailbox where ``on_full="wait"`` asks for that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import GenericAlias
from typing import Any, Final, NoReturn

from rstreams_fast._checks import check_capacity
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import (
    Emission,
    cancel_quietly,
    check_same_process,
    refuse_pickle,
    sleeps,
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

_BUSY: Final[int] = lib.RSF_GLUE_BUSY
_IDLE: Final[int] = lib.RSF_GLUE_IDLE
_NOTHING: Final[int] = lib.RSF_GLUE_NOTHING
_ELEMENT: Final[int] = lib.RSF_GLUE_ELEMENT
_TERMINAL: Final[int] = lib.RSF_GLUE_TERMINAL

_ANSWERS: Final = {
    lib.RSF_SERIAL_OK: Emission.OK,
    lib.RSF_SERIAL_FULL: Emission.FULL,
    lib.RSF_SERIAL_TERMINATED: Emission.TERMINATED,
    lib.RSF_SERIAL_CANCELLED: Emission.CANCELLED,
}


class SignalSerializer:
    __class_getitem__: Any = classmethod(GenericAlias)

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
        self._error_overtakes = not delay_error
        self._fail_fast = fail_fast
        self._subscriber = subscriber
        self._subscription: Any = None
        # Guards _subscription. Reentrant, for the collector and signal handlers may run anything
        # anywhere, and so cancel.
        self._subscribing = threading.RLock()
        self._greet = False  # the subscriber has still to get its on_subscribe
        self._error: BaseException | None = None
        self._finished = False  # the terminal signal was delivered, or is just being
        self._owner: int | None = None  # the thread that delivers; written by that thread only
        self._room = threading.Condition()
        places = lib.rsf_serial_slots(self._capacity)
        self._slots: list[Any] = [None] * places
        self._cells: Any = ffi.new("rsf_serial_cell[]", places)
        self._serial: Any = ffi.new("rsf_serial *")
        lib.rsf_serial_init(self._serial, self._cells, self._capacity)
        self._take_at: Any = ffi.new("uint64_t *")  # the holder's
        self._creator = os.getpid()

    # -- signals, any thread ---------------------------------------------------------------------

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
                self._greet = True
        if not first:
            cancel_quietly(subscription)
        elif lib.rsf_serial_enter(self._serial):
            self._drain()

    def on_next(self, element: Any, /) -> None:
        answer = self._next(element, wait=self._wait)
        if answer is Emission.FULL:
            subscription = self._subscription
            overflow = BufferOverflowError(
                f"the mailbox of {self._capacity} elements is full, one was dropped"
            )
            # Of several threads that overflow it, and of those that end the stream, one counts.
            if self._terminate(overflow) and subscription is not None:
                cancel_quietly(subscription)
        elif answer is Emission.BUSY:
            raise OverlappingCallsError("§1.3: another thread is signalling, and fail_fast is set")

    def try_next(self, element: Any, /) -> Emission:
        return self._next(element, wait=False)

    def on_error(self, error: BaseException, /) -> None:
        check_error(error)
        if not self._terminate(error):
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        self._terminate(None)

    # -- subscription, any thread ----------------------------------------------------------------

    def request(self, n: int, /) -> None:
        subscription = self._subscription
        if subscription is not None:
            subscription.request(n)

    def cancel(self) -> None:
        if self._finished or not lib.rsf_serial_cancel(self._serial):
            return
        with self._subscribing:
            subscription, self._subscription = self._subscription, None
        self._wake()
        # Whoever holds the drain drops what is queued, and the subscriber.
        if lib.rsf_serial_enter(self._serial):
            self._drain()
        if subscription is not None:
            cancel_quietly(subscription)

    @property
    def queued(self) -> int:
        if lib.rsf_serial_is_cancelled(self._serial):
            return 0  # what is still there is dropped, not delivered
        return lib.rsf_serial_size(self._serial)

    @property
    def capacity(self) -> int:
        return self._capacity

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)

    # -- signalling ------------------------------------------------------------------------------

    def _next(self, element: Any, *, wait: bool) -> Emission:
        check_element(element)
        while True:
            answer = self._signal(element)
            if (
                answer is not Emission.FULL
                or not wait
                or self._owner == threading.get_ident()  # would wait for itself
            ):
                return answer
            check_same_process(self, self._creator)
            with self._room:
                for sleep in sleeps(None):
                    if not lib.rsf_serial_prepare_wait(self._serial):
                        break
                    self._room.wait(sleep)

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
            if held == _IDLE and not self._greet:
                # Past the mailbox: nothing is before this element.
                self._owner = threading.get_ident()
                raised = self._deliver(self._subscriber.on_next, element)
            else:
                # What is queued comes before this element.
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
            # Whatever happens: an index that is never published holds everybody up.
            drain = lib.rsf_glue_publish_enter(self._serial, index)
        if drain:
            self._drain()
        return Emission.OK

    def _terminate(self, error: BaseException | None) -> bool:
        serial = self._serial
        if lib.rsf_serial_is_cancelled(serial) or not lib.rsf_serial_latch_terminal(serial):
            return False
        self._error = error
        kind = lib.RSF_SERIAL_COMPLETE if error is None else lib.RSF_SERIAL_ERROR
        lib.rsf_serial_publish_terminal(serial, kind)
        self._wake()
        if lib.rsf_serial_enter(serial):
            self._drain()
        return True

    def _wake(self) -> None:
        """Let those that wait for room look again."""
        if lib.rsf_serial_take_waiting(self._serial):
            with self._room:
                self._room.notify_all()

    # -- delivery, by the holder of the drain ----------------------------------------------------

    def _drain(self, raised: BaseException | None = None) -> None:
        """Deliver everything, leave, and then raise what may not be kept from the caller."""
        try:
            while True:
                try:
                    if raised is not None:
                        self.cancel()
                    raised = self._deliver_queued() or raised
                except BaseException as interrupt:  # a KeyboardInterrupt between two signals
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
        """Deliver, or drop after the end, what is there; return what may not be kept."""
        self._owner = threading.get_ident()
        raised: BaseException | None = None
        while (step := self._step()) is not None:
            raised = self._deliver(*step) or raised
            del step
        return raised

    def _step(self) -> tuple[Any, ...] | None:
        """The next call of the subscriber, or ``None`` when there is nothing to deliver."""
        while True:
            if self._finished or lib.rsf_serial_is_cancelled(self._serial):
                self._drop_queued()
                self._subscriber = self._error = None
                with self._subscribing:
                    late = None
                    if self._greet:  # it came just when all this ended, and nobody knows of it
                        late, self._subscription = self._subscription, None
                    self._greet = False
                if late is not None:
                    cancel_quietly(late)
                return None
            if self._greet:
                self._greet = False
                return (self._subscriber.on_subscribe, self)
            found = lib.rsf_glue_next(self._serial, self._error_overtakes, self._take_at)
            if found == _NOTHING:
                return None
            if found == _ELEMENT:
                return (self._subscriber.on_next, self._release())
            if found == _TERMINAL:
                with self._subscribing:
                    self._finished = True
                    if not self._greet:  # else it is to be cancelled
                        self._subscription = None
                self._drop_queued()  # there is something only if an error overtakes it
                if self._error is None:
                    return (self._subscriber.on_complete,)
                return (self._subscriber.on_error, self._error)
            # Cancelled since the look above: around again.

    def _release(self) -> Any:
        at = self._take_at[0]
        element = self._slots[at]
        self._slots[at] = None
        if lib.rsf_glue_release(self._serial):
            with self._room:
                self._room.notify_all()
        return element

    def _drop_queued(self) -> None:
        while lib.rsf_glue_next(self._serial, False, self._take_at) in _WITH_ELEMENT:
            self._release()

    def _deliver(self, method: Callable[..., Any], *signal: Any) -> BaseException | None:
        """Call the subscriber. What it raises cancels; what is no ``Exception`` is returned."""
        try:
            method(*signal)
        except BaseException as raised:
            del method, signal
            self.cancel()
            if not isinstance(raised, Exception):
                return raised
            report_dropped(raised, "§2.13: a subscriber raised")
        return None


_WITH_ELEMENT: Final = (_ELEMENT, lib.RSF_GLUE_OVER)
