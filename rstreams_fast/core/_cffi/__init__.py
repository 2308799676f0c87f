"""The cffi backend: the same C core as the Cython one, for PyPy and for whoever asks for it.

``DemandCounter``, the rings and ``SignalSerializer`` stand on the C primitives. ``FusedRun`` and
``CallWindow`` run Python callables, which C behind cffi cannot speed up: they are those of the
``python`` backend, with this backend's demand counters and rings. A cffi call lets the GIL go,
which costs more than most primitives: on CPython this backend is for tests rather than for speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.core._cffi.baton import Baton
from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.records import RecordRing
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._cffi.runs import FusedRun
from rstreams_fast.core._cffi.serial import SignalSerializer
from rstreams_fast.core._python_bursts import BurstIterator

if TYPE_CHECKING:
    from rstreams_fast.core._cffi.window import CallWindow

__all__ = [
    "Baton",
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "FusedRun",
    "RecordRing",
    "SignalSerializer",
    "SpscRing",
]


def __getattr__(name: str) -> Any:
    # The window alone needs asyncio, which is not loaded before somebody asks for it.
    if name == "CallWindow":
        from rstreams_fast.core._cffi.window import CallWindow

        return CallWindow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
