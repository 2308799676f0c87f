"""How many elements, rounds and threads the checks of a publisher use."""

from __future__ import annotations

from typing import Final

__all__ = ["LONG_STREAM", "ROUNDS", "THREADS"]

#: So many elements that buffers fill, counters wrap, and bursts end.
LONG_STREAM: Final = 1200
#: How often a race is run, and by how many threads.
ROUNDS: Final = 20
THREADS: Final = 4
