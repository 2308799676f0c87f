"""The permits of a ``Limit`` in a worker: a gate on the stage's loop, and its permit sources."""

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
"""How long the calls of one stage reuse a permit (its turn) before other stages may have it."""

OFFER_SECONDS: Final = 0.01
"""How often, at most, a stage offers a permit to other stages."""

PERMIT_IDLE_SECONDS: Final = 0.002
"""How long a permit may be idle in its stage if other stages want one."""

Weights = tuple[float, ...]
"""The units of a call, in the order of their names."""


_Call = Callable[..., Awaitable[Any]]


class _PermitSource(Protocol):
    """Gives permits to a gate. Only the loop's thread may use a source."""

    def ask(self, weights: Weights) -> None:
        """Request a permit for a call that needs the units ``weights``.

        The source calls ``PermitGate.grant``.
        """

    def withdraw(self) -> bool:
        """Drop one request, since its call waits no more; return whether there was one to drop."""

    def give_back(self, permit: Any) -> None:
        """Take a permit back."""

    def is_wanted(self) -> bool:
        """Whether other stages may want a permit."""

    def offer(self, permit: Any) -> None:
        """Take a permit back, and let other stages have it first."""

    def hold(self, seconds: float) -> None:
        """Grant no permits to any stage for ``seconds``."""

    def spend(self, change: Weights) -> None:
        """Charge ``change`` more units than were asked for; negative numbers give back."""

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        """Adopt the service's report that ``left`` units remain. ``weights``: the call's units."""

    def end(self, running_threads: int) -> Callable[[], object]:
        """Return all permits except those of the ``running_threads``, whose calls still run.

        Each of these threads calls the returned function to give its permit back.
        """


