"""``start`` runs the first step of a coroutine. Only a suspended coroutine becomes a task.

Some coroutines are never suspended, for instance because they return a cached value. For them, most
of the cost of ``asyncio.create_task`` is wasted: a task, an iteration of the loop, a callback. So
the caller itself runs the first step of the coroutine. A task object is allocated before that step,
because the coroutine may call ``asyncio.current_task()``, as ``asyncio.timeout`` does. Later steps
must see the same task. The task is initialised, and registered with the event loop, only when the
coroutine is suspended, or when other code uses more of the task than its identity.
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
"""``start`` returns this in place of a result if the coroutine was suspended."""


class Introducing(Protocol):
    """A call of an async function. It initialises its asyncio task object only if this is needed.

    Before that, the object is only allocated. Most calls end in their first step, and need no task.
    """

    def introduce(self, task: EagerTask, /) -> None:
        """Initialise ``task``, the asyncio task of this call of an async function.

        This registers the task with the event loop, which then runs the task. Called at most once.
        """
        ...


class EagerTask(asyncio.Task[Any]):
    """The task of a call of an async function, allocated before the first step of its coroutine.

    Only ``introduce`` calls ``asyncio.Task.__init__``. Before that, code may compare the task by
    ``is``, and call ``done()`` and ``cancelling()``. Other methods call ``introduce`` first.
    """

    __slots__ = ("call",)

    call: Introducing | None

    def introduce(self) -> None:
        """Initialise the task and register it with the event loop, unless that was done before."""
        call = self.call
        if call is not None:
            self.call = None
            call.introduce(self)


def _introducing_method(name: str) -> Callable[..., Any]:
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
    if hasattr(asyncio.Task, _name):  # get_context exists since CPython 3.12
        setattr(EagerTask, _name, _introducing_method(_name))


def retrieve(task: asyncio.Task[Any], /) -> None:
    """Mark a task's exception as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


async def _await(awaitable: Any) -> Any:
    return await awaitable


def as_coroutine(fn: Callable[..., Any], awaitable: Any) -> Coroutine[Any, Any, Any]:
    """Return ``awaitable``, which ``fn`` has returned, as a coroutine.

    Raises a ``TypeError`` that names ``fn`` if ``awaitable`` cannot be awaited.
    """
    if asyncio.iscoroutine(awaitable):
        return awaitable
    if hasattr(type(awaitable), "__await__"):
        return _await(awaitable)
    raise TypeError(
        f"{describe_callable(fn)} returned {type(awaitable).__name__}, which cannot be awaited"
    )


def put_aside(waits_for: Any) -> Any:
    """Clear the flag ``_asyncio_future_blocking`` of a yielded future, and return the future.

    ``await`` sets the flag when it yields the future. Normally a task receives the future and
    clears the flag. Here no task runs yet, so this function clears the flag. Otherwise no other
    task could wait for the future.
    """
    if getattr(waits_for, "_asyncio_future_blocking", None):
        waits_for._asyncio_future_blocking = False
    return waits_for


def hand_over(waits_for: Any) -> Any:
    """Set the flag ``_asyncio_future_blocking`` of a future again, and return the future.

    ``put_aside`` has cleared the flag. But a task accepts a yielded future only if its flag is set.
    """
    if getattr(waits_for, "_asyncio_future_blocking", None) is not None:
        waits_for._asyncio_future_blocking = True
    return waits_for


def take_cancellation(raised: BaseException, waits_for: Any) -> bool:
    """If ``raised`` is a cancellation, cancel ``waits_for``. Return true if that was possible.

    A coroutine ran its first step without a task, and waits for the future ``waits_for``. If its
    later task is cancelled before it has received the future, the task throws ``raised``. A task
    that has the future cancels the future instead, so this function does the same.
    """
    return (
        isinstance(raised, asyncio.CancelledError)
        and hasattr(waits_for, "cancel")
        and bool(waits_for.cancel())
    )


class _EagerCall(Coroutine[Any, Any, Any]):
    """One call of an async function.

    The object runs the first step of the call. If a task is needed, this object serves as the
    coroutine of the task, and passes each further step on to the real coroutine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.context = contextvars.copy_context()
        self.coro: Any = None
        self.waits_for: Any = None
        self.suspended = False  # True between the first and the second step of the coroutine
        self.finished = False
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
        # Debuggers and task groups read __qualname__, cr_frame and cr_code of a task's coroutine.
        return getattr(self.coro, name)


# The result of sys.getrefcount(task) in ``start`` if no other code refers to the task. Two
# references are counted: the local variable ``task`` and the argument of getrefcount.
_REFERENCES = 2


def start(
    fn: Callable[..., Any], arguments: tuple[Any, ...], loop: asyncio.AbstractEventLoop
) -> tuple[Any, asyncio.Task[Any] | None]:
    """Call ``fn`` and run the first step of its coroutine on the running ``loop``.

    Returns ``(result, None)`` if the coroutine finished in that step, and ``(PENDING, task)`` if it
    was suspended. If the step raises an exception, ``start`` raises it, too. Callbacks of the loop
    may call this function. Tasks must not: asyncio allows only one current task.
    """
    call = _EagerCall(loop)
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
        # The coroutine has finished, but other code refers to the task object, or has called its
        # methods, and may await the task. So initialise the task, if no method has done so. Then
        # the loop runs one step of the task, which only sets the coroutine's result.
        task.introduce()
        task.add_done_callback(retrieve)
    if call.error is not None:
        raise call.error
    return call.result, None
