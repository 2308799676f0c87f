"""``FusedRun`` of the backend ``python``, with the demand counters and rings of ``cffi``.

The run spends its time on calls of Python functions, and cffi cannot make such calls faster.
"""

from __future__ import annotations

from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._spec import fused as spec


class FusedRun(spec.FusedRun):
    _ring_type = SpscRing
    _demand_type = DemandCounter
