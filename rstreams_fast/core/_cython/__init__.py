"""The core on the C primitives of ``csrc``, for CPython."""

from rstreams_fast.core._cython.demand import DemandCounter
from rstreams_fast.core._cython.fused import FusedRun
from rstreams_fast.core._cython.ring import SpscRing
from rstreams_fast.core._cython.serial import SignalSerializer
from rstreams_fast.core._cython.window import CallWindow

__all__ = ["CallWindow", "DemandCounter", "FusedRun", "SignalSerializer", "SpscRing"]
