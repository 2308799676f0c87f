"""The cffi backend: the same C core as the Cython one, for PyPy and for whoever asks for it.

``DemandCounter``, ``SpscRing`` and ``SignalSerializer`` stand on the C primitives. ``FusedRun``
and ``CallWindow`` run Python callables, which C behind cffi cannot speed up: they are those of the
``python`` backend, with this backend's demand counters and rings. A cffi call lets the GIL go,
which costs more than most primitives: on CPython this backend is for tests rather than for speed.
"""

from __future__ import annotations

from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._cffi.runs import CallWindow, FusedRun
from rstreams_fast.core._cffi.serial import SignalSerializer

__all__ = ["CallWindow", "DemandCounter", "FusedRun", "SignalSerializer", "SpscRing"]
