"""The core on the C primitives of ``csrc``, for CPython."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.core._cython.baton import Baton
from rstreams_fast.core._cython.bursts import BurstIterator
from rstreams_fast.core._cython.demand import DemandCounter
from rstreams_fast.core._cython.fused import FusedRun
from rstreams_fast.core._cython.records import RecordRing
from rstreams_fast.core._cython.ring import SpscRing
from rstreams_fast.core._cython.serial import SignalSerializer

if TYPE_CHECKING:
    from rstreams_fast.core._cython.window import CallWindow

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
        from rstreams_fast.core._cython.window import CallWindow

        return CallWindow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
