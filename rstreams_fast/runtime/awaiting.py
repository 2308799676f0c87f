"""Stores the event loop on which a stream is awaited, for subscriptions that other threads make.

Many objects of asyncio, such as locks, can be used only on one loop. But a stream may subscribe to
an inner stream on the thread of a timer or worker, which runs no loop. Then a context variable of
this module tells which loop to use. Only a caller that awaits the stream sets the variable, because
its loop runs as long as the ``await`` lasts. A caller that blocks its thread until the stream ends
does not set the variable: a loop may wait for this thread, and could not run the stream's work.

This module does not import asyncio, so that a program without an event loop does not load asyncio.
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
"""``thread_state.private`` is a weak reference to the ``PrivateLoop`` that runs in this thread."""


class Awaited(NamedTuple):
    """Data of a task that awaits a stream: its event loop, and futures that it must await, too."""

    loop: asyncio.AbstractEventLoop
    """The loop on which the stream is awaited."""
    unclosed: set[asyncio.Future[Any]]
    """Futures of sources and of calls (``map_async``) that are still releasing resources.

    The task that awaits the stream also awaits these futures, after the end of the stream."""
    pid: int

    def add(self, closing: asyncio.Future[Any]) -> None:
        """Keep ``closing`` in ``unclosed`` until it is done.

        ``closing`` is done when a source has closed. Ignore a future of another loop than ``loop``.
        """
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
        # The garbage collector may close this generator while another context (``contextvars``) is
        # active. Then reset() raises a ValueError.
        with contextlib.suppress(ValueError):
            _awaiting.reset(before)


def with_running_loop(unclosed: set[asyncio.Future[Any]]) -> AbstractContextManager[None]:
    """Return a context manager for a caller that subscribes to a stream and awaits the stream.

    Within the ``with`` block, the stream's inner subscriptions use the event loop that runs in this
    thread. ``unclosed`` collects futures of sources and operators that still release resources at
    the end of the stream. The caller must await these futures. The context manager has no effect if
    no loop runs in this thread, or if a ``PrivateLoop`` runs, which this package has started.
    """
    loop = running_loop()
    if loop is None or hasattr(thread_state, "private"):
        return _UNCHANGED
    return _set_awaited(Awaited(loop, unclosed, process_id()))


def without_loop() -> AbstractContextManager[None]:
    """Return a context manager whose block hides the loop on which an outer stream is awaited.

    Within the block ``awaited_stream`` returns ``None``. For a caller that subscribes to a stream
    but does not await the stream. Also for operators such as ``share``: the shared subscription to
    upstream may outlive the ``await`` of each subscriber.
    """
    return _UNCHANGED if _awaiting.get() is None else _set_awaited(None)


def running_or_awaiting_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread. If none runs, return the loop of the awaiting task.

    This task awaits the stream whose code calls this function. Return ``None`` if no task does so.
    """
    here, awaited = running_loop(), _awaiting.get()
    if here is not None or awaited is None:
        return here
    return awaited.loop if awaited.pid == process_id() and awaited.loop.is_running() else None


def awaited_stream() -> Awaited | None:
    """Return an ``Awaited`` if a task awaits the stream whose code calls this function.

    The ``Awaited`` contains the task's event loop. If no task awaits the stream, return ``None``.
    """
    return _awaiting.get()
