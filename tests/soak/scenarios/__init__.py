"""One module for each thing that is soaked; importing this gives :data:`SCENARIOS` all of them."""

from tests.soak.scenarios import (
    boundaries,
    combining,
    counters,
    pushing,
    records,
    recovery,
    rings,
    runs,
    serializers,
    sharing,
    windows,
)
from tests.soak.scenarios.registry import SCENARIOS

__all__ = [
    "SCENARIOS",
    "boundaries",
    "combining",
    "counters",
    "pushing",
    "records",
    "recovery",
    "rings",
    "runs",
    "serializers",
    "sharing",
    "windows",
]
