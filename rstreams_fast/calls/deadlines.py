"""Time-outs of attempts and of calls, on an event loop."""

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
    """Return the number of pending cancellations of the current task (``Task.cancelling``).

    The number may be above 0 even before a call: a cancelled task may make a call to clean up.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def undo_group_cancellations(error: BaseException, before: int) -> None:
    """Undo the cancellations of the current task by task groups whose failure led to ``error``.

    If a task of a ``TaskGroup`` fails, the group cancels its parent task. Before Python 3.13 the
    group does not undo this cancellation if the parent has already left the body of the group.

    Args:
        error: The error of the call that used the task groups.
        before: The result of ``cancellations()`` before the call.
    """
    if sys.version_info < (3, 13) and cancellations() > before:
        task = cast(asyncio.Task[Any], asyncio.current_task())
        for _ in range(min(len(_groups_of(task, error)), task.cancelling() - before)):
            task.uncancel()


def _groups_of(task: asyncio.Task[Any], error: BaseException) -> set[object]:
    """Return the task groups that have cancelled ``task``, and whose failure led to ``error``."""
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
    """Applies a time-out of ``seconds`` to each of many calls.

    All time-outs are equally long, so they expire in the order in which they were set. Therefore
    one queue and one timer are enough for all calls. A call that never suspends needs no time-out.
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
        """Await ``awaitable``. If it takes longer than the time-out, raise ``TimeoutError``."""
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
            # If only this deadline has cancelled the call, raise TimeoutError, not CancelledError.
            if deadline.uncancel():
                self._counts.count_timeout()
                raise TimeoutError(f"no answer within {self._seconds} s{self._suffix}") from None
            raise
        finally:
            self._armed.pop(deadline, None)
            # If the call raised another error than CancelledError, its cancellation is still
            # pending: undo the cancellation here.
            deadline.uncancel()

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that applies the time-out to each call."""
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
    """The time limit of one call. It has no reference to the call's task until it cancels the task.

    A ``CallWindow``, which makes the calls, uses one task for many calls only if no other object
    refers to the task. This saves a third of a call's processor time.
    """

    __slots__ = ("_before", "_task", "is_due", "waits_for", "when")

    def __init__(self, when: float, before: int) -> None:
        """``before`` is the result of ``cancellations()`` before the call."""
        self.when = when
        self._before = before
        self.waits_for: Any = None
        """The future that the call awaits now."""
        self.is_due = False
        """Whether the deadline has expired, but ``cancel`` has not cancelled the task yet."""
        self._task: asyncio.Task[Any] | None = None

    def expire(self) -> None:
        """Cancel the future that the call awaits. This wakes the task, which calls ``cancel``."""
        self.is_due = True
        if self.waits_for is not None:
            self.waits_for.cancel(OUT_OF_TIME)

    @types.coroutine
    def cancel(self) -> Generator[Any, Any, BaseException]:
        """Cancel the current task; return the exception that asyncio then raises in the task."""
        self.is_due = False
        # There is a current task, because only a task can run a call that suspends.
        self._task = cast(asyncio.Task[Any], asyncio.current_task())
        self._task.cancel(OUT_OF_TIME)
        try:
            yield
        except BaseException as raised:
            return raised
        return asyncio.CancelledError(OUT_OF_TIME)

    def uncancel(self) -> bool:
        """Undo a cancellation by ``cancel``. Return whether it was the call's only cancellation."""
        task, self._task = self._task, None
        return task is not None and task.uncancel() <= self._before


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
