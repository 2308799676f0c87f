"""Limits for how long streams occupy an event loop without a break.

A *turn* is a millisecond in which the drains (loops that deliver elements) of one consumer may work
on the consumer's event loop. The consumer is a task that awaits elements, or a stage with a queue
of its own. A drain that is not done when the turn ends pauses until the next turn, so that other
tasks of the loop run. No thread holds a paused drain, so any thread may cancel the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
    loop. ``pause`` calls the argument ``wake``, which must make the consumer begin another turn.
    """

    __slots__ = ("_loop", "_paused", "_until", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake: Callable[[], object] | None = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = 0.0
        self._paused: deque[_Paused] = deque()

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a turn (a millisecond of work) on ``loop``.

        If ``loop`` is ``None``, this thread runs no loop, and the turn has no time limit.
        """
        self._loop = loop
        if loop is not None:
            self._until = perf_counter() + TURN_SECONDS

    def is_over(self) -> bool:
        """Return whether the turn's millisecond is over.

        On a thread that does not run the turn's loop, the result is always ``False``.
        """
        loop = self._loop
        return loop is not None and perf_counter() >= self._until and running_loop() is loop

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
        self._paused.clear()
