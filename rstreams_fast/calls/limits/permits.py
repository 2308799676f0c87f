"""The permits of a ``Limit`` in a worker: a gate on the stage's loop, and its permit sources."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from rstreams_fast.calls.counts import Waits
from rstreams_fast.calls.limits.host_locks import WATCH_SECONDS, locks_of
from rstreams_fast.calls.limits.job_permits import JobPermits, LimitLost
from rstreams_fast.calls.limits.leases import Pace
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.retry import PATIENCE_SECONDS
from rstreams_fast.core import CallWindow
from rstreams_fast.runtime.finalizers import call_from_finalizer

__all__ = ["PERMIT_IDLE_SECONDS", "LimitLost", "PermitGate"]

PERMIT_TURN_SECONDS: Final = 0.1
"""How long calls of one stage pass a permit on before other stages may have it."""

OFFER_SECONDS: Final = 0.01
"""How often, at most, a stage offers a permit to other stages."""

PERMIT_IDLE_SECONDS: Final = 0.002
"""How long a permit may be idle in its stage if other stages want one."""

POLL_SECONDS: Final = 0.002
"""How often a waiting stage tries to lock a permit of the host: a free lock notifies no process."""

RESERVE_SECONDS: Final = 0.1
"""How far ahead a stage reserves start times for calls after its next one."""


class _PermitSource(Protocol):
    """Where a gate gets its permits. Used on the loop's thread only."""

    def ask(self) -> None:
        """Request a permit: ``PermitGate.grant`` will be called."""

    def give_back(self, permit: Any) -> None:
        """Take a permit back."""

    def wanted(self) -> bool:
        """Whether other stages may want a permit."""

    def offer(self, permit: Any) -> None:
        """Take a permit back, and let other stages have it first."""

    def hold(self, seconds: float) -> None:
        """Grant no permits to any stage for ``seconds``."""

    def end(self, inside: int) -> Callable[[], object]:
        """End; return all but ``inside`` permits. A thread calls the result to return one."""


