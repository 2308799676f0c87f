"""``FusedRun`` of the backend ``python``, with this backend's demand counters and rings.

Its time is spent on calls of Python functions, which C behind cffi cannot speed up.
"""

from __future__ import annotations

from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._spec import fused as spec


class FusedRun(spec.FusedRun):
    _ring_type = SpscRing
    _demand_type = DemandCounter
