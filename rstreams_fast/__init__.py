"""Reactive Streams for Python, done properly, on a C core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.api import UNBOUNDED, Processor, Publisher, Subscriber, Subscription
from rstreams_fast.core import (
    DemandCounter,
    Emission,
    FusedRun,
    RunStatus,
    SignalSerializer,
    SpscRing,
    backend,
)
from rstreams_fast.errors import (
    AlreadySubscribed,
    BackendUnavailable,
    BufferOverflow,
    DemandExceeded,
    InvalidRequest,
    InvalidRequestType,
    NoneSignal,
    OverlappingCalls,
    RingClosed,
    StageReturnedNone,
    on_dropped_error,
)
from rstreams_fast.streams.figures import BoundaryFigures, figures_of
from rstreams_fast.streams.sources import (
    empty,
    error,
    from_async_iterable,
    from_callable,
    from_iterable,
    from_publisher,
    never,
    range_,
)
from rstreams_fast.streams.stream import Stream

if TYPE_CHECKING:
    from rstreams_fast.core import CallWindow
    from rstreams_fast.streams.ends import Run

__version__ = "0.1.0"

__all__ = [
    "UNBOUNDED",
    "AlreadySubscribed",
    "BackendUnavailable",
    "BoundaryFigures",
    "BufferOverflow",
    "CallWindow",
    "DemandCounter",
    "DemandExceeded",
    "Emission",
    "FusedRun",
    "InvalidRequest",
    "InvalidRequestType",
    "NoneSignal",
    "OverlappingCalls",
    "Processor",
    "Publisher",
    "RingClosed",
    "Run",
    "RunStatus",
    "SignalSerializer",
    "SpscRing",
    "StageReturnedNone",
    "Stream",
    "Subscriber",
    "Subscription",
    "__version__",
    "backend",
    "empty",
    "error",
    "figures_of",
    "from_async_iterable",
    "from_callable",
    "from_iterable",
    "from_publisher",
    "never",
    "on_dropped_error",
    "range_",
]


def __getattr__(name: str) -> Any:
    # The ends and the window are loaded when they are first needed: they bring asyncio.
    if name == "CallWindow":
        from rstreams_fast.core import CallWindow

        return CallWindow
    if name == "Run":
        from rstreams_fast.streams.ends import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
