"""How many elements, rounds and threads the checks of a publisher use."""

from __future__ import annotations

from typing import Final

__all__ = ["LONG_STREAM", "ROUNDS", "THREADS"]

#: A long stream has so many elements that buffers fill, buffer indices wrap, and bursts end.
LONG_STREAM: Final = 1200
#: How often a check repeats a race, and how many threads take part.
ROUNDS: Final = 20
THREADS: Final = 4
