"""Permits that the stages of a process or of a host share, without a server.

A stage is one function, in one Spark task or on one event loop, whose calls share a ``PermitGate``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from rstreams_fast.calls.limits.host_locks import WATCH_SECONDS, HostLocks, locks_of
from rstreams_fast.calls.limits.job_permits import LimitLost
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.limits.process_permits import ProcessPermits, permits_of
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.fork_lock import ForkLock

if TYPE_CHECKING:
    from rstreams_fast.calls.limits.permits import PermitGate, Weights

__all__ = ["LocalPermits"]

_open: Final[weakref.WeakSet[PermitGate]] = weakref.WeakSet()
"""Each ``PermitGate`` that is not closed, and gets permits of the process or the host."""

_open_lock: Final = ForkLock()

POLL_SECONDS: Final = 0.002
"""Interval, in seconds, at which a waiting stage looks for a free permit: no event reports one."""

UNITS_POLL_SECONDS: Final = 0.05
"""The longest interval, in seconds, at which a stage checks whether a waiting call may spend its
units. The stage gets no notification when other stages give units back."""

RESERVE_SECONDS: Final = 0.1
"""A stage reserves no more start times while its latest start time is this many seconds ahead: a
stage that fails wastes its reserved start times."""


class LocalPermits:
    """The ``_PermitSource`` of a ``PermitGate``: takes permits of the process or the host.

    While no permit is free, the object looks for one at intervals (polls).
    """

    def __init__(self, gate: PermitGate, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._name = limit.name
        self._loop = loop
        self._shared: HostLocks | ProcessPermits
        self._shared = (permits_of if limit.scope == "process" else locks_of)(limit.name)
        self._shared.join(limit.numbers)
        self._are_paced = limit.numbers.are_paced
        self._leave = weakref.finalize(self, call_from_finalizer, self._shared.leave)
        self._leave.atexit = False
        self._ended = False
        self._requests: deque[Weights] = deque()
        self._next_poll: asyncio.TimerHandle | None = None
        self._offered_until = 0.0
        # By the number of a timer: the timer, the permit that the timer will grant, the cost of the
        # call, and the reserved start time. With 0.0 the timer must first reserve a start time.
        self._due: dict[int, tuple[asyncio.TimerHandle, int | None, Weights, float]] = {}
        self._timer_numbers = itertools.count()
        self._taken: set[int] = set()
        self._unbounded = 0  # running calls that began while the limit had no ``concurrency``
        self._refresh_timer: asyncio.TimerHandle | None = None
        with _open_lock:
            _open.add(gate)
        _close_gates_of_closed_loops()

    def ask(self, weights: Weights) -> None:
        self._requests.append(weights)
        if self._refresh_timer is None:
            self._refresh_later()
        if self._next_poll is None:
            if (rest := self._offered_until - monotonic()) > 0:
                self._next_poll = self._loop.call_later(rest, self._poll)
            else:
                self._poll()

    def _refresh_later(self) -> None:
        self._refresh_timer = self._loop.call_later(WATCH_SECONDS, _refresh, weakref.ref(self))

    def refresh(self) -> None:
        """If the limit's file was replaced, open the new file; adopt the numbers in the file.

        While more calls run than newer numbers allow, each call gives its permit back when it ends,
        instead of passing it to the next call.
        """
        self._refresh_timer = None
        _close_gates_of_closed_loops()
        if self._taken or self._due or self._requests or self._unbounded:
            try:
                self._shared.refresh()
            except OSError as raised:
                self._fail(raised)
            else:
                numbers = self._shared.numbers
                has_too_many = self._unbounded and numbers.concurrency is not None
                are_paced = numbers.are_paced or has_too_many or self._shared.has_too_many()
                if self._are_paced != are_paced:
                    self._are_paced = not self._are_paced
                    self._gate.set_paced(self._are_paced)
                self._refresh_later()

    def _poll(self) -> None:
        try:
            self._take_permits()
        except OSError as raised:
            self._fail(raised)

    def _fail(self, raised: OSError) -> None:
        # An error of the file, such as a full disk, is not caused by the waiting row. So fail the
        # whole stage, not the row.
        path = self._shared.path
        failure = LimitLost(
            f"the file of the limit {self._name!r} cannot be used: {path}: {raised}"
        )
        failure.__cause__ = raised
        self._gate.fail(failure)

    def _take_permits(self) -> None:
        self._next_poll = None
        while self._requests and not self._has_enough_due():
            found = self._shared.take_one()
            if found is None:
                self._poll_later(POLL_SECONDS)
                return
            permit, dying = found
            if permit is None:
                self._unbounded += 1
            else:
                self._taken.add(permit)
            weights = self._requests[0]
            if dying:
                self._requests.popleft()
                self._grant_later(permit, weights, monotonic() + dying, 0.0)
            elif (wait := self._reserve(permit, weights)) > 0:
                self._poll_later(wait)
                return

    def _poll_later(self, seconds: float) -> None:
        wait = seconds * (0.5 + random.random() / 2)  # noqa: S311 - not all at once
        self._next_poll = self._loop.call_later(wait, self._poll)

    def _reserve(self, permit: int | None, weights: Weights) -> float:
        """Reserve a start time for the first waiting call, and return 0.0.

        But if a call that costs units cannot start now, reserve nothing, and return the seconds to
        wait before the next attempt: if the process were killed, reserved units would be lost.
        """
        now = monotonic()
        start = self._shared.reserve(weights, now + POLL_SECONDS if weights else math.inf)
        if weights and start > now + POLL_SECONDS:
            self.give_back(permit)
            return min(start - now, UNITS_POLL_SECONDS)
        self._requests.popleft()
        if start > monotonic():
            self._grant_later(permit, weights, start, start)
        else:
            self._gate.grant(permit, weights)
        return 0.0

    def _grant_later(self, permit: int | None, weights: Weights, at: float, due: float) -> None:
        number = next(self._timer_numbers)
        timer = self._loop.call_later(at - monotonic(), self._grant_due, number)
        self._due[number] = timer, permit, weights, due

    def _has_enough_due(self) -> bool:
        """Whether start times are reserved for the next ``RESERVE_SECONDS``."""
        latest = next(reversed(self._due.values()), None)
        return latest is not None and latest[-1] > monotonic() + RESERVE_SECONDS

    def withdraw(self) -> bool:
        if self._requests:
            self._requests.pop()
        elif self._due:
            self._drop_latest_due()
        else:
            return False
        return True

    def _drop_latest_due(self) -> None:
        """Cancel the grant with the latest start time; give back its permit and its reservation."""
        _, (timer, permit, weights, due) = self._due.popitem()
        timer.cancel()
        if due:
            try:
                self._shared.withdraw(due, weights)
            except OSError as raised:
                self._fail(raised)
        self.give_back(permit)

    def _grant_due(self, number: int) -> None:
        """Grant a permit at its reserved start time.

        Reserve another time if this time has passed too long ago, or if no call may start yet.
        """
        _, permit, weights, due = self._due.pop(number)
        try:
            # A timer that fires a millisecond early does no harm: only late calls get another time.
            late = not due or monotonic() > due + self._shared.pace.late
            late = late or self._shared.held_until() > due
            if late and due and any(weights):
                self._shared.spend(tuple(-weight for weight in weights))
            if not late:
                self._gate.grant(permit, weights)
            else:
                self._requests.appendleft(weights)
                if (wait := self._reserve(permit, weights)) > 0 and self._next_poll is None:
                    self._poll_later(wait)
        except OSError as raised:
            self._fail(raised)
        if self._requests and self._next_poll is None:
            self._poll()

    def give_back(self, permit: int | None) -> None:
        if permit is None:
            self._unbounded -= 1
        else:
            self._taken.discard(permit)
            try:
                self._shared.give_back(permit)
            except OSError as raised:
                self._fail(raised)

    def is_wanted(self) -> bool:
        try:
            return self._shared.is_wanted()
        except OSError as raised:
            self._fail(raised)
            return True

    def offer(self, permit: int | None) -> None:
        self.give_back(permit)
        # Do not poll before this time: until then every other waiting stage polls at least once.
        self._offered_until = monotonic() + 1.5 * POLL_SECONDS

    def hold(self, seconds: float) -> None:
        try:
            self._shared.hold(seconds)
        except OSError as raised:
            self._fail(raised)

    def spend(self, change: Weights) -> None:
        try:
            self._shared.spend(change)
            if self._next_poll is not None and min(change) < 0:
                # The next poll was scheduled before units came back: poll now.
                self._next_poll.cancel()
                self._poll()
        except OSError as raised:
            self._fail(raised)

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        try:
            self._shared.adopt_remaining(left, weights)
        except OSError as raised:
            self._fail(raised)

    def end(self, running_threads: int) -> Callable[[], object]:
        with _open_lock:
            _open.discard(self._gate)
        self._requests.clear()
        if self._next_poll is not None:
            self._next_poll.cancel()
        while self._due:
            self._drop_latest_due()
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        while len(self._taken) > running_threads:
            self._give_one_back()
        self._ended = True
        if not self._taken:
            self._leave()
        return self._give_one_back

    def _give_one_back(self) -> None:
        with contextlib.suppress(KeyError, OSError):
            self._shared.give_back(self._taken.pop())
        if self._ended and not self._taken:
            self._leave()


def _close_gates_of_closed_loops() -> None:
    """Close gates whose event loop is closed already, so that their permits are free."""
    with _open_lock:
        for gate in [gate for gate in _open if gate.loop.is_closed()]:
            gate.close()


def _refresh(of: weakref.ref[LocalPermits]) -> None:
    # The timer has a weak reference: a strong one would keep an unused object and its file alive.
    if (permits := of()) is not None:
        permits.refresh()
