"""``concurrency="auto"``: as many calls at once as the service answers without queueing them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

from rstreams_fast.calls.attempts import longest_retry_after
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import as_timeout
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.settings import CallSettings

__all__ = ["AdaptiveGate", "Gradient"]

INITIAL: Final = 20.0
TOLERANCE: Final = 1.5
"""A latency of more than ``TOLERANCE`` times the best one cuts the limit."""

LEAST_SAMPLES: Final = 5
LEAST_STEP: Final = 4.0
FAST_GROWTH: Final = 1.1
"""A latency of less than ``FAST_GROWTH`` times the best one lets the limit grow by a quarter."""

UNDERSHOOT: Final = 0.95
"""A cut sets the limit a little too low. So the queue of the service empties, and calls have the
best latency again."""

DRIFT: Final = 1.005
"""The best latency is multiplied by this factor each round, so that an old value is forgotten."""

FUTILE_CUTS: Final = 3
"""After this number of cuts in a row the service must be slower: the best latency is reset."""

REFUSAL_FACTOR: Final = 0.9
ROUNDS_WITHOUT_GROWTH: Final = 10
"""After the service refused a call, the limit does not grow for this number of rounds."""


class Gradient:
    """A limit of calls at once, which the ratio of best to present latency adapts each round.

    A round ends when half as many calls as the limit, at least five, have ended. The class
    resembles ``Gradient2Limit`` of Netflix' ``concurrency-limits``, with the same tolerance and
    step. There are two differences. This class compares the latency with the best latency, since a
    long mean would rise with a lasting queue. A cut sets the limit at once to limit * best /
    present latency: by Little's law the number of calls that the service works on.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = min(INITIAL, float(most))
        self.round = 0
        self.busy = False
        """Whether a call had to wait in this round. Only then may the limit grow."""
        self._best = 0.0
        self._sum = 0.0
        self._samples = 0
        self._cuts = 0
        self._rounds_without_growth = 0

    def answered(self, begun_in: int, seconds: float) -> None:
        """Adapt the limit to a call that took ``seconds``. ``begun_in`` is the number of the round
        (the period with one limit) in which the call began.
        """
        if begun_in != self.round:
            # The call began under an older limit: its latency does not show the effect of the
            # present one.
            return
        self._sum += seconds
        self._samples += 1
        if self._samples >= max(self.limit / 2, LEAST_SAMPLES):
            self._decide(self._sum / self._samples)
            self._next_round()

    def refused(self, begun_in: int, running: int) -> None:
        """Cut the limit: the service refused a call while ``running`` calls were running."""
        if begun_in == self.round:
            self.limit = max(1.0, min(self.limit, running) * REFUSAL_FACTOR)
            self._rounds_without_growth = ROUNDS_WITHOUT_GROWTH
            self._next_round()

    def _next_round(self) -> None:
        self.round += 1
        self.busy = False
        self._sum = self._samples = 0

    def _decide(self, now: float) -> None:
        best = self._best = min(now, self._best * DRIFT or now)
        if now > TOLERANCE * best:
            self._cuts += 1
            if self._cuts >= FUTILE_CUTS:
                self._best, self._cuts = now, 0
                return
            self.limit = max(1.0, self.limit * best / now * UNDERSHOOT)
            return
        self._cuts = 0
        if self._rounds_without_growth:
            self._rounds_without_growth -= 1
        elif self.busy:
            step = max(LEAST_STEP, self.limit**0.5)
            if now < FAST_GROWTH * best:
                step = max(step, self.limit / 4)
            self.limit = min(self.limit + step, float(self.most))


class AdaptiveGate:
    """Admits as many calls at once as a ``Gradient`` allows. Only the loop's thread may use it."""

    def __init__(
        self, settings: CallSettings, loop: asyncio.AbstractEventLoop, counts: CallCounts
    ) -> None:
        self._loop = loop
        # A call with a list of keys returns a RetryAfter for each key that the service refused.
        self._lists = settings.batch is not None
        self._most_held = settings.policy.most_held
        self._counts = counts
        self._gradient = Gradient(settings.concurrency)
        self._running = 0
        self._hold_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait until a call may start. The caller calls ``leave`` when the call has ended."""
        if self._running < int(self._gradient.limit) and not self._hold_timer:
            self._running += 1
            return
        self._gradient.busy = True
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()
            raise

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn``. Its calls that return or time out adapt the limit."""
        gradient = self._gradient

        async def call(*args: Any) -> Any:
            begun_in, started = gradient.round, monotonic()
            try:
                result = await fn(*args)
            except RetryAfter as error:
                gradient.refused(begun_in, self._running)
                self._hold(error.seconds)
                raise
            except BaseException as error:
                if isinstance(as_timeout(error), TimeoutError):
                    gradient.answered(begun_in, monotonic() - started)
                raise
            if self._lists and (throttled := longest_retry_after(result)) is not None:
                gradient.refused(begun_in, self._running)
                self._hold(throttled.seconds)
            else:
                gradient.answered(begun_in, monotonic() - started)
            self._counts.concurrency = int(gradient.limit)
            return result

        return call

    def leave(self) -> None:
        """Note that a call has ended, and admit the next call."""
        self._running -= 1
        self._admit()

    def _hold(self, seconds: float) -> None:
        until = self._loop.time() + min(seconds, self._most_held)
        if seconds and (self._hold_timer is None or self._hold_timer.when() < until):
            if self._hold_timer is not None:
                self._hold_timer.cancel()
            self._hold_timer = self._loop.call_at(until, self._end_hold)

    def _end_hold(self) -> None:
        self._hold_timer = None
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._running < int(self._gradient.limit) and not self._hold_timer:
            # A call whose future is done was cancelled while it waited: skip it.
            if not (future := self._waiting.popleft()).done():
                self._running += 1
                future.set_result(None)
        self._gradient.busy = self._gradient.busy or bool(self._waiting)
