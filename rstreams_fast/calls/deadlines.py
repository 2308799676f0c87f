"""Time-outs of calls."""

from __future__ import annotations

import asyncio
import sys
import traceback
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from typing import Any, cast

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import OUT_OF_TIME

__all__ = ["Deadlines", "cancellations", "undo_group_cancellations"]


def cancellations() -> int:
    """Return how many cancellations of the current task are pending (``Task.cancelling``).

    The number is above 0 before a call, too, if a cancelled task makes the call to clean up.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def undo_group_cancellations(error: BaseException, before: int) -> None:
    """Undo the cancellations of the current task that task groups left when they raised ``error``.

    Before Python 3.13 a ``TaskGroup`` cancels its parent task when another task of the group fails.
    If the parent has left the body of the group then, the group never undoes this.

    Args:
        before: The number of ``cancellations`` before the call.
    """
    if sys.version_info < (3, 13) and cancellations() > before:
        task = cast(asyncio.Task[Any], asyncio.current_task())
        for _ in range(min(len(_groups_of(task, error)), task.cancelling() - before)):
            task.uncancel()


def _groups_of(task: asyncio.Task[Any], error: BaseException) -> set[object]:
    """Return the groups whose errors led to ``error``, and that left ``task`` cancelled."""
    groups, seen, errors = set[object](), set[int](), [error]
    while errors:
        each = errors.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        errors += [other for other in (each.__cause__, each.__context__) if other is not None]
        if not isinstance(each, BaseExceptionGroup):
            continue
        errors += each.exceptions
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
                group, raised_in_body = frame.f_locals["self"], frame.f_locals["et"]
                cancelled = group._parent_task is task and group._parent_cancel_requested
                if cancelled and raised_in_body is None:
                    groups.add(group)
    return groups


class Deadlines:
    """The time-outs of a stage's calls. Only a call that suspends gets a time-out.

    All time-outs are equally long, so they expire in the order in which they were set: one queue
    and one timer are enough. A call that returns at once costs no timer.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, counts: CallCounts, suffix: str = ""
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._suffix = suffix
        self._counts = counts
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
        deadline = _Deadline(monotonic() + self._seconds, cancellations())
        self._armed[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)
        try:
            while True:
                deadline.waits_for = waits_for
                try:
                    argument = yield waits_for
                except BaseException as raised:
                    step: Callable[[Any], Any] = coro.throw
                    argument = raised
                else:
                    step = coro.send
                if deadline.is_due and not isinstance(argument, GeneratorExit):
                    step, argument = coro.throw, (yield from deadline.cancel())
                try:
                    waits_for = step(argument)
                except StopIteration as stop:
                    return stop.value
                finally:
                    del argument
        except asyncio.CancelledError:
            # Only this deadline cancelled the call, so the cancellation becomes a time-out.
            if deadline.uncancel():
                self._counts.count_timeout()
                raise TimeoutError(f"no answer within {self._seconds} s{self._suffix}") from None
            raise
        finally:
            self._armed.pop(deadline, None)
            # If the call raised another error than CancelledError, the cancellation is undone here.
            deadline.uncancel()

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that applies this time-out to each call."""
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
    """The time limit of one call.

    A ``CallWindow`` uses one task for many calls, as long as no other object refers to the task.
    This saves a third of a call's processor time. So the deadline looks up the task only when it
    cancels the task.
    """

    __slots__ = ("_before", "_task", "is_due", "waits_for", "when")

    def __init__(self, when: float, before: int) -> None:
        """``before`` is the number of ``cancellations`` before the call."""
        self.when = when
        self._before = before
        self.waits_for: Any = None
        """The future for which the call waits."""
        self.is_due = False
        """Whether the deadline has expired, and the task is not cancelled yet."""
        self._task: asyncio.Task[Any] | None = None

    def expire(self) -> None:
        """Wake the task. Like ``Task.cancel``, this cancels the future that the task awaits."""
        self.is_due = True
        if self.waits_for is not None:
            self.waits_for.cancel(OUT_OF_TIME)

    @types.coroutine
    def cancel(self) -> Generator[Any, Any, BaseException]:
        """Cancel the current task; return the exception that the task's next step raises."""
        self.is_due = False
        # The cast is safe: only a task can run a call that suspends, so a current task exists.
        self._task = cast(asyncio.Task[Any], asyncio.current_task())
        self._task.cancel(OUT_OF_TIME)
        try:
            yield
        except BaseException as raised:
            return raised
        return asyncio.CancelledError(OUT_OF_TIME)

    def uncancel(self) -> bool:
        """Undo the cancellation by ``cancel``; return whether nothing else cancelled the call."""
        task, self._task = self._task, None
        return task is not None and task.uncancel() <= self._before


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
