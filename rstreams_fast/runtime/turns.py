"""Limits for how long streams occupy an event loop or a thread of an executor without a break.

A *turn* is a millisecond in which the drains (loops that deliver elements) of one consumer may work
on the consumer's event loop or thread. The consumer is a task that awaits elements, or a stage with
a queue of its own. A drain that is not done when the turn ends pauses until the next turn, so that
other tasks of the loop, or other work of the executor, run. No thread holds a paused drain, so any
thread may cancel the stream.
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

__all__ = ["TURN_SECONDS", "Turns"]

TURN_SECONDS: Final = 0.001
"""Seconds for which a drain may occupy a loop or another executor. One burst may take longer."""


class _Paused(Protocol):
    def resume(self) -> None: ...


class Turns:
    """Keeps the paused drains of one consumer until the consumer's next turn.

    A turn is the millisecond for which drains (loops that deliver elements) may occupy an event
    loop or a thread. ``pause`` calls the argument ``wake``, which must make the consumer begin
    another turn. ``on_threads`` says whether turns without an event loop have a time limit, too:
    ``leave`` must end them.
    """

    __slots__ = ("_loop", "_on_threads", "_paused", "_thread", "_until", "wake")

    def __init__(self, wake: Callable[[], object], *, on_threads: bool = False) -> None:
        self.wake: Callable[[], object] | None = wake
        self._on_threads = on_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the id of the thread whose turn has a time limit; 0: none
        self._until = 0.0
        self._paused: deque[_Paused] = deque()

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a turn (a millisecond of work) on ``loop``.

        If ``loop`` is ``None``, this thread runs no loop. Then the turn has no time limit, unless
        ``on_threads`` was given.
        """
        self._loop = loop
        self._thread = get_ident() if loop is None and self._on_threads else 0
        self._until = perf_counter() + TURN_SECONDS

    def leave(self) -> None:
        """End the turn of this thread. The thread may go on with other work."""
        self._thread = 0

    def is_over(self) -> bool:
        """Return whether the turn's millisecond is over.

        On another thread than that of the turn or of its loop, the result is always ``False``.
        """
        if perf_counter() < self._until:
            return False
        loop = self._loop
        return get_ident() == self._thread if loop is None else running_loop() is loop

    def pause(self, paused: _Paused) -> None:
        """Store a paused drain (a loop that delivers elements). ``resume_paused`` resumes it."""
        self._paused.append(paused)
        wake = self.wake
        if wake is not None:
            wake()

    def resume_paused(self) -> bool:
        """Resume the paused drains (loops that deliver elements), until the turn is over.

        Returns whether any drain was paused.
        """
        paused = self._paused
        count = len(paused)
        for _ in range(count):
            try:
                drain = paused.popleft()
            except IndexError:  # the method end() has emptied the deque meanwhile
                break
            drain.resume()
            if self.is_over():
                break
        return count > 0

    def end(self) -> None:
        """Forget all paused drains (loops that deliver elements): none will be resumed."""
        self.wake = self._loop = None
        self._thread = 0
        self._paused.clear()