class PermitGate:
    """Lets as many calls of a stage pass as there are permits. The loop's thread only."""

    def __init__(self, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[tuple[Any, float]]] = deque()
        self._idle: list[tuple[Any, float]] = []
        self._used: list[tuple[Any, float] | None] = []  # of a window's calls; None: a failed call
        self._passing = 0  # permits on their way to waiting calls
        self._window: CallWindow | None = None
        self._counts = True  # whether permits of the window's calls are counted
        self._returning: asyncio.TimerHandle | None = None
        self._next_offer = 0.0
        self._asked = 0
        self._failure: Exception | None = None
        self._closed = False
        self._may_keep = limit.rate is None  # with a rate, each call needs a new permit
        self._keeps = self._may_keep
        self._at_rest = False  # no call waits, and a timer will look at idle permits
        self._source: _PermitSource
        if limit.scope == "job":
            self._source = JobPermits(self, limit, loop)
        else:
            self._source = _HostPermits(self, limit, loop)
        self._held_until = 0.0
        self.waits = Waits()
        """The time that calls wait for a permit."""

    def admit(self, window: CallWindow, fn: Callable[..., Awaitable[Any]]) -> None:
        """Let calls of ``fn``, which ``window`` makes, pass, without a coroutine around each.

        While the stage has a permit for each call, and no other stage wants one, permits are not
        counted: as many are in use as calls run.
        """
        idle, used = self._idle, self._used
        take, use, leave = idle.pop, used.append, used.pop

        async def after_waiting(*args: Any) -> Any:
            permit = None
            try:
                permit = await self.acquire()
            finally:
                use(permit)
            return await fn(*args)

        def counted(*args: Any) -> Awaitable[Any]:
            if not idle:
                return after_waiting(*args)
            use(take())
            return fn(*args)

        def call_ended() -> None:
            permit = leave() if used else None  # empty: the stage was closed
            if permit is not None:
                self.release(permit)

        self._window = window
        self._count = partial(window.call_with, counted, call_ended)
        self._do_not_count = partial(window.call_with, fn)
        self._count()

    def _rest(self) -> None:
        self._at_rest = True
        if self._window is None or self._passing:
            return
        used = [permit for permit in self._used if permit is not None]
        if len(self._idle) + len(used) >= self._window.concurrency:
            self._idle += used
            self._used.clear()
            self._counts = False
            self._do_not_count()

    def _end_rest(self) -> None:
        self._at_rest = False
        if self._window is not None and not self._counts:
            self._counts = True
            self._count()
            self._used += [self._idle.pop() for _ in range(self._window.running)]

    @property
    def keeps(self) -> bool:
        """Whether a permit may serve several calls, until its time is over. Any thread may ask."""
        return self._keeps and not self._closed

    def take(self) -> tuple[Any, float] | None:
        """Return an idle permit, for ``release``; ``None``: use ``acquire``."""
        return self._idle.pop() if self._idle else None

    async def acquire(self) -> tuple[Any, float]:
        """Wait for a permit; ``release`` takes it back."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[tuple[Any, float]] = self._loop.create_future()
        self._waiting.append(future)
        self._at_rest = False
        self._ask_if_needed()
        try:
            with self.waits:
                permit = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._passing -= 1
                self.release(future.result())
            raise
        self._passing -= 1
        return permit

    def release(self, permit: tuple[Any, float]) -> None:
        """Pass the permit to the next call of this stage, or offer it to others after its turn."""
        if self._at_rest:
            self._idle.append(permit)
            return
        if self._closed:  # end() has returned the permit, or the thread will
            return
        now = monotonic()
        if not self._keeps or now < self._held_until:
            self._source.give_back(permit[0])
            self._ask_if_needed()
            return
        if now >= permit[1] and now >= self._next_offer:
            self._next_offer = now + OFFER_SECONDS
            if self._source.wanted():
                self._source.offer(permit[0])
                self._ask_if_needed()
                return
        if not (self._waiting and self._pass(permit)):
            self._idle.append(permit)
            if self._returning is None:
                self._returning = self._loop.call_later(PERMIT_IDLE_SECONDS, self._look_at_idle)
            self._rest()

    def grant(self, permit: Any) -> None:
        """Receive a permit from the source."""
        self._asked -= 1
        if not self._pass((permit, monotonic() + PERMIT_TURN_SECONDS)):
            self._source.give_back(permit)

    def suspend(self, suspended: bool) -> None:
        """Keep no permits and reuse none, while the source does not count them."""
        self._keeps = self._may_keep and not suspended
        if suspended:
            self._return_idle()

    def hold(self, seconds: float) -> None:
        """Let no call of the limit pass for ``seconds``; other stages hold after their turns.

        At most ``PATIENCE_SECONDS``: the limit outlives the job, and the next job must start.
        """
        seconds = min(seconds, PATIENCE_SECONDS)
        self._held_until = max(self._held_until, monotonic() + seconds)
        self._source.hold(seconds)
        self._return_idle()

    async def hold_and_wait(self, asked: float, pause: float) -> None:
        """Hold the limit for ``asked`` seconds; wait ``pause`` seconds to repeat an admitted call,
        whose permit is returned meanwhile.
        """
        if not self._counts:
            await asyncio.sleep(0)  # a call in its first step does not count as running
        self.hold(asked)
        used = self._used
        if used and (permit := used.pop()) is not None:
            self.release(permit)
            used.insert(0, None)  # ending calls take permits from the other end
        try:
            await asyncio.sleep(pause)
            if self._failure is not None:
                raise self._failure
            if None in used:  # no None: all running calls have permits
                permit = await self.acquire()
                if None in used:
                    used.remove(None)
                    used.append(permit)
                else:
                    self.release(permit)
        except BaseException:
            if None in used:  # this call ends without a permit
                used.remove(None)
                used.append(None)
            raise

    def fail(self, failure: Exception) -> None:
        """Let no more calls pass; waiting calls raise ``failure``."""
        self._failure = self._failure or failure
        self._return_idle()
        while self._waiting:
            if not (future := self._waiting.popleft()).done():
                future.set_exception(failure)

    def close(self) -> None:
        """Return all permits, even for calls that did not end; let no more calls pass."""
        self.end(0)

    def end(self, inside: int) -> Callable[[], object]:
        """Let no more calls pass; return all permits but those of ``inside`` calls on threads.

        Each of those threads calls the result when its call ends, even after the loop is closed.
        """
        self._return_idle()
        self._used.clear()
        self._closed = True
        self._failure = self._failure or LimitLost("the stage is over")
        return self._source.end(inside)

    def _look_at_idle(self) -> None:
        if self._source.wanted():
            self._return_idle()
        else:
            self._returning = self._loop.call_later(OFFER_SECONDS, self._look_at_idle)

    def _return_idle(self) -> None:
        self._end_rest()
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        while self._idle:
            self._source.give_back(self._idle.pop()[0])

    def _pass(self, permit: tuple[Any, float]) -> bool:
        while self._waiting:
            if not (future := self._waiting.popleft()).done():  # done: the call was cancelled
                future.set_result(permit)
                self._passing += 1
                return True
        return False

    def _ask_if_needed(self) -> None:
        if self._asked < len(self._waiting):
            self._asked += 1
            self._source.ask()


# -- a host: locks of a file -----------------------------------------------------------------------


class _HostPermits:
    """Takes permits by locking bytes of the host's file; polls while no byte is free."""

    def __init__(self, gate: PermitGate, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._name = limit.name
        self._loop = loop
        self._locks = locks_of(limit.name)
        self._locks.join(limit)
        self._leave = weakref.finalize(self, call_from_finalizer, self._locks.leave)
        self._leave.atexit = False
        self._ended = False
        self._concurrency = limit.concurrency
        self._pace = Pace(limit.rate, limit.burst)
        self._asked = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._offered_until = 0.0
        self._due: dict[int, tuple[asyncio.TimerHandle, int | None]] = {}
        self._last_due = 0.0
        self._numbers = itertools.count()
        self._taken: set[int] = set()
        self._watch: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        self._asked += 1
        if self._watch is None:
            self._watch_later()
        if self._next_look is None:
            if (rest := self._offered_until - monotonic()) > 0:
                self._next_look = self._loop.call_later(rest, self._look)
            else:
                self._look()

    def _watch_later(self) -> None:
        self._watch = self._loop.call_later(WATCH_SECONDS, _follow_file, weakref.ref(self))

    def follow_file(self) -> None:
        """Move to the file that other processes find now, if ours was removed."""
        self._watch = None
        if self._taken or self._due or self._asked:
            try:
                self._locks.follow()
            except OSError as raised:
                self._fail(raised)
            else:
                self._watch_later()

    def _look(self) -> None:
        try:
            self._take_permits()
        except OSError as raised:
            self._fail(raised)

    def _fail(self, raised: OSError) -> None:
        # An error of the file, such as a full disk, is the stage's, not the waiting row's.
        path = self._locks.path
        failure = LimitLost(
            f"the file of the limit {self._name!r} cannot be used: {path}: {raised}"
        )
        failure.__cause__ = raised
        self._gate.fail(failure)

    def _take_permits(self) -> None:
        self._next_look = None
        while self._asked and not self._has_enough_due():
            byte, dying = None, 0.0
            if self._concurrency is not None:
                if (taken := self._locks.take_one(self._concurrency)) is not None:
                    byte, dying = taken
                    self._taken.add(byte)
                else:
                    wait = POLL_SECONDS * (0.5 + random.random())  # noqa: S311 - not all at once
                    self._next_look = self._loop.call_later(wait, self._look)
                    return
            self._asked -= 1
            self._grant(byte, dying)

    def _grant(self, byte: int | None, dying: float = 0.0) -> None:
        start = monotonic() + dying if dying else self._locks.reserve(self._pace)
        if (wait := start - monotonic()) > 0:
            number = next(self._numbers)
            timer = self._loop.call_later(wait, self._check, number, 0.0 if dying else start)
            self._due[number] = timer, byte
            self._last_due = start
        else:
            self._gate.grant(byte)

    def _has_enough_due(self) -> bool:
        """Whether to reserve no more start times: they are wasted if the stage fails."""
        return bool(self._due) and self._last_due > monotonic() + RESERVE_SECONDS

    def _check(self, number: int, due: float) -> None:
        """Grant a permit at its start time; if the time was missed or is held, reserve another."""
        _, byte = self._due.pop(number)
        try:
            # A timer may fire a millisecond early: that alone does not waste the start time.
            if monotonic() > due + self._pace.late or self._locks.held_until() > due:
                self._grant(byte)
            else:
                self._gate.grant(byte)
        except OSError as raised:
            self._fail(raised)
        if self._asked and self._next_look is None:
            self._look()

    def give_back(self, permit: int | None) -> None:
        if permit is not None:
            self._taken.discard(permit)
            try:
                self._locks.give_back(permit)
            except OSError as raised:
                self._fail(raised)

    def wanted(self) -> bool:
        try:
            return self._locks.wanted()
        except OSError as raised:
            self._fail(raised)
            return True

    def offer(self, permit: int | None) -> None:
        self.give_back(permit)
        self._offered_until = monotonic() + 1.5 * POLL_SECONDS  # other stages poll before then

    def hold(self, seconds: float) -> None:
        try:
            self._locks.hold(seconds)
        except OSError as raised:
            self._fail(raised)

    def end(self, inside: int) -> Callable[[], object]:
        self._asked = 0
        if self._next_look is not None:
            self._next_look.cancel()
        for timer, _ in self._due.values():
            timer.cancel()
        self._due.clear()
        if self._watch is not None:
            self._watch.cancel()
        while len(self._taken) > inside:
            self._give_one_back()
        self._ended = True
        if not self._taken:
            self._leave()
        return self._give_one_back

    def _give_one_back(self) -> None:
        with contextlib.suppress(KeyError, OSError):
            self._locks.give_back(self._taken.pop())
        if self._ended and not self._taken:
            self._leave()


def _follow_file(of: weakref.ref[_HostPermits]) -> None:
    # A timer with a strong reference would keep an unused source, and its file, alive.
    if (permits := of()) is not None:
        permits.follow_file()
