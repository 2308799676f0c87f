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
    AlreadySubscribedError,
    BackendUnavailableError,
    BufferOverflowError,
    DemandExceededError,
    InvalidRequestError,
    InvalidRequestTypeError,
    NoneSignalError,
    OverlappingCallsError,
    RingClosed,
    ShutDownError,
    StageReturnedNoneError,
    WorkDroppedError,
    on_dropped_error,
)
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_of
from rstreams_fast.streams.factories import (
    combine_latest,
    concat,
    create,
    defer,
    empty,
    error,
    from_arrow,
    from_async_iterable,
    from_callable,
    from_iterable,
    from_numpy,
    from_publisher,
    generate,
    interval,
    merge,
    merge_sorted,
    never,
    race,
    range_,
    using,
    zip_,
)
from rstreams_fast.streams.operators.multicast import MulticastProcessor
from rstreams_fast.streams.operators.on_overflow import Overflow
from rstreams_fast.streams.operators.replay import ReplayProcessor
from rstreams_fast.streams.processors import SerializedProcessor, processor
from rstreams_fast.streams.sinks.run import Run
from rstreams_fast.streams.sinks.subscribers import AsyncSubscriber, SyncSubscriber
from rstreams_fast.streams.sources.create import Emitter
from rstreams_fast.streams.stream import Group, Stream

if TYPE_CHECKING:
    from rstreams_fast.core import CallWindow

__version__ = "0.1.0"

__all__ = [
    "UNBOUNDED",
    "AlreadySubscribedError",
    "AsyncSubscriber",
    "BackendUnavailableError",
    "BoundaryMetrics",
    "BufferOverflowError",
    "CallWindow",
    "DemandCounter",
    "DemandExceededError",
    "Emission",
    "Emitter",
    "FusedRun",
    "Group",
    "InvalidRequestError",
    "InvalidRequestTypeError",
    "MulticastProcessor",
    "NoneSignalError",
    "Overflow",
    "OverlappingCallsError",
    "Processor",
    "Publisher",
    "RecordRing",
    "ReplayProcessor",
    "RingClosed",
    "Run",
    "RunStatus",
    "SerializedProcessor",
    "ShutDownError",
    "SignalSerializer",
    "SpscRing",
    "StageReturnedNoneError",
    "Stream",
    "Subscriber",
    "Subscription",
    "SyncSubscriber",
    "WorkDroppedError",
    "__version__",
    "backend",
    "combine_latest",
    "concat",
    "create",
    "defer",
    "empty",
    "error",
    "from_arrow",
    "from_async_iterable",
    "from_callable",
    "from_iterable",
    "from_numpy",
    "from_publisher",
    "generate",
    "interval",
    "merge",
    "merge_sorted",
    "metrics_of",
    "never",
    "on_dropped_error",
    "processor",
    "race",
    "range_",
    "using",
    "zip_",
]


def __getattr__(name: str) -> Any:
    if name == "CallWindow":  # loaded when it is first needed: it brings asyncio
        from rstreams_fast.core import CallWindow

        return CallWindow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
