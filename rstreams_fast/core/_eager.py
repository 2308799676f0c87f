"""Starting a coroutine at once, and making a task of it only if it has to wait.

Most of what ``asyncio.create_task`` costs (the task's construction, a trip through the loop, a
callback) is wasted on a coroutine that never suspends: a cache hit, an early return. Here the first
step runs in the caller. A task object is allocated before, because the coroutine may ask for
``asyncio.current_task()`` (``asyncio.timeout`` and most clients do) and must see the same one after
it was suspended; but the object is initialised, and so known to the loop, only on suspension, or
when somebody asks it for more than its identity.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from rstreams_fast._checks import describe_callable

__all__ = [
    "PENDING",
    "EagerTask",
    "as_coroutine",
    "hand_over",
    "put_aside",
    "retrieve",
    "start",
    "take_cancellation",
]

PENDING = object()
"""What ``start`` returns first when the coroutine was suspended."""


class Introducing(Protocol):
    """What an ``EagerTask`` is made known to the loop by."""

    def introduce(self, task: EagerTask, /) -> None:
        """Initialise ``task``, once."""
        ...


class EagerTask(asyncio.Task[Any]):
    """The task of a call, from its first step on, which runs before the loop knows of it.

    Until ``introduce``, the ``asyncio.Task`` below is allocated but not initialised. Its
    identity, ``done()``, ``cancelling()`` and the like are sound; every method that needs more
    introduces the task first.
    """

    __slots__ = ("call",)

    call: Introducing | None

    def introduce(self) -> None:
        """Make the task known to the loop, if it is not yet."""
        call = self.call
        if call is not None:
            self.call = None
            call.introduce(self)


def _introducing(name: str) -> Callable[..., Any]:
    method = getattr(asyncio.Task, name)

    def call(self: EagerTask, *args: Any, **kwargs: Any) -> Any:
        self.introduce()
        return method(self, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = method.__doc__
    return call


for _name in (
    "__await__",
    "__iter__",
    "__repr__",
    "add_done_callback",
    "cancel",
    "exception",
    "get_context",
    "get_coro",
    "get_loop",
    "get_name",
    "get_stack",
    "print_stack",
    "remove_done_callback",
    "result",
    "set_name",
):
    if hasattr(asyncio.Task, _name):  # get_context came with 3.12
        setattr(EagerTask, _name, _introducing(_name))


def retrieve(task: asyncio.Task[Any], /) -> None:
    """Tell asyncio that a task's exception is known: it went another way."""
    if not task.cancelled():
        task.exception()


async def _await(awaitable: Any) -> Any:
    return await awaitable


def as_coroutine(fn: Callable[..., Any], awaitable: Any) -> Coroutine[Any, Any, Any]:
    """Return what ``fn`` returned as a coroutine, or raise a ``TypeError`` that names ``fn``."""
    if asyncio.iscoroutine(awaitable):
        return awaitable
    if hasattr(type(awaitable), "__await__"):
        return _await(awaitable)
    raise TypeError(
        f"{describe_callable(fn)} returned {type(awaitable).__name__}, which cannot be awaited"
    )


def put_aside(waits_for: Any) -> Any:
    """Lower the flag of a future that was yielded to nobody, and return it.

    The flag says that an ``await`` yields the future, and a task that gets it lowers it. As
    long as it is up, nobody else can wait for that future.
    """
    if getattr(waits_for, "_asyncio_future_blocking", None):
        waits_for._asyncio_future_blocking = False
    return waits_for


def hand_over(waits_for: Any) -> Any:
    """Raise the flag of a future that was put aside, for the task that gets it now."""
    if getattr(waits_for, "_asyncio_future_blocking", None) is not None:
        waits_for._asyncio_future_blocking = True
    return waits_for


def take_cancellation(raised: BaseException, waits_for: Any) -> bool:
    """Whether ``waits_for``, which no task waits for yet, takes the cancellation on itself.

    So does the future a task waits for: it is cancelled first, and the coroutine learns from it.
    """
    return (
        isinstance(raised, asyncio.CancelledError)
        and hasattr(waits_for, "cancel")
        and bool(waits_for.cancel())
    )


class _Call(Coroutine[Any, Any, Any]):
    """One call of ``fn``: its first step, in a context of its own, then what a task drives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.context = contextvars.copy_context()
        self.coro: Any = None
        self.waits_for: Any = None
        self.suspended = False  # by the first step, and not driven on since
        self.finished = False  # by the first step
        self.result: Any = None
        self.error: BaseException | None = None

    def first_step(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self.coro = as_coroutine(fn, fn(*arguments))
        except BaseException as raised:
            self.error = raised
            self.finished = True
            return
        try:
            self.waits_for = put_aside(self.coro.send(None))
        except StopIteration as stop:
            self.result = stop.value
            self.finished = True
        except BaseException as raised:
            self.error = raised
            self.finished = True
        else:
            self.suspended = True

    def introduce(self, task: EagerTask, /) -> None:
        asyncio.Task.__init__(task, self, loop=self.loop, context=self.context)

    def send(self, value: Any, /) -> Any:
        if self.suspended:
            self.suspended = False
            waits_for, self.waits_for = self.waits_for, None
            return hand_over(waits_for)
        if not self.finished:
            return self.coro.send(value)
        if self.error is not None:
            raise self.error
        raise StopIteration(self.result)

    def throw(self, raised: Any, value: Any = None, _traceback: Any = None, /) -> Any:
        error = raised if value is None else value
        if self.finished:
            raise error
        if self.suspended:
            self.suspended = False
            waits_for, self.waits_for = self.waits_for, None
            if take_cancellation(error, waits_for):
                return hand_over(waits_for)
        return self.coro.throw(error)

    def close(self) -> None:
        if self.coro is not None:
            self.coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise RuntimeError("a call is driven by its task alone")

    def __getattr__(self, name: str) -> Any:
        # What debuggers and task groups ask a task's coroutine: __qualname__, cr_frame, cr_code.
        return getattr(self.coro, name)


_REFERENCES = 2  # to a task that nobody kept: ours, and the argument of getrefcount


def start(
    fn: Callable[..., Any], arguments: tuple[Any, ...], loop: asyncio.AbstractEventLoop
) -> tuple[Any, asyncio.Task[Any] | None]:
    """Call ``fn`` and run the first step of what it returns on the running ``loop``.

    Returns ``(result, None)`` when it finished, ``(PENDING, task)`` when it was suspended; raises
    what it raised. Must be called from a callback of the loop, not from within a task.
    """
    call = _Call(loop)
    task = EagerTask.__new__(EagerTask)
    task.call = call
    _enter_task(loop, task)
    try:
        call.context.run(call.first_step, fn, arguments)
    finally:
        _leave_task(loop, task)
    if call.suspended:
        task.introduce()
        return PENDING, task
    if task.call is None or sys.getrefcount(task) > _REFERENCES:
        # Somebody keeps the task, or has asked it for something: let it run to its end.
        task.introduce()
        task.add_done_callback(retrieve)
    if call.error is not None:
        raise call.error
    return call.result, None
