"""Keeps the event loop on which a stream is awaited, for subscriptions that other threads make.

Many objects of asyncio, such as locks, can be used only on one loop. But a stream may subscribe to
an inner stream on the thread of a timer or worker, which runs no loop. Then a context variable of
this module tells which loop to use. Only a caller that awaits the stream sets the variable, because
its loop runs as long as the ``await`` lasts. A caller that blocks its thread until the stream ends
does not set the variable: the loop may wait for this thread, and would never run the stream's work.

This module does not import asyncio: a program without a loop never loads it.
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
    "Awaited",
    "awaited_stream",
    "running_or_awaiting_loop",
    "thread_state",
    "with_running_loop",
    "without_loop",
]

thread_state: Final = threading.local()
"""``thread_state.private`` is a weak reference to the private loop that runs in this thread."""


class Awaited(NamedTuple):
    """Describes an awaited stream: its loop, and the work to finish before the ``await`` ends."""

    loop: asyncio.AbstractEventLoop
    """The loop on which the stream is awaited."""
    unclosed: set[asyncio.Future[Any]]
    """Futures of sources and calls that are still releasing resources.

    The caller that awaits the stream waits for these futures at the end of the stream."""
    pid: int

    def add(self, closing: asyncio.Future[Any]) -> None:
        """Add ``closing`` to ``unclosed``, until it is done. Ignore a future of another loop."""
        if closing.get_loop() is self.loop:
            self.unclosed.add(closing)
            closing.add_done_callback(self.unclosed.discard)


_awaiting: Final[ContextVar[Awaited | None]] = ContextVar("awaiting", default=None)
_UNCHANGED: Final = contextlib.nullcontext()


@contextlib.contextmanager
def _set_awaited(stream: Awaited | None) -> Iterator[None]:
    before = _awaiting.set(stream)
    try:
        yield
    finally:
        # The garbage collector may close this generator in another contextvars context. Then
        # reset() raises a ValueError.
        with contextlib.suppress(ValueError):
            _awaiting.reset(before)


def with_running_loop(unclosed: set[asyncio.Future[Any]]) -> AbstractContextManager[None]:
    """Return a context manager for a caller that subscribes to a stream and awaits it.

    Within it, all subscriptions inside the stream use the loop that runs now. ``unclosed`` collects
    the futures that the caller must await before it returns.
    """
    loop = running_loop()
    if loop is None or hasattr(thread_state, "private"):
        return _UNCHANGED
    return _set_awaited(Awaited(loop, unclosed, process_id()))


def without_loop() -> AbstractContextManager[None]:
    """Return a context manager within which ``awaited_stream`` returns ``None``.

    A caller that subscribes to a stream without awaiting it uses this. So does a stream that
    several subscribers share: its subscription may outlive the ``await`` of each subscriber.
    """
    return _UNCHANGED if _awaiting.get() is None else _set_awaited(None)


def running_or_awaiting_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, or else the loop on which the stream is awaited."""
    here, awaited = running_loop(), _awaiting.get()
    if here is not None or awaited is None:
        return here
    return awaited.loop if awaited.pid == process_id() and awaited.loop.is_running() else None


def awaited_stream() -> Awaited | None:
    """Return the awaited stream to which the current context belongs, or ``None``."""
    return _awaiting.get()
