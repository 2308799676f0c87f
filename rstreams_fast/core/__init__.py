"""The primitives, from one of three backends with one face.

``RSTREAMS_FAST_BACKEND`` chooses, when this package is first imported: ``c`` (Cython), ``cffi`` or
``python``. Unset, it is ``c`` on CPython and ``cffi`` elsewhere. There is no silent fallback: a
backend that cannot be loaded is a ``BackendUnavailable`` that says how to build it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core._common import CANCELLED, MISSING, TERMINATED, Emission, RunStatus
from rstreams_fast.errors import BackendUnavailable

__all__ = [
    "CANCELLED",
    "MISSING",
    "TERMINATED",
    "Baton",
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "Emission",
    "FusedRun",
    "RecordRing",
    "RunStatus",
    "SignalSerializer",
    "SpscRing",
    "backend",
]

BACKENDS: Final = ("c", "cffi", "python")

backend: Final[str] = os.environ.get("RSTREAMS_FAST_BACKEND") or (
    "c" if sys.implementation.name == "cpython" else "cffi"
)
"""The name of the backend in use."""

if backend not in BACKENDS:
    raise BackendUnavailable(
        f"RSTREAMS_FAST_BACKEND={backend!r} is unknown; it must be one of {', '.join(BACKENDS)}"
    )

if TYPE_CHECKING:
    from rstreams_fast.core._python import DemandCounter, FusedRun, SignalSerializer, SpscRing
    from rstreams_fast.core._python_baton import Baton
    from rstreams_fast.core._python_bursts import BurstIterator
    from rstreams_fast.core._python_records import RecordRing
    from rstreams_fast.core._python_window import CallWindow
else:
    _module = {"c": "_cython", "cffi": "_cffi", "python": "_python"}[backend]
    try:
        _chosen = importlib.import_module(f"rstreams_fast.core.{_module}")
    except ImportError as missing:
        raise BackendUnavailable(
            f"the backend {backend!r} is not built ({missing}); build it with "
            "'pip install .' (needs a C compiler and the Python headers), "
            "or ask for another one with RSTREAMS_FAST_BACKEND=cffi or =python"
        ) from missing
    Baton = _chosen.Baton
    BurstIterator = _chosen.BurstIterator
    DemandCounter = _chosen.DemandCounter
    FusedRun = _chosen.FusedRun
    RecordRing = _chosen.RecordRing
    SignalSerializer = _chosen.SignalSerializer
    SpscRing = _chosen.SpscRing

    def __getattr__(name: str) -> Any:
        # The window alone needs asyncio, which is not loaded before somebody asks for it.
        if name == "CallWindow":
            return _chosen.CallWindow
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
