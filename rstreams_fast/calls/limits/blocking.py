"""Permits of a ``Limit`` for calls that run on threads: a thread blocks until it gets a permit.

A stage is one function, in one Spark task or on one event loop, whose calls share a ``PermitGate``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any, Final

from rstreams_fast.calls.counts import Waits
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.limits.permits import (
    OFFER_SECONDS,
    PERMIT_IDLE_SECONDS,
    LimitLost,
    PermitGate,
)
from rstreams_fast.calls.retry import PATIENCE_SECONDS
from rstreams_fast.errors import WorkDroppedError
from rstreams_fast.runtime.executors import WhenDropped, process_id
from rstreams_fast.runtime.loops import PrivateLoop

__all__ = ["BlockingGate", "TimedGate", "release_again"]

LINGER_SECONDS: Final = 0.2
"""Interval, in seconds, of the check whether calls still use a private event loop. An unused loop
closes; an open loop counts as a user of the limit."""

_Permit = tuple[Any, float]
_Ticket = Future[_Permit]


class HeldPermit:
    """The permit of a call, and the private loop that stays open for the call.

    If a signal handler raises in ``release``, call ``release`` again (see ``release_again``).
    """

    loop: _PermitLoop | None = None
    permit: _Permit | None = None

    def release(self) -> None:
        """Give back the permit, and let the loop close. Do nothing if that was done already."""
        if (loop := self.loop) is not None:
            loop.release(self)
            loop.leave(self)


class BlockingGate:
    """Gives permits to calls on threads, as ``PermitGate`` does on an event loop. Thread-safe.

    A private event loop runs a ``PermitGate``, which gets the permits. The thread of this loop
    starts with the first call, and ends soon after the last call (see ``LINGER_SECONDS``).
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._loop: _PermitLoop | None = None

    def _enter(self, held: HeldPermit) -> _PermitLoop:
        """Return a private loop that stays open until the release of ``held``."""
        while True:
            loop = self._loop
            # A forked child does not have the thread of its parent's loop: make a new loop.
            if loop is None or loop.pid != process_id():
                # Two threads may both make a loop here. Then each loop closes after its own calls.
                loop = self._loop = _PermitLoop(self._limit)
            if loop.enter(held):
                return loop
            self._loop = None

    def take(self, weights: tuple[float, ...] = ()) -> HeldPermit:
        """Block until a call may start; return its permit. ``weights``: the call's cost by unit."""
        held = HeldPermit()
        try:
            loop = self._enter(held)
            if weights:
                loop.take_weighed(held, weights)
            else:
                loop.take(held)
        except BaseException:
            held.release()
            raise
        return held

    def hold(self, seconds: float) -> None:
        """Let no call under the limit start for ``seconds``."""
        self._use_loop(lambda loop: loop.hold(seconds))

    def spend(self, change: tuple[float, ...]) -> None:
        """Charge ``change``: a call's real cost minus its estimate. Numbers < 0 give units back."""
        if any(change):
            self._use_loop(lambda loop: loop.run_with_gate(lambda gate: gate.spend(change)))

    def adopt_remaining(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        """Adopt a service's report: ``left`` units remain after a call that cost ``weights``."""
        self._use_loop(
            lambda loop: loop.run_with_gate(lambda gate: gate.adopt_remaining(left, weights))
        )

    def _use_loop(self, what: Callable[[_PermitLoop], object]) -> None:
        held = HeldPermit()
        try:
            loop = self._enter(held)
            what(loop)
            held.release()
        except BaseException:  # raised by a signal handler
            held.release()
            raise


class TimedGate:
    """A ``BlockingGate`` for the calls of one thread; adds up their waiting time in ``waits``."""

    def __init__(self, gate: BlockingGate, waits: Waits) -> None:
        self._take = gate.take
        self._waits = waits
        self.release = HeldPermit.release
        self.hold = gate.hold
        self.spend = gate.spend
        self.adopt_remaining = gate.adopt_remaining

    def take(self, weights: tuple[float, ...] = ()) -> HeldPermit:
        held = None
        try:
            with self._waits:
                held = self._take(weights)
        except BaseException:  # raised by a signal handler
            if held is not None:
                held.release()
            raise
        return held

    async def acquire(self, weights: tuple[float, ...] = ()) -> HeldPermit:
        """Do the same as ``take``: block the thread, and never suspend the coroutine."""
        return self.take(weights)


def release_again(gate: PermitGate | TimedGate | None, permit: Any) -> None:
    """Repeat a release that a signal handler has interrupted, perhaps before the release began."""
    if isinstance(gate, TimedGate):  # the loop of a ``PermitGate`` has ended with the exception
        gate.release(permit)


class _PermitLoop:
    """A private event loop with a ``PermitGate``, and the threads that wait for its permits.

    A ticket is the future of a waiting thread; its result is the permit. A thread whose call ends
    passes its permit directly to the next waiting thread. So the loop has little to do. After about
    ``PERMIT_TURN_SECONDS`` the permit goes back to the loop, which may offer it to other stages.
    """

    def __init__(self, limit: Limit) -> None:
        self.pid = process_id()
        self._limit = limit
        self._private = PrivateLoop("rstreams-fast-limit", serves_threads=True)
        # Reentrant: a finalizer on the thread that holds the lock may end a call, and lock again.
        self._lock = threading.RLock()
        self._calls = 0
        """Number of calls that wait for a permit, or run with a permit."""
        self._used = False
        """Whether a call has ended since ``_end_if_unused`` last ran."""
        self._ended = False
        self._tickets: deque[_Ticket] = deque()
        # The number of permits that the loop has requested and not yet received: one for each
        # ticket (waiting thread). If another thread passes its permit to a ticket, the request for
        # the ticket is not withdrawn.
        self._requested = 0
        self._idle: list[_Permit] = []
        self._returns_idle = False  # whether a call of ``_return_idle`` is scheduled
        self._held_until = 0.0
        # From this time on, ``release`` may offer a permit to other stages before its own stage.
        self._next_offer = 0.0
        self._gate: PermitGate | None = None
        self._is_checking = False  # whether a timer for ``_end_if_unused`` runs

    def enter(self, held: HeldPermit) -> bool:
        """Keep the loop open until ``leave``; return ``False`` if the loop has closed already."""
        with self._lock:
            if not self._ended:
                self._calls += 1
                held.loop = self
            return not self._ended

    def leave(self, held: HeldPermit) -> None:
        """Let the loop close, unless other calls use it."""
        with self._lock:
            self._calls -= 1
            self._used = True
            held.loop = None

    def take(self, held: HeldPermit) -> None:
        """Block until a call may start; set ``held.permit``."""
        with self._lock:
            if self._idle and self._reuses(monotonic()):
                # Not ``held.permit = pop()``: if a signal handler raised before the assignment, the
                # permit would be lost.
                held.permit = self._idle[-1]
                del self._idle[-1]
                return
            ticket: _Ticket = Future()
            self._tickets.append(ticket)
            must_request = self._requested < len(self._tickets)
            self._requested += must_request
        self._wait_for(held, ticket, self._request if must_request else None, self._refuse)

    def release(self, held: HeldPermit) -> None:
        """Pass a permit to the next call of this stage, or give it back to the limit."""
        is_idle = False
        try:
            # In a forked child the permit is only a copy: the parent gives back the original.
            if self.pid != process_id():
                return
            now = monotonic()
            with self._lock:
                if (permit := held.permit) is None:
                    return
                is_kept = self._reuses(now)
                if is_kept and now >= permit[1] and now >= self._next_offer:
                    self._next_offer = now + OFFER_SECONDS
                    is_kept = False
                ticket = self._next_ticket() if is_kept else None
                must_return = is_kept and ticket is None and not self._returns_idle
                if is_kept:
                    held.permit = None
                    if ticket is None:
                        is_idle = self._returns_idle = True
                        self._idle.append(permit)
            if ticket is not None:
                ticket.set_result(permit)
            elif not is_kept:
                # Do not add this permit to ``_idle``: the next call of this stage would take it
                # before the loop could offer it to other stages, and they would wait for ever.
                self._run(partial(self._give_back, held))
            elif must_return:
                self._run(self._return_later)
        except BaseException:  # raised by a signal handler
            if self.pid == process_id():
                self._run(self._return_idle if is_idle else partial(self._give_back, held))
            raise

    def hold(self, seconds: float) -> None:
        with self._lock:
            until = monotonic() + min(seconds, PATIENCE_SECONDS)
            self._held_until = max(self._held_until, until)
        self._run(partial(self._hold, seconds))

    def take_weighed(self, held: HeldPermit, weights: tuple[float, ...]) -> None:
        """Block until a call that costs ``weights`` may start; set ``held.permit``."""
        ticket: _Ticket = Future()
        ask = partial(self._request_weighed, ticket, weights)
        self._wait_for(held, ticket, ask, ticket.set_exception)

    def _wait_for(
        self,
        held: HeldPermit,
        ticket: _Ticket,
        ask: Callable[[], object] | None,
        refuse: WhenDropped,
    ) -> None:
        try:
            if ask is not None:
                self._private.execute(ask, refuse)
            held.permit = ticket.result()
        except BaseException:
            # A KeyboardInterrupt may have left the loop without a thread. Mark the loop as ended,
            # so that later calls make a new loop.
            with self._lock:
                self._ended, self._requested = True, 0
            if not ticket.cancel() and ticket.exception() is None:  # the ticket has a permit
                held.permit = ticket.result()
            raise

    def run_with_gate(self, what: Callable[[PermitGate], object]) -> None:
        """Call ``what`` with the ``PermitGate``, on the loop's thread."""
        self._run(lambda: what(self._ensure_gate()))

    def _reuses(self, now: float) -> bool:
        """Whether a permit that is free at the time ``now`` may go to the stage's next call."""
        return self._gate is not None and self._gate.reuses_permits and now >= self._held_until

    def _next_ticket(self) -> _Ticket | None:
        while self._tickets:
            if (ticket := self._tickets.popleft()).set_running_or_notify_cancel():
                return ticket
        return None

    def _run(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(WorkDroppedError):  # raised while the interpreter exits
            self._private.execute(work, lambda _: None)

    # -- methods that run on the loop's thread -----------------------------------------------------

    def _ensure_gate(self) -> PermitGate:
        if self._gate is None:
            if not self._is_checking:
                self._is_checking = True
                self._end_if_unused()
            self._gate = PermitGate(self._limit, asyncio.get_running_loop())
        return self._gate

    def _request(self) -> None:
        try:
            gate = self._ensure_gate()
        except Exception as raised:
            # The constructor of ``PermitGate`` raises, for example, if the limit's file cannot be
            # used.
            self._refuse(raised)
            return
        if (permit := gate.take()) is not None:
            self._granted(permit, gate)
        else:
            asyncio.get_running_loop().create_task(self._wait(gate))

    def _request_weighed(self, ticket: _Ticket, weights: tuple[float, ...]) -> None:
        try:
            gate = self._ensure_gate()
        except Exception as raised:
            ticket.set_exception(_limit_lost(raised))
        else:
            asyncio.get_running_loop().create_task(self._wait_weighed(gate, ticket, weights))

    async def _wait_weighed(
        self, gate: PermitGate, ticket: _Ticket, weights: tuple[float, ...]
    ) -> None:
        try:
            permit = await gate.acquire(weights)
        except BaseException as raised:  # LimitLost; or CancelledError, while Python exits
            if ticket.set_running_or_notify_cancel():
                ticket.set_exception(_limit_lost(raised))
            return
        if ticket.set_running_or_notify_cancel():
            ticket.set_result(permit)
        else:
            gate.spend(tuple(-weight for weight in weights))
            gate.release(permit)

    async def _wait(self, gate: PermitGate) -> None:
        try:
            permit = await gate.acquire()
        except BaseException as raised:  # LimitLost; or CancelledError, while Python exits
            self._refuse(raised)
        else:
            self._granted(permit, gate)

    def _granted(self, permit: _Permit, gate: PermitGate) -> None:
        with self._lock:
            self._requested -= 1
            ticket = self._next_ticket()
        if ticket is None:
            gate.release(permit)
        else:
            ticket.set_result(permit)

    def _refuse(self, raised: BaseException) -> None:
        with self._lock:
            self._requested -= 1
            ticket = self._next_ticket()
        if ticket is not None:
            ticket.set_exception(_limit_lost(raised))

    def _hold(self, seconds: float) -> None:
        self._ensure_gate().hold(seconds)
        self._return_idle()

    def _give_back(self, held: HeldPermit) -> None:
        with self._lock:
            permit, held.permit = held.permit, None
        if permit is not None:  # else an interrupted ``release`` was repeated
            self._ensure_gate().release(permit)

    def _return_later(self) -> None:
        asyncio.get_running_loop().call_later(PERMIT_IDLE_SECONDS, self._return_idle)

    def _return_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._returns_idle = False
        for permit in idle:
            self._ensure_gate().release(permit)

    def _end_if_unused(self) -> None:
        with self._lock:
            self._ended = not (self._calls or self._used)
            self._used = False
        if not self._ended:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_if_unused)
            return
        if self._gate is not None:
            self._gate.close()
        self._private.close()


def _limit_lost(raised: BaseException) -> LimitLost:
    if isinstance(raised, LimitLost):
        return raised
    exits = isinstance(raised, asyncio.CancelledError)
    why = "the interpreter exits" if exits else str(raised) or type(raised).__name__
    lost = LimitLost(f"no permit: {why}")
    lost.__cause__ = raised
    return lost
