"""Who awaits a stream: a task, on whose loop also that belongs which other threads subscribe to.

Clients and locks of asyncio are bound to a loop. What a stream subscribes to later, when a timer
rings, or on a worker, finds the loop here; a context variable is how it gets there. As long as the
task is there, its loop goes on; and when that is closed, the task was cancelled before, and with
it the stream: so no call is lost that somebody waits for.

Nothing here imports asyncio: a program that has no loop never loads it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.parking import running_loop

if TYPE_CHECKING:
    import asyncio

__all__ = ["HERE", "awaited_by_nobody", "awaited_by_this_task", "loop_of_program"]

HERE: Final = threading.local()
"""``private``: a weak reference to the private loop that runs in this thread, if one does."""

_awaiting: Final[ContextVar[tuple[weakref.ref[asyncio.Task[Any]], int] | None]] = ContextVar(
    "awaiting", default=None
)


@contextlib.contextmanager
def awaited_by_this_task() -> Iterator[None]:
    """Subscribe, in the block, to a stream that the current task awaits."""
    task = sys.modules["asyncio"].current_task()
    if task is None or hasattr(HERE, "private"):
        yield
        return
    before = _awaiting.set((weakref.ref(task), process_id()))
    try:
        yield
    finally:
        _awaiting.reset(before)


@contextlib.contextmanager
def awaited_by_nobody() -> Iterator[None]:
    """Subscribe, in the block, to what no task awaits alone, or may not wait for a loop."""
    before = _awaiting.set(None)
    try:
        yield
    finally:
        _awaiting.reset(before)


def loop_of_program() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs here, or that of the task which awaits the stream."""
    loop = running_loop()
    awaiting = _awaiting.get()
    if loop is not None or awaiting is None:
        return loop
    task = awaiting[0]()
    if task is None or task.done() or awaiting[1] != process_id():
        return None
    return task.get_loop()
