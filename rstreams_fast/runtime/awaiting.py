"""The loop on which a stream is awaited, for subscriptions that other threads make later.

Clients and locks of asyncio are bound to a loop. When a stream subscribes to another one from a
timer or a worker, it finds its loop here, through a context variable. Only an awaiting caller sets
the loop: it cannot outlive it. A caller that blocks a thread sets none, as the loop may wait for
that thread. Neither do streams that several subscribers share.

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
"""``private`` is a weak reference to the private loop that runs in this thread, if there is one."""


class Awaited(NamedTuple):
    """A stream that is awaited: its loop, and the work that must end before the ``await`` does."""

    loop: asyncio.AbstractEventLoop
    """The loop on which the stream is awaited."""
    unclosed: set[asyncio.Future[Any]]
    """Futures of sources and calls that close something: the awaiting caller awaits them too."""
    pid: int

    def add(self, closing: asyncio.Future[Any]) -> None:
        """Make the awaiting caller also wait for ``closing``, if that is on the same loop."""
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
        with contextlib.suppress(ValueError):  # closed by the collector: any context
            _awaiting.reset(before)


def awaited_here(unclosed: set[asyncio.Future[Any]]) -> AbstractContextManager[None]:
    """Return a context in which subscriptions belong to a stream awaited on the running loop."""
    loop = running_loop()
    if loop is None or hasattr(HERE, "private"):
        return _UNCHANGED
    return _awaited(Awaited(loop, unclosed, process_id()))


def awaited_nowhere() -> AbstractContextManager[None]:
    """Return a context in which subscriptions have no loop: a thread waits, or they are shared."""
    return _UNCHANGED if _awaiting.get() is None else _awaited(None)


def loop_of_program() -> asyncio.AbstractEventLoop | None:
    """Return the running loop, or else the loop on which the stream is awaited."""
    here, awaited = running_loop(), _awaiting.get()
    if here is not None or awaited is None:
        return here
    return awaited.loop if awaited.pid == process_id() and awaited.loop.is_running() else None


def awaited_stream() -> Awaited | None:
    """Return the stream that this context belongs to, if the stream is awaited."""
    return _awaiting.get()
