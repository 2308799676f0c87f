"""The loop on which a stream is awaited: what other threads subscribe to later belongs there, too.

Clients and locks of asyncio are bound to a loop. What a stream subscribes to when a timer rings, or
on a worker, finds the loop here; a context variable is how it gets there. Only who awaits the whole
names it, as he cannot wait longer than the loop goes on. Whoever blocks a thread names none: the
loop may wait for that thread. What several subscribers share has none either.

Nothing here imports asyncio: a program that has no loop never loads it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.parking import running_loop

if TYPE_CHECKING:
    import asyncio

__all__ = ["HERE", "awaited_here", "awaited_nowhere", "loop_of_program"]

HERE: Final = threading.local()
"""``private``: a weak reference to the private loop that runs in this thread, if one does."""

_awaiting: Final[ContextVar[tuple[asyncio.AbstractEventLoop, int] | None]] = ContextVar(
    "awaiting", default=None
)
_UNCHANGED: Final = contextlib.nullcontext()


@contextlib.contextmanager
def _awaited_on(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    before = _awaiting.set(None if loop is None else (loop, process_id()))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the collector closes a coroutine in any context
            _awaiting.reset(before)


def awaited_here() -> AbstractContextManager[None]:
    """Subscribe, in the block, to a stream that is awaited on the loop that runs here."""
    return _UNCHANGED if hasattr(HERE, "private") else _awaited_on(running_loop())


def awaited_nowhere() -> AbstractContextManager[None]:
    """Subscribe, in the block, to a stream that a thread waits for, or several subscribers."""
    return _UNCHANGED if _awaiting.get() is None else _awaited_on(None)


def loop_of_program() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs here, or the one on which the stream is awaited."""
    here, awaiting = running_loop(), _awaiting.get()
    if here is not None or awaiting is None:
        return here
    loop, pid = awaiting
    return loop if pid == process_id() and loop.is_running() else None
