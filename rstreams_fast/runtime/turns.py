"""Turns on an event loop: a drain on the loop pauses after a while, even if it has more to do.

The loop must serve others, too. A consumer on a loop (a task that awaits elements, or a boundary)
has turns, and the drains above it work only in those. A drain that is not done when the turn ends
pauses until the next one; it holds nothing then, so that any thread may cancel it.
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
"""How long a drain occupies a loop or another resource; a burst may last longer."""


class _Paused(Protocol):
    def resume(self) -> None: ...


class Turns:
    """The turns of one consumer. ``wake`` is called to ask for another turn."""

    __slots__ = ("_loop", "_paused", "_until", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake: Callable[[], object] | None = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = 0.0
        self._paused: deque[_Paused] = deque()

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a turn on ``loop``; ``None``: on a thread that may work as long as it likes."""
        self._loop = loop
        if loop is not None:
            self._until = perf_counter() + TURN_SECONDS

    def is_over(self) -> bool:
        """Whether this is the loop's thread and the turn is over."""
        loop = self._loop
        return loop is not None and perf_counter() >= self._until and running_loop() is loop

    def pause(self, paused: _Paused) -> None:
        """Resume ``paused`` in the next turn."""
        self._paused.append(paused)
        wake = self.wake
        if wake is not None:
            wake()

    def go_on(self) -> bool:
        """Resume paused drains until the turn is over; ``False`` if none is paused."""
        paused = self._paused
        count = len(paused)
        for _ in range(count):
            try:
                drain = paused.popleft()
            except IndexError:  # end() was called meanwhile
                break
            drain.resume()
            if self.is_over():
                break
        return count > 0

    def end(self) -> None:
        """End the turns: there will be no more."""
        self.wake = self._loop = None
        self._paused.clear()
