"""The decisions of a scenario: a random generator that can be handed on to a thread."""

from __future__ import annotations

import random


class Chance(random.Random):
    """Decisions that the seed repeats, in as far as threads are not what decides."""

    def fork(self) -> Chance:
        """One for another thread: they must not share."""
        return Chance(self.getrandbits(64))

    def one_in(self, n: int) -> bool:
        return self.randrange(n) == 0

    def size(self, most: int) -> int:
        """From 1 to ``most``, small ones as likely as large ones."""
        return min(most, 2 ** self.randrange(most.bit_length()) + self.randrange(3))
