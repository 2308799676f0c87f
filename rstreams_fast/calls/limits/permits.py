"""Permits of a ``Limit`` in a worker: the stage's ``PermitGate``, and where it gets permits.

A permit is the right to run a call under the limit. A stage is one function, in one Spark task or
on one event loop, whose calls share a ``PermitGate``. The calls may use a permit one after another.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import Any, Final, Protocol

from rstreams_fast.calls.counts import Waits
from rstreams_fast.calls.limits.job_permits import JobPermits, LimitLost
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.limits.local_permits import LocalPermits
from rstreams_fast.calls.retry import PATIENCE_SECONDS
from rstreams_fast.calls.traces import note_wait
from rstreams_fast.core import CallWindow

__all__ = ["OFFER_SECONDS", "PERMIT_IDLE_SECONDS", "LimitLost", "PermitGate"]

PERMIT_TURN_SECONDS: Final = 0.1
"""How long, in seconds, the calls of one stage reuse a permit before other stages may get it."""

OFFER_SECONDS: Final = 0.01
"""The shortest time, in seconds, between two offers of a stage's permit to other stages."""

PERMIT_IDLE_SECONDS: Final = 0.002
"""How long, in seconds, a permit is idle before its stage checks whether other stages want it."""

Weights = tuple[float, ...]
"""The cost of a call in each unit of the limit (tokens, say), in the order of the units' names."""


_Call = Callable[..., Awaitable[Any]]


class _PermitSource(Protocol):
    """Supplies a ``PermitGate`` with permits. Only the thread of the gate's loop may use it."""

    def ask(self, weights: Weights) -> None:
        """Request a permit for a call that costs ``weights``.

        The source grants it by ``PermitGate.grant``, now or later.
        """

    def withdraw(self) -> bool:
        """Drop one request, since a call no longer waits; return whether a request was dropped."""

    def give_back(self, permit: Any) -> None:
        """Take a permit back from the gate."""

    def is_wanted(self) -> bool:
        """Whether other stages may want a permit."""

    def offer(self, permit: Any) -> None:
        """Take a permit back from the gate, and let other stages have it first."""

    def hold(self, seconds: float) -> None:
        """Grant no permits to any stage for ``seconds``."""

    def spend(self, change: Weights) -> None:
        """Charge ``change``: a call's real cost minus its estimate. Numbers < 0 give units back."""

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        """Adopt a service's report: ``left`` units remain after a call that cost ``weights``."""

    def end(self, running_threads: int) -> Callable[[], object]:
        """Take back all permits except ``running_threads`` of them.

        The remaining permits belong to threads that still run a call. Each of these threads calls
        the returned function to give its permit back.
        """


