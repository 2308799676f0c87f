"""``concurrency="auto"``: finds how many concurrent calls a service processes without a queue."""

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
"""A mean latency above ``TOLERANCE`` times the best latency reduces the limit."""

LEAST_SAMPLES: Final = 5
LEAST_STEP: Final = 4.0
FAST_GROWTH: Final = 1.1
"""A mean latency below ``FAST_GROWTH`` times the best latency lets the limit grow by a quarter."""

UNDERSHOOT: Final = 0.95
"""A reduced limit is also multiplied by this factor. With slightly fewer calls the service empties
its queue, and calls have the best latency again."""

DRIFT: Final = 1.005
"""Each round multiplies the stored best latency by this factor, so that an old minimum expires."""

FUTILE_CUTS: Final = 3
"""If this number of reductions in a row does not help, the service itself has become slower. Then
the present latency becomes the new best latency."""

REFUSAL_FACTOR: Final = 0.9
ROUNDS_WITHOUT_GROWTH: Final = 10
"""After the service has refused a call, the limit does not grow for this number of rounds."""


class Gradient:
    """A limit of concurrent calls, adapted to the ratio of the best to the present latency.

    The limit changes at the end of each round. A round ends when half as many calls as the limit,
    at least five, have ended. The algorithm is that of ``Gradient2Limit`` in Netflix'
    ``concurrency-limits``, with the same tolerance and step, but with two differences. This class
    compares the present latency with the best latency, not with a long mean, because a long mean
    rises while a queue lasts. A reduction sets the limit in one step to limit * best latency /
    present latency. By Little's law this is the number of calls that the service processes without
    queueing them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = min(INITIAL, float(most))
        self.round = 0
        self.busy = False
        """Whether a call had to wait for the limit in this round. Only then may the limit grow."""
        self._best = 0.0
        self._sum = 0.0
        self._samples = 0
        self._cuts = 0
        self._rounds_without_growth = 0

    def answered(self, begun_in: int, seconds: float) -> None:
        """Adapt the limit to a call that began in round ``begun_in`` and took ``seconds``."""
        if begun_in != self.round:
            # The call began under an earlier limit: its latency says nothing about this limit.
            return
        self._sum += seconds
        self._samples += 1
        if self._samples >= max(self.limit / 2, LEAST_SAMPLES):
            self._decide(self._sum / self._samples)
            self._next_round()

    def refused(self, begun_in: int, running: int) -> None:
        """Reduce the limit, because the service refused a call that began in round ``begun_in``.

        ``running`` is the number of calls that were running at the refusal.
        """
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
    """Admits as many concurrent calls as a ``Gradient`` allows.

    Only the event loop's thread may use the gate.
    """

    def __init__(
        self, settings: CallSettings, loop: asyncio.AbstractEventLoop, counts: CallCounts
    ) -> None:
        self._loop = loop
        # With ``batch`` the results of a call may include a RetryAfter for each refused key.
        self._lists = settings.batch is not None
        self._most_held = settings.policy.most_held
        self._counts = counts
        self._gradient = Gradient(settings.concurrency)
        self._running = 0
        self._hold_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait until a call may start. When the call has ended, the caller must call ``leave``."""
        if self._running < int(self._gradient.limit) and not self._hold_timer:
            self._running += 1
            return
        self._gradient.busy = True
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        except BaseException:
            if not future.done():
                # The coroutine was closed while it waited: admit no call that nobody makes.
                self._waiting.remove(future)
            elif not future.cancelled():
                self.leave()
            raise

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that adapts the limit to the latencies and refusals of calls.

        A call that raises or returns ``RetryAfter`` was refused by the service.
        """
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
            else:
                if self._lists and (throttled := longest_retry_after(result)) is not None:
                    gradient.refused(begun_in, self._running)
                    self._hold(throttled.seconds)
                else:
                    gradient.answered(begun_in, monotonic() - started)
                return result
            finally:
                self._counts.concurrency = int(gradient.limit)

        return call

    def leave(self) -> None:
        """Record that a call has ended, and admit the next waiting call."""
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
            # If the future is done, its call was cancelled while it waited: skip the future.
            if not (future := self._waiting.popleft()).done():
                self._running += 1
                future.set_result(None)
        self._gradient.busy = self._gradient.busy or bool(self._waiting)
