"""How much the checks of a publisher do."""

from __future__ import annotations

from typing import Final

__all__ = ["LONG", "ROUNDS", "THREADS"]

#: More elements than any counter, queue or burst that a first look would stay below.
LONG: Final = 1200
#: How often a race is run, and by how many threads.
ROUNDS: Final = 20
THREADS: Final = 4