class PermitGate:
    """Lets a call of a stage start when it has a permit. Only the loop's thread may use this."""

    def __init__(self, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        # The future and the cost of each waiting call. The oldest call is the first.
        self._waiting: OrderedDict[asyncio.Future[tuple[Any, float]], Weights] = OrderedDict()
        self._idle: list[tuple[Any, float]] = []
        # With ``admit``: the permits of the running calls. A call without a permit has a None here.
        self._used: list[tuple[Any, float] | None] = []
        self._in_transit = 0
        """Number of permits that were granted to calls which have not resumed yet."""
        self._running = 0
        """Number of running calls that got their permit from ``take`` or ``acquire``."""
        self._will_check_running = False
        self._window: CallWindow | None = None
        # Whether a call takes its permit from ``_idle`` to ``_used``. If not, the permits stay in
        # ``_idle``, and suffice for all calls of the window.
        self._is_counting = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self._next_offer = 0.0
        self._requested = 0
        self._failure: Exception | None = None
        self._closed = False
        self._may_reuse = not limit.numbers.are_paced  # if false, each call needs a new permit
        self._reuses = self._may_reuse
        self._at_rest = False  # if true, no call waits, and a timer will check the idle permits
        self._source: _PermitSource
        self._is_local = limit.scope != "job"
        if not self._is_local:
            self._source = JobPermits(self, limit, loop)
        else:
            self._source = LocalPermits(self, limit, loop)
        self._held_until = 0.0
        self.waits = Waits()
        """How long calls wait for a permit."""
        self.traced = False
        """Whether calls may have traces. A trace shows how long its call waited for a permit."""

    def admit(self, window: CallWindow, fn: _Call) -> Callable[[_Call], None]:
        """Make ``window`` call ``fn`` only with a permit for each call.

        Returns a function that replaces ``fn`` for the next calls. A call that need not wait gets
        no coroutine around it. The gate does not move permits between ``_idle`` and ``_used`` while
        the stage has enough permits for all calls of the window, and no other stage wants one: this
        saves time.
        """
        idle, used = self._idle, self._used
        take_idle, add_used, pop_used = idle.pop, used.append, used.pop

        async def after_waiting(*args: Any) -> Any:
            permit = None
            try:
                permit = await self.acquire()
            finally:
                add_used(permit)
            return await fn(*args)

        def counted(*args: Any) -> Awaitable[Any]:
            if not idle:
                return after_waiting(*args)
            add_used(take_idle())
            return fn(*args)

        def call_ended() -> None:
            # ``used`` is empty if the gate was closed before the call ended.
            permit = pop_used() if used else None
            if permit is not None:
                self.release(permit)

        def call_with(other: _Call) -> None:
            nonlocal fn
            fn = other
            self._use_plain_calls = partial(window.call_with, fn)
            if not self._is_counting:
                self._use_plain_calls()

        self._window = window
        self._use_counted_calls = partial(window.call_with, counted, call_ended)
        self._use_plain_calls = partial(window.call_with, fn)
        self._use_counted_calls()
        return call_with

    def _begin_rest(self) -> None:
        self._at_rest = True
        if self._window is None or self._in_transit:
            return
        used = [permit for permit in self._used if permit is not None]
        if len(self._idle) + len(used) >= self._window.concurrency:
            self._idle += used
            self._used.clear()
            self._is_counting = False
            self._use_plain_calls()

    def _end_rest(self) -> None:
        self._at_rest = False
        if self._window is not None and not self._is_counting:
            self._is_counting = True
            self._use_counted_calls()
            self._used += [self._idle.pop() for _ in range(self._window.running)]

    @property
    def reuses_permits(self) -> bool:
        """Whether a permit may serve several calls in a row. Any thread may read this."""
        return self._reuses and not self._closed

    @property
    def has_failed(self) -> bool:
        """Whether the gate lets no more calls start, because it has failed or was closed."""
        return self._failure is not None

    @property
    def is_in_use(self) -> bool:
        """Whether a call runs that got its permit from ``take`` or ``acquire``, or a call waits."""
        return bool(self._running or self._waiting or self._in_transit)

    def take(self) -> tuple[Any, float] | None:
        """Return an idle permit, or ``None`` if no permit is idle; then use ``acquire``."""
        if not self._idle:
            return None
        self._running += 1
        return self._idle.pop()

    async def acquire(self, weights: Weights = ()) -> tuple[Any, float]:
        """Wait for a permit for a call that costs ``weights``; return the permit."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[tuple[Any, float]] = self.loop.create_future()
        self._waiting[future] = weights
        self._at_rest = False
        self._ask_if_needed()
        try:
            if self.traced:
                begun = monotonic()
                with self.waits:
                    permit = await future
                note_wait(monotonic() - begun)
            else:
                with self.waits:
                    permit = await future
        except BaseException:
            # If the coroutine was closed while it waited, the future is not done.
            if not future.done() or future.cancelled():
                self._waiting.pop(future, None)
                # Withdraw a request: a permit that no call needs would waste a start time of the
                # rate.
                if self._requested > len(self._waiting) and self._source.withdraw():
                    self._requested -= 1
            elif future.exception() is None:
                self._in_transit -= 1
                self._running += 1
                self.spend(weights, -1)
                self.release(future.result())
            raise
        self._in_transit -= 1
        self._running += 1
        return permit

    def release(self, permit: tuple[Any, float]) -> None:
        """Pass the permit to the next call of this stage, or give it back to the source.

        After ``PERMIT_TURN_SECONDS``, other stages may get the permit before this stage.
        """
        self._running -= 1
        if not self._running and self._is_local and self._window is None:
            self._check_running_soon()
        if self._at_rest:
            self._idle.append(permit)
            return
        # If the loop is closed, the garbage collector ends this call. Give all permits back.
        if self.loop.is_closed():
            self.close()
        # Do not give this permit back: ``end`` has done so, or the call's thread will do so.
        if self._closed:
            return
        now = monotonic()
        if not self._reuses or now < self._held_until:
            self._source.give_back(permit[0])
            self._ask_if_needed()
            return
        if now >= permit[1] and now >= self._next_offer:
            self._next_offer = now + OFFER_SECONDS
            if self._source.is_wanted():
                self._source.offer(permit[0])
                self._ask_if_needed()
                return
        if not (self._waiting and self._grant_to_waiting(permit)):
            self._idle.append(permit)
            if self._idle_timer is None:
                self._idle_timer = self.loop.call_later(PERMIT_IDLE_SECONDS, self._check_idle)
            self._begin_rest()

    def grant(self, permit: Any, weights: Weights = ()) -> None:
        """Receive a permit from the source. ``weights``: the cost named in the request."""
        self._requested -= 1
        if not self._grant_to_waiting((permit, monotonic() + PERMIT_TURN_SECONDS), weights):
            self._source.give_back(permit)

    def spend(self, weights: Weights, times: int = 1) -> None:
        """Charge ``weights``: a real cost minus its estimate. ``times=-1`` gives units back."""
        if any(weights) and not self._closed:
            self._source.spend(tuple(times * weight for weight in weights))

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        """Adopt a service's report: ``left`` units remain after a call that cost ``weights``."""
        if not self._closed:
            self._source.adopt_remaining(left, weights)

    def set_paced(self, are_paced: bool) -> None:
        """The limit's rate or units have changed: set whether each call needs a new permit."""
        self._may_reuse = not are_paced
        self.suspend(False)
        if are_paced:
            self._return_idle()

    def suspend(self, suspended: bool) -> None:
        """While ``suspended``, give each permit back after its call, and keep no idle permits.

        ``JobPermits`` suspends the gate while it has no connection, and cannot count permits.
        """
        self._reuses = self._may_reuse and not suspended
        if suspended:
            self._return_idle()

    def hold(self, seconds: float) -> None:
        """Let no call under the limit start for ``seconds`` or, if less, ``PATIENCE_SECONDS``.

        So even if ``seconds`` is a huge number, later jobs can make calls. Other stages may reuse
        the permits that they hold, for ``PERMIT_TURN_SECONDS`` at most.
        """
        seconds = min(seconds, PATIENCE_SECONDS)
        self._held_until = max(self._held_until, monotonic() + seconds)
        self._source.hold(seconds)
        self._return_idle()

    async def hold_and_wait(self, asked: float, pause: float) -> None:
        """Let no call under the limit start for ``asked`` seconds; wait ``pause`` seconds.

        The call that awaits this gives its permit back, and gets a permit again after the pause.
        """
        if not self._is_counting:
            # ``hold`` puts a permit into ``_used`` for each call that ``CallWindow`` counts as
            # running. ``CallWindow`` counts this call only from the next loop iteration on.
            await asyncio.sleep(0)
        self.hold(asked)
        used = self._used
        if used and (permit := used.pop()) is not None:
            self.release(permit)
            # This call has no permit now: put a None into the list. Put it at the front, because a
            # call that ends takes the last element as its permit.
            used.insert(0, None)
        try:
            await asyncio.sleep(pause)
            if self._failure is not None:
                raise self._failure
            if None in used:  # else ``_begin_rest`` found enough permits, also for this call
                permit = await self.acquire()
                if None in used:
                    used.remove(None)
                    used.append(permit)
                else:
                    self.release(permit)
        except BaseException:
            # This call ends without a permit: move its None to the end of the list, so that
            # ``call_ended`` takes the None for this call.
            if None in used:
                used.remove(None)
                used.append(None)
            raise

    def fail(self, failure: Exception) -> None:
        """Let no more calls start; waiting calls raise ``failure``."""
        self._failure = self._failure or failure
        self._return_idle()
        while self._waiting:
            if not (future := self._waiting.popitem(last=False)[0]).done():
                future.set_exception(failure)

    def close(self) -> None:
        """Give back all permits, even those of running calls; let no more calls start."""
        self.end(0)

    def end(self, running_threads: int) -> Callable[[], object]:
        """Let no more calls start; give back all permits except ``running_threads`` of them.

        The remaining permits belong to threads that still run a call. Each of these threads calls
        the returned function when its call ends, even after the loop is closed.
        """
        self._return_idle()
        self._used.clear()
        self._closed = True
        self._failure = self._failure or LimitLost("the stage is over")
        return self._source.end(running_threads)

    def _check_running_soon(self) -> None:
        """Give the idle permits back in the next loop iteration, if no call is running then.

        The event loop may stop after this iteration. Then no timer could give the permits back.
        """
        if not (self._will_check_running or self.loop.is_closed()):
            self._will_check_running = True
            self.loop.call_soon(self._check_running)

    def _check_running(self) -> None:
        self._will_check_running = False
        if not self._running:
            self._return_idle()

    def _check_idle(self) -> None:
        if self._source.is_wanted():
            self._return_idle()
        else:
            self._idle_timer = self.loop.call_later(OFFER_SECONDS, self._check_idle)

    def _return_idle(self) -> None:
        self._end_rest()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        while self._idle:
            self._source.give_back(self._idle.pop()[0])

    def _grant_to_waiting(self, permit: tuple[Any, float], weights: Weights = ()) -> bool:
        while self._waiting:
            future, requested = self._waiting.popitem(last=False)
            if not future.done():  # a future that is done belongs to a cancelled call
                if requested != weights:
                    # The permit was requested for a call with another cost: charge the difference.
                    both = zip_longest(requested, weights, fillvalue=0.0)
                    self.spend(tuple(own - asked for own, asked in both))
                future.set_result(permit)
                self._in_transit += 1
                return True
        self.spend(weights, -1)
        return False

    def _ask_if_needed(self) -> None:
        if self._requested < len(self._waiting):
            self._requested += 1
            # Request a permit for the newest waiting call: the older ones have requests already.
            self._source.ask(next(reversed(self._waiting.values())))
