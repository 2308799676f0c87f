"""The kit on everything: on what we ship, on what others do, on itself."""

from typing import Final

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01
#: Cold streams keep no list of their subscribers: each subscription is a run of its own.
NO_REGISTRY: Final = ("beyond_spec110_*",)
#: What runs side by side comes in any order, another one for each subscriber.
NO_ORDER: Final = (*NO_REGISTRY, "optional_spec111_multicast_*")
