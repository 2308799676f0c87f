"""The loop on which a stream is awaited: what other threads subscribe to later belongs there, too.

Clients and locks of asyncio are bound to a loop. What a stream subscribes to when a timer rings, or
on a worker, finds the loop here; a context variable is how it gets there. Only who awaits the whole
names it, as he cannot wait longer than the loop goes on. A caller that blocks a thread names none:
the loop may wait for that thread. What several subscribers share has none either.

Nothing here imports asyncio: a program that has no loop never loads it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.parking import running_loop

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "HERE",
    "Awaited",
    "awaited_here",
    "awaited_nowhere",
    "awaited_stream",
    "loop_of_program",
]

HERE: Final = threading.local()
"""``private``: a weak reference to the private loop that runs in this thread, if one does."""


class Awaited(NamedTuple):
    """A stream that is awaited."""

    loop: asyncio.AbstractEventLoop
    """Where it is awaited."""
    unclosed: set[asyncio.Future[Any]]
    """What is to be done there before it is over: sources and calls may have something to close."""
    pid: int

    def add(self, closing: asyncio.Future[Any]) -> None:
        """Have who awaits the stream wait for ``closing``, too, if that is on the same loop."""
        if closing.get_loop() is self.loop:
            self.unclosed.add(closing)
            closing.add_done_callback(self.unclosed.discard)


_awaiting: Final[ContextVar[Awaited | None]] = ContextVar("awaiting", default=None)
_UNCHANGED: Final = contextlib.nullcontext()


@contextlib.contextmanager
def _awaited(stream: Awaited | None) -> Iterator[None]:
    before = _awaiting.set(stream)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the collector closes a coroutine in any context
            _awaiting.reset(before)


def awaited_here(unclosed: set[asyncio.Future[Any]]) -> AbstractContextManager[None]:
    """Subscribe, in the block, to a stream that is awaited on the loop that runs here."""
    loop = running_loop()
    if loop is None or hasattr(HERE, "private"):
        return _UNCHANGED
    return _awaited(Awaited(loop, unclosed, process_id()))


def awaited_nowhere() -> AbstractContextManager[None]:
    """Subscribe, in the block, to a stream that a thread waits for, or several subscribers."""
    return _UNCHANGED if _awaiting.get() is None else _awaited(None)


def loop_of_program() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs here, or the one on which the stream is awaited."""
    here, awaited = running_loop(), _awaiting.get()
    if here is not None or awaited is None:
        return here
    return awaited.loop if awaited.pid == process_id() and awaited.loop.is_running() else None


def awaited_stream() -> Awaited | None:
    """Return what is known of the stream that is subscribed to here, if it is awaited."""
    return _awaiting.get()
