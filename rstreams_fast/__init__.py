"""Reactive Streams for Python, done properly, on a C core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.api import UNBOUNDED, Processor, Publisher, Subscriber, Subscription
from rstreams_fast.core import (
    DemandCounter,
    Emission,
    FusedRun,
    RecordRing,
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
    ShutDown,
    StageReturnedNone,
    WorkDropped,
    on_dropped_error,
)
from rstreams_fast.streams.concat import concat
from rstreams_fast.streams.create import Emitter, create
from rstreams_fast.streams.figures import BoundaryFigures, figures_of
from rstreams_fast.streams.interval import interval
from rstreams_fast.streams.merge import merge
from rstreams_fast.streams.multicast import MulticastProcessor
from rstreams_fast.streams.overflow import Overflow
from rstreams_fast.streams.processors import SerializedProcessor, processor
from rstreams_fast.streams.replay import ReplayProcessor
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
from rstreams_fast.streams.zip import zip_

if TYPE_CHECKING:
    from rstreams_fast.core import CallWindow
    from rstreams_fast.streams.arrow import from_arrow
    from rstreams_fast.streams.ends import Run
    from rstreams_fast.streams.numeric import from_numpy
    from rstreams_fast.streams.subscribers import AsyncSubscriber, SyncSubscriber

__version__ = "0.1.0"

__all__ = [
    "UNBOUNDED",
    "AlreadySubscribed",
    "AsyncSubscriber",
    "BackendUnavailable",
    "BoundaryFigures",
    "BufferOverflow",
    "CallWindow",
    "DemandCounter",
    "DemandExceeded",
    "Emission",
    "Emitter",
    "FusedRun",
    "InvalidRequest",
    "InvalidRequestType",
    "MulticastProcessor",
    "NoneSignal",
    "Overflow",
    "OverlappingCalls",
    "Processor",
    "Publisher",
    "RecordRing",
    "ReplayProcessor",
    "RingClosed",
    "Run",
    "RunStatus",
    "SerializedProcessor",
    "ShutDown",
    "SignalSerializer",
    "SpscRing",
    "StageReturnedNone",
    "Stream",
    "Subscriber",
    "Subscription",
    "SyncSubscriber",
    "WorkDropped",
    "__version__",
    "backend",
    "concat",
    "create",
    "empty",
    "error",
    "figures_of",
    "from_arrow",
    "from_async_iterable",
    "from_callable",
    "from_iterable",
    "from_numpy",
    "from_publisher",
    "interval",
    "merge",
    "never",
    "on_dropped_error",
    "processor",
    "range_",
    "zip_",
]


def __getattr__(name: str) -> Any:
    # The ends and the window are loaded when they are first needed: they bring asyncio.
    if name == "CallWindow":
        from rstreams_fast.core import CallWindow

        return CallWindow
    if name == "Run":
        from rstreams_fast.streams.ends import Run

        return Run
    if name in {"AsyncSubscriber", "SyncSubscriber"}:
        from rstreams_fast.streams import subscribers

        return getattr(subscribers, name)
    if name == "from_numpy":
        from rstreams_fast.streams.numeric import from_numpy

        return from_numpy
    if name == "from_arrow":
        from rstreams_fast.streams.arrow import from_arrow

        return from_arrow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
