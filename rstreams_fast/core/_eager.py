"""Starting a coroutine at once, and making a task of it only if it has to wait.

Most of what ``asyncio.create_task`` costs (the task's construction, a trip through the loop, a
callback) is wasted on a coroutine that never suspends: a cache hit, an early return. Here
the first step runs in the caller. A task object is allocated before, because the coroutine may ask for
``asyncio.current_task()`` (``asyncio.timeout`` and most clients do) and must see the same one after it
was suspended; but the object is initialised, and so known to the loop, only on suspension.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from typing import Any

__all__ = ["PENDING", "resume", "start"]

PENDING = object()
"""What :func:`start` returns first when the coroutine was suspended."""


@types.coroutine
def _continue(coro: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    # The task that drives this first gets what the coroutine has already yielded.
    while True:
        try:
            value = yield waits_for
        except BaseException as raised:
            step = coro.throw
            argument: Any = raised
        else:
            step = coro.send
            argument = value
        try:
            waits_for = step(argument)
        except StopIteration as stop:
            return stop.value
        finally:
            del argument


async def resume(coro: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    """Drive on a coroutine whose first step yielded ``waits_for``."""
    return await _continue(coro, waits_for)


def start(
    coro: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
) -> tuple[Any, asyncio.Task[Any] | None]:
    """Run the first step of ``coro`` on the running ``loop``, outside of any task.

    Returns ``(result, None)`` when it finished, ``(PENDING, task)`` when it was suspended; raises
    what it raised. Must be called from a callback of the loop, not from within a task.
    """
    task: asyncio.Task[Any] = asyncio.Task.__new__(asyncio.Task)
    context = contextvars.copy_context()
    _enter_task(loop, task)
    try:
        waits_for = context.run(coro.send, None)
    except StopIteration as stop:
        return stop.value, None
    finally:
        _leave_task(loop, task)
    task.__init__(resume(coro, waits_for), loop=loop, context=context)  # type: ignore[misc]
    return PENDING, task
