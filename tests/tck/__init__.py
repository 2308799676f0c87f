"""The kit on everything: on what we ship, on what others do, on itself."""

from typing import Final

from tests.helpers import DEADLINE

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01

#: Settings of the kit, in seconds: all the time that a busy machine may take.
PATIENT: Final = {"timeout": DEADLINE, "reference_timeout": DEADLINE, "limit": 3 * DEADLINE}
