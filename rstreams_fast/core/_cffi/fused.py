"""``FusedRun``: the ``python`` backend's, on this one's counters and rings.

What it spends its time on is calling Python functions from Python, and there is nothing for C
behind cffi to do about that. Its demand, sources and slots are this backend's.
"""

from __future__ import annotations

from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._spec import fused as spec


class FusedRun(spec.FusedRun):
    _ring_type = SpscRing
    _demand_type = DemandCounter
