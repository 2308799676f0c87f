"""The primitives on which streams are built, such as rings and demand counters.

Three backends implement the same classes. The environment variable ``RSTREAMS_FAST_BACKEND``
chooses the backend when this package is first imported: ``c`` (Cython), ``cffi`` or ``python``. If
the variable is not set, CPython uses ``c``, and other interpreters use ``cffi``. If the backend
cannot be loaded, the import raises a ``BackendUnavailableError``, which says how to build it. No
other backend is used instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core._common import (
    CANCELLED,
    MISSING,
    TERMINATED,
    Emission,
    FunctionSlot,
    Missing,
    RunStatus,
)
from rstreams_fast.core._faces import MODULES
from rstreams_fast.errors import BackendUnavailableError

__all__ = [
    "CANCELLED",
    "MISSING",
    "TERMINATED",
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "Emission",
    "FunctionSlot",
    "FusedRun",
    "Latch",
    "Missing",
    "RecordRing",
    "RunStatus",
    "SignalSerializer",
    "SpscRing",
    "Wip",
    "backend",
]

_PACKAGES: Final = {"c": "_cython", "cffi": "_cffi", "python": "_spec"}

backend: Final[str] = os.environ.get("RSTREAMS_FAST_BACKEND") or (
    "c" if sys.implementation.name == "cpython" else "cffi"
)
"""The name of the backend in use."""

if backend not in _PACKAGES:
    raise BackendUnavailableError(
        f"RSTREAMS_FAST_BACKEND={backend!r} is unknown; it must be one of {', '.join(_PACKAGES)}"
    )

if TYPE_CHECKING:
    from rstreams_fast.core._spec.bursts import BurstIterator
    from rstreams_fast.core._spec.demand import DemandCounter
    from rstreams_fast.core._spec.fused import FusedRun
    from rstreams_fast.core._spec.records import RecordRing
    from rstreams_fast.core._spec.ring import SpscRing
    from rstreams_fast.core._spec.serial import SignalSerializer
    from rstreams_fast.core._spec.window import CallWindow
    from rstreams_fast.core._spec.wip import Latch, Wip
else:
    _chosen = importlib.import_module(f"rstreams_fast.core.{_PACKAGES[backend]}")
    try:
        # CallWindow imports asyncio, which is slow. So __getattr__ loads CallWindow on first use.
        for _name in MODULES.keys() - {"CallWindow"}:
            globals()[_name] = getattr(_chosen, _name)
    except ImportError as missing:
        if missing.name == "_cffi_backend":
            raise BackendUnavailableError(
                "the backend 'cffi' needs the package cffi, which is not installed: "
                "pip install 'rstreams_fast[cffi]'"
            ) from missing
        raise BackendUnavailableError(
            f"the backend {backend!r} is not built ({missing}); build it with "
            "'pip install .' (needs a C compiler and the Python headers), "
            "or ask for another one with RSTREAMS_FAST_BACKEND=cffi or =python"
        ) from missing

    def __getattr__(name: str) -> Any:
        if name == "CallWindow":
            return _chosen.CallWindow
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
