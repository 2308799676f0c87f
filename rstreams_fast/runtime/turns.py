"""Limits how long a stream occupies an event loop, or a thread of an executor, without a break.

A *drain* is the loop of a subscription that delivers elements. A *turn* is a time slice of a
millisecond in which the drains of one consumer may run on the consumer's event loop or thread. The
consumer is a task that awaits elements, or an operator with its own queue. A drain that is not done
at the end of the turn pauses until the next turn. Meanwhile, other tasks of the loop, or other work
of the executor, can run. While a drain is paused, no thread runs it. So a thread that cancels the
stream can end the drain itself, without waiting for the next turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from rstreams_fast.runtime.parking import running_loop

if TYPE_CHECKING:
    import asyncio

    from rstreams_fast.core import Wip

__all__ = ["TURN_SECONDS", "Turns"]

TURN_SECONDS: Final = 0.001
"""The length of a turn (time slice) of a stream, in seconds. One list of elements may exceed it."""


class _Paused(Protocol):
    """Work that pauses at the end of a turn. ``resume`` sets ``paused`` to false, and goes on."""

    paused: bool

    def resume(self) -> None: ...


class Turns:
    """Stores the paused drains (loops that deliver elements) of a consumer until its next turn.

    The consumer is a task that awaits elements, or an operator with its own queue. A turn is a time
    slice of a millisecond in which its drains may occupy an event loop or a thread. When a drain
    pauses, ``wake()`` is called, and must make the consumer begin another turn. The time limit
    always holds on an event loop. On a thread without an event loop it holds only if ``on_threads``
    is true. Then the consumer must end the limit after each turn, by ``leave``.
    """

    __slots__ = ("_loop", "_on_threads", "_paused", "_thread", "_until", "wake")

    def __init__(self, wake: Callable[[], object], *, on_threads: bool = False) -> None:
        self.wake: Callable[[], object] | None = wake
        self._on_threads = on_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        # The id of the thread, if it runs no event loop and its turn has a time limit; else 0.
        self._thread = 0
        self._until = 0.0
        self._paused: deque[_Paused] = deque()

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a turn (a time slice of a millisecond) on ``loop``.

        ``loop`` is ``None`` if this thread runs no event loop. Then the turn has no time limit,
        unless the argument ``on_threads`` of ``Turns`` was true.
        """
        self._loop = loop
        self._thread = get_ident() if loop is None and self._on_threads else 0
        self._until = perf_counter() + TURN_SECONDS

    def leave(self) -> None:
        """End this thread's turn (time slice). Its work before the next turn has no time limit."""
        self._thread = 0

    def is_over(self) -> bool:
        """Return whether the time slice of the current turn is over.

        Only the thread of the turn can get ``True``. Any other thread always gets ``False``.
        """
        if perf_counter() < self._until:
            return False
        loop = self._loop
        return get_ident() == self._thread if loop is None else running_loop() is loop

    def pause(self, wip: Wip, paused: _Paused) -> None:
        """Stop the work of ``paused`` on this thread, store ``paused``, and wake the consumer.

        ``wip`` lets one thread at a time do the work: now this thread. The consumer, a task or an
        operator, then calls ``resume_paused``, which goes on with the work.
        """
        first, paused.paused = not paused.paused, True
        # leave() returns false if another thread has called enter() meanwhile, because of an event,
        # such as a request. This event can wait: resume() goes on with the work, and handles it.
        while not wip.leave(wip.missed):
            pass
        if not first:
            return
        self._paused.append(paused)
        wake = self.wake
        if wake is not None:
            wake()

    def resume_paused(self) -> bool:
        """Resume the paused drains (loops that deliver elements), until the time slice is over.

        Return whether any drain was paused before the call.
        """
        paused = self._paused
        count = len(paused)
        for _ in range(count):
            try:
                drain = paused.popleft()
            except IndexError:  # another thread has called end(), which empties the deque
                break
            drain.resume()
            if self.is_over():
                break
        return count > 0

    def end(self) -> None:
        """Drop all paused drains (loops that deliver elements), because the stream has ended."""
        self.wake = self._loop = None
        self._thread = 0
        self._paused.clear()
