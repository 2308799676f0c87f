"""What is public: what the modules export, and the members of it that are for users."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

PUBLIC = (
    "rstreams_fast",
    "rstreams_fast.core",
    "rstreams_fast.queues",
    "rstreams_fast.spark",
    "rstreams_fast.spark.report",
    "rstreams_fast.spark.sinks",
    "rstreams_fast.tck",
    "rstreams_fast.interop.reactivex",
    "rstreams_fast.interop.rsocket",
    "rstreams_fast.interop.asyncio_streams",
)

#: What the package gives its own classes, by the class that has it: not for users, though no
#: underscore says so.
INTERNAL = {
    "FrameMap": {"output_of", "work"},
    "CalledSink": {"check", "client", "target"},
    "HttpSink": {"check", "client", "target"},
    "ForEach": {"drop_references", "end_with", "finish", "is_called_by", "slot"},
    "FunctionSubscriber": {"slot"},
    "Batching": {"most", "size_of"},
    "Limit": {"numbers", "served_at", "weights"},
    "Link": {"custody", "depth", "trampoline", "turns"},
    "ListSubscriber": {"on_burst", "prompt", "takes_bursts"},
    "ManualTimer": {"call_later", "runs_slow_work"},
    "MapBatches": {"output_of", "work"},
    "MulticastPublisher": {
        *("admit", "buffer", "burst", "connect", "defer", "leave", "metrics_for"),
        *("on_burst", "prompt", "refuses", "request_elements", "take", "takes_bursts", "waits"),
    },
    "Pipeline": {"parts", "publisher_itself", "source", "with_part", "with_stage"},
    "Queue": {"all_tasks_done", "mutex", "not_empty", "not_full", "queue"},
    "OpenTelemetry": {"client"},
    "PostgresSink": {"begin", "commit", "drain", "finish", "with_options"},
    "PriorityQueue": {"queue"},
    "Run": {"claim", "has_failed_with", "settle"},
    "RunSubscriber": {"ask", "drop_references", "fail", "finish", "is_called_by", "upstream"},
    "CallCounts": {
        *("ambient", "attempted", "count_again", "count_cached_failure", "count_failure"),
        *("count_latency", "count_open", "count_success", "count_timeout", "timed", "timing"),
        *("forget_successes", "update_waits", "waits_after"),
    },
    "Sink": {"begin", "commit", "drain", "finish"},
    "StreamStage": {"work"},
    "SyncSubscriber": {"fail"},
    "Verification": {"test_is_collected_by_the_plugin"},
    "WhiteboxProbe": {"came", "expect_next", "expect_none", "expect_terminal"},
}


def is_check(member: object) -> bool:
    """Whether it is a check of the test kit: docs/rules.md lists them, not the reference."""
    return hasattr(member, "__tck_check__")


def names_of(module: str) -> Iterator[str]:
    """What a user can reach: the exported names, and the public members of exported classes."""
    found = importlib.import_module(module)
    for name in found.__all__:
        public = getattr(found, name)
        others = inspect.isclass(public) and not public.__module__.startswith("rstreams_fast")
        if name.startswith("__") or others or inspect.ismodule(public):
            continue
        yield name
        if inspect.isclass(public):
            yield from (
                f"{name}.{member}"
                for owner in public.__mro__
                if owner.__module__.startswith("rstreams_fast")
                for member, value in vars(owner).items()
                if not (
                    member.startswith("_")
                    or member in INTERNAL.get(owner.__name__, ())
                    or member in vars(BaseException)
                    or is_check(value)
                )
            )


def homes_of(module: str, name: str) -> Iterator[str]:
    """``name``, and, of a member, the same member of each class that it is inherited from."""
    owner, dot, member = name.partition(".")
    if not dot:
        yield name
        return
    for base in getattr(importlib.import_module(module), owner).__mro__:
        yield f"{base.__name__}.{member}"
