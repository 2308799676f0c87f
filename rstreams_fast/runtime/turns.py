"""What works on the thread of an event loop leaves it after a while, though there is more to do.

The loop has others to serve. A task on a loop that awaits elements, or a
boundary, has turns, and all that stands on it works in those. A drain that is not done when the
turn is over leaves its work for the next one; it holds nothing then, so that anybody may cancel it.
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
"""How long a drain keeps a loop or another resource before others have it, bursts permitting."""


class _Paused(Protocol):
    def resume(self) -> None: ...


class Turns:
    """The turns of one that asks. ``wake`` is called when it is to have one soon."""

    __slots__ = ("_loop", "_paused", "_until", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake: Callable[[], object] | None = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = 0.0
        self._paused: deque[_Paused] = deque()

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a turn of ``loop``, or of a thread that may work as long as it likes."""
        self._loop = loop
        if loop is not None:
            self._until = perf_counter() + TURN_SECONDS

    def is_over(self) -> bool:
        """Whether this thread is the loop's, and the loop should serve others."""
        loop = self._loop
        return loop is not None and perf_counter() >= self._until and running_loop() is loop

    def pause(self, paused: _Paused) -> None:
        """Have ``paused`` resumed in the next turn."""
        self._paused.append(paused)
        wake = self.wake
        if wake is not None:
            wake()

    def go_on(self) -> bool:
        """Resume what is paused, as long as the turn lasts; false if nothing is."""
        paused = self._paused
        count = len(paused)
        for _ in range(count):
            try:
                drain = paused.popleft()
            except IndexError:  # it has ended meanwhile
                break
            drain.resume()
            if self.is_over():
                break
        return count > 0

    def end(self) -> None:
        """There will be no turn any more."""
        self.wake = self._loop = None
        self._paused.clear()