class PermitGate:
    """Admits one call of a stage for each permit. Only the loop's thread may use the gate."""

    def __init__(self, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        # The units of each waiting call. The oldest call is the first.
        self._waiting: OrderedDict[asyncio.Future[tuple[Any, float]], Weights] = OrderedDict()
        self._idle: list[tuple[Any, float]] = []
        # The permits of the running calls of ``admit``; None for a call without a permit.
        self._used: list[tuple[Any, float] | None] = []
        self._in_transit = 0  # the number of permits on their way to waiting calls
        self._running = 0  # the number of calls that ``take`` and ``acquire`` have admitted
        self._will_check_running = False
        self._window: CallWindow | None = None
        # Whether ``_used`` has an element for each running call.
        self._is_counting = True
        self._idle_timer: asyncio.TimerHandle | None = None
        self._next_offer = 0.0
        self._requested = 0
        self._failure: Exception | None = None
        self._closed = False
        self._may_reuse = not limit.numbers.are_paced  # if false, each call needs a new permit
        self._reuses = self._may_reuse
        self._at_rest = False  # whether no call waits, and a timer will check the idle permits
        self._source: _PermitSource
        self._is_local = limit.scope != "job"
        if not self._is_local:
            self._source = JobPermits(self, limit, loop)
        else:
            self._source = LocalPermits(self, limit, loop)
        self._held_until = 0.0
        self.waits = Waits()
        """The time that calls wait for a permit."""
        self.traced = False
        """Whether calls may have traces, which show how long a call waited."""

    def admit(self, window: CallWindow, fn: _Call) -> Callable[[_Call], None]:
        """Admit the calls of ``fn`` that ``window`` makes, without a coroutine around each call.

        Returns a function that replaces ``fn`` for the next calls.

        While the stage has enough permits for all calls of the window, and no other stage wants a
        permit, the gate does not count permits. This saves time.
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
            # The list of used permits is empty if the gate was closed before the call ended.
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
        """Whether a permit may serve several calls in a row. Any thread may ask."""
        return self._reuses and not self._closed

    @property
    def has_failed(self) -> bool:
        """Whether the gate admits no calls any more."""
        return self._failure is not None

    @property
    def is_in_use(self) -> bool:
        """Whether calls that ``take`` and ``acquire`` have admitted run, or other calls wait."""
        return bool(self._running or self._waiting or self._in_transit)

    def take(self) -> tuple[Any, float] | None:
        """Return an idle permit, for ``release``; ``None``: no permit is idle, use ``acquire``."""
        if not self._idle:
            return None
        self._running += 1
        return self._idle.pop()

    async def acquire(self, weights: Weights = ()) -> tuple[Any, float]:
        """Wait for a permit for a call that needs the units ``weights``; return the permit."""
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
            # The future is not done if the coroutine was closed while it waited.
            if not future.done() or future.cancelled():
                self._waiting.pop(future, None)
                # A request of this call would use up a start time of the limit's rate.
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
        """Pass the permit to the next call; after ``PERMIT_TURN_SECONDS``, to another stage."""
        self._running -= 1
        if not self._running and self._is_local and self._window is None:
            self._check_running_soon()
        if self._at_rest:
            self._idle.append(permit)
            return
        # The loop has ended, and the garbage collector ends this call: return all permits.
        if self.loop.is_closed():
            self.close()
        # Do not return the permit: end() has returned it, or the call's thread will return it.
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
        """Receive a permit from the source. ``weights``: the units with which it was requested."""
        self._requested -= 1
        if not self._grant_to_waiting((permit, monotonic() + PERMIT_TURN_SECONDS), weights):
            self._source.give_back(permit)

    def spend(self, weights: Weights, times: int = 1) -> None:
        """Charge ``weights`` more units than calls had estimated; ``times=-1`` gives them back."""
        if any(weights) and not self._closed:
            self._source.spend(tuple(times * weight for weight in weights))

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        """Adopt the service's report that ``left`` units remain. ``weights``: the call's units."""
        if not self._closed:
            self._source.adopt_remaining(left, weights)

    def set_paced(self, are_paced: bool) -> None:
        """Note whether each call needs a new permit: the limit's rate or units may have changed."""
        self._may_reuse = not are_paced
        self.suspend(False)
        if are_paced:
            self._return_idle()

    def suspend(self, suspended: bool) -> None:
        """While ``suspended``, give each permit back after its call, and keep no idle permits.

        The source suspends the gate while it has no connection, and so cannot count permits.
        """
        self._reuses = self._may_reuse and not suspended
        if suspended:
            self._return_idle()

    def hold(self, seconds: float) -> None:
        """Admit no call under the limit for ``seconds``, or ``PATIENCE_SECONDS`` if that is less.

        ``PATIENCE_SECONDS`` is a bound so that later jobs can start. Other stages go on until they
        have used their permits for ``PERMIT_TURN_SECONDS``.
        """
        seconds = min(seconds, PATIENCE_SECONDS)
        self._held_until = max(self._held_until, monotonic() + seconds)
        self._source.hold(seconds)
        self._return_idle()

    async def hold_and_wait(self, asked: float, pause: float) -> None:
        """Stop all calls under the limit for ``asked`` seconds; wait ``pause`` seconds.

        The call that waits gives its permit back meanwhile, and gets a permit after the pause.
        """
        if not self._is_counting:
            # Wait a step: a call of a ``CallWindow`` counts as running only after its first step.
            await asyncio.sleep(0)
        self.hold(asked)
        used = self._used
        if used and (permit := used.pop()) is not None:
            self.release(permit)
            # Insert at the front, since a call that ends takes a permit from the end of the list.
            used.insert(0, None)
        try:
            await asyncio.sleep(pause)
            if self._failure is not None:
                raise self._failure
            if None in used:  # else a call has ended, and its permit is for this call now
                permit = await self.acquire()
                if None in used:
                    used.remove(None)
                    used.append(permit)
                else:
                    self.release(permit)
        except BaseException:
            # This call ends without a permit. Move the None that stands for it to the end of the
            # list, from which ``call_ended`` takes it.
            if None in used:
                used.remove(None)
                used.append(None)
            raise

    def fail(self, failure: Exception) -> None:
        """Admit no more calls; waiting calls raise ``failure``."""
        self._failure = self._failure or failure
        self._return_idle()
        while self._waiting:
            if not (future := self._waiting.popitem(last=False)[0]).done():
                future.set_exception(failure)

    def close(self) -> None:
        """Return all permits, even for calls that did not end; admit no more calls."""
        self.end(0)

    def end(self, running_threads: int) -> Callable[[], object]:
        """Admit no more calls. Return all permits except those of the ``running_threads``.

        Each of these threads calls the returned function when its call ends, even after the loop is
        closed.
        """
        self._return_idle()
        self._used.clear()
        self._closed = True
        self._failure = self._failure or LimitLost("the stage is over")
        return self._source.end(running_threads)

    def _check_running_soon(self) -> None:
        """Return the permits in the next step of the loop, if no call is running then.

        The loop may stop after that step, and then no timer returns them.
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
                    # Another call, with other units, requested this permit: charge the difference.
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
            # The request is for the last waiting call: the calls before it have requests already.
            self._source.ask(next(reversed(self._waiting.values())))
