"""The kit on everything: on what we ship, on what others do, on itself."""

from typing import Final

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01
