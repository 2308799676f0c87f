"""Reactive Streams for Python on a C core, and bounded concurrency inside PySpark stages."""

from __future__ import annotations

from importlib import import_module
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
from rstreams_fast.runtime.timers import ManualTimer
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
    from rstreams_fast.calls.budget import Budget
    from rstreams_fast.calls.circuit import Circuit
    from rstreams_fast.calls.errors import BudgetSpentError, CircuitOpenError
    from rstreams_fast.calls.journal.journal import Journal
    from rstreams_fast.calls.limits.limit import Limit
    from rstreams_fast.calls.limits.pace import per_minute, per_second
    from rstreams_fast.calls.memory.cache import Cache
    from rstreams_fast.calls.policy import Policy
    from rstreams_fast.calls.retry import Retry, RetryAfter
    from rstreams_fast.calls.usage import observed, spent
    from rstreams_fast.core import CallWindow

__version__ = "0.1.0"

__all__ = [
    "UNBOUNDED",
    "AlreadySubscribedError",
    "AsyncSubscriber",
    "BackendUnavailableError",
    "BoundaryMetrics",
    "Budget",
    "BudgetSpentError",
    "BufferOverflowError",
    "Cache",
    "CallWindow",
    "Circuit",
    "CircuitOpenError",
    "DemandCounter",
    "DemandExceededError",
    "Emission",
    "Emitter",
    "FusedRun",
    "Group",
    "InvalidRequestError",
    "InvalidRequestTypeError",
    "Journal",
    "Limit",
    "ManualTimer",
    "MulticastProcessor",
    "NoneSignalError",
    "Overflow",
    "OverlappingCallsError",
    "Policy",
    "Processor",
    "Publisher",
    "RecordRing",
    "ReplayProcessor",
    "Retry",
    "RetryAfter",
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
    "observed",
    "on_dropped_error",
    "per_minute",
    "per_second",
    "processor",
    "race",
    "range_",
    "spent",
    "using",
    "zip_",
]


# Public names and their modules, which __getattr__ imports when a name is first used. Most of these
# modules import asyncio, which most streams do not need.
_LOADED_WHEN_NEEDED = {
    "Budget": "calls.budget",
    "BudgetSpentError": "calls.errors",
    "Cache": "calls.memory.cache",
    "CallWindow": "core",
    "Circuit": "calls.circuit",
    "CircuitOpenError": "calls.errors",
    "Journal": "calls.journal.journal",
    "Limit": "calls.limits.limit",
    "Policy": "calls.policy",
    "Retry": "calls.retry",
    "RetryAfter": "calls.retry",
    "observed": "calls.usage",
    "per_minute": "calls.limits.pace",
    "per_second": "calls.limits.pace",
    "spent": "calls.usage",
}


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_NEEDED:
        return getattr(import_module(f"{__name__}.{_LOADED_WHEN_NEEDED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
