"""Time-outs of calls."""

from __future__ import annotations

import asyncio
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import monotonic
from typing import Any, cast

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import OUT_OF_TIME

__all__ = ["Deadlines"]


class Deadlines:
    """The time-outs of a stage's calls; only a call that suspends gets one.

    All time-outs are equally long, so they expire in the order in which they were set: one queue
    and one timer are enough. A call that returns at once costs no timer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, counts: CallCounts, of: str = ""
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._of = of
        self._counters = counts
        self._armed: OrderedDict[_Deadline, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @types.coroutine
    def wait(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await ``awaitable``; raise ``TimeoutError`` after ``seconds``."""
        coro = awaitable if asyncio.iscoroutine(awaitable) else _awaited(awaitable)
        try:
            waits_for = coro.send(None)
        except StopIteration as stop:
            return stop.value
        task = asyncio.current_task(self._loop)
        deadline = _Deadline(task, monotonic() + self._seconds)
        self._armed[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)
        try:
            return (yield from _driven(coro, waits_for))
        except asyncio.CancelledError:
            if deadline.take_back():  # only this deadline cancelled the task
                self._counters.count_timeout()
                raise TimeoutError(f"no answer within {self._seconds} s{self._of}") from None
            raise
        finally:
            self._armed.pop(deadline, None)
            deadline.take_back()  # the call may have replaced the CancelledError

    def around(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return ``fn`` with this time-out on each call."""
        return lambda *args: self.wait(fn(*args))

    def _expire(self) -> None:
        self._timer = None
        now = monotonic()
        while self._armed:
            deadline = next(iter(self._armed))
            if deadline.when > now:
                self._timer = self._loop.call_later(deadline.when - now, self._expire)
                return
            del self._armed[deadline]
            deadline.expire()


class _Deadline:
    __slots__ = ("_expired", "_task", "when")

    def __init__(self, task: asyncio.Task[Any] | None, when: float) -> None:
        self._task = cast(asyncio.Task[Any], task)  # a task drives each call that suspends
        self.when = when
        self._expired = False

    def expire(self) -> None:
        self._expired = True
        self._task.cancel(OUT_OF_TIME)

    def take_back(self) -> bool:
        """Undo the cancellation by ``expire``; whether nothing else has cancelled the task."""
        if not self._expired:
            return False
        self._expired = False
        return self._task.uncancel() <= 0


@types.coroutine
def _driven(coro: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    # Goes on driving a suspended coroutine, which has yielded waits_for.
    while True:
        try:
            argument = yield waits_for
        except BaseException as raised:
            step: Callable[[Any], Any] = coro.throw
            argument = raised
        else:
            step = coro.send
        try:
            waits_for = step(argument)
        except StopIteration as stop:
            return stop.value
        finally:
            del argument


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
