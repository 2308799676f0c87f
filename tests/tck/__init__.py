"""The kit on everything: on what we ship, on what others do, on itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.helpers import start_thread

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01
#: The verifications that `make test` runs: one for each part of the engine. All run in `make tck`.
EACH_PART: Final = {
    "a generated drain": "MapAndFilter",
    "an iterator that is pulled": "Generator",
    "an asynchronous iterator": "AsyncIterable",
    "a boundary with a worker": "PublishOnSmallPrefetch",
    "a boundary on a loop": "PublishOnLoop",
    "a boundary of records": "PublishRecordsOn",
    "calls on a loop": "MapAsync",
    "a fan-in that merges": "MergeOfForeignOneByOne",
    "a fan-in that queues": "ZipOfForeign",
    "inner subscribers": "FlatMapOneAtATime",
    "a subscription arbiter": "OnErrorResumeWithForeign",
    "stack breaks": "LongChain",
    "parts of a stream": "Groups",
    "a timer": "BatchOfAThread",
    "ticks": "Interval",
    "overflow": "OnOverflowDropOldest",
    "an emitter": "CreateOnAThread",
    "the account of discarded elements": "OnDiscard",
    "a shared buffer": "SharedStreamBetweenThreads",
    "a replayed buffer": "ReplayedStreamByWeightAndTime",
    "a processor of stages": "Map",
    "a serializer": "Serialized",
    "an end": "ForEachBehindFromPublisher",
    "an iteration": "Iterate",
    "a subscriber": "SyncWithPrefetch",
    "a subscriber on a loop": "AsyncOnLoopWhitebox",
    "a stage's upper side": "FromPublisher",
    "a boundary's upper side": "AsyncBoundary",
    "a fan-in's upper side": "MergeAsSubscriber",
    "an inner subscriber's upper side": "FlatMapAsSubscriber",
    "the upper side of parts": "WindowAsSubscriber",
    "the upper side of overflow": "OverflowStage",
}
#: Of these, the verifications that `make test` runs on each backend: one for each primitive.
EACH_PRIMITIVE: Final = (
    "MapAndFilter",
    "PublishOnSmallPrefetch",
    "PublishRecordsOn",
    "MapAsync",
    "Serialized",
)

#: Cold streams keep no list of their subscribers: each subscription is a run of its own.
NO_REGISTRY: Final[tuple[str, ...]] = ("beyond_spec110_*",)
#: What runs side by side comes in any order, another one for each subscriber.
NO_ORDER: Final[tuple[str, ...]] = (*NO_REGISTRY, "optional_spec111_multicast_*")

#: Looks at its source when it is asked for an element, and only then learns that it is at its end.
NO_LOOK_AHEAD: Final[tuple[str, ...]] = ("beyond_spec105_onComplete*",)


def add_cases(module: dict[str, Any], base: type, member: str, **values: Any) -> None:
    """To ``module`` a verification for each name: ``base`` with another ``member``."""
    for name, value in values.items():
        own = {"__module__": module["__name__"], "__test__": True, member: value}
        module[name] = type(name, (base,), own)


class Resources:
    """What a class under test runs on, closed after each test."""

    @pytest.fixture(autouse=True)
    def _with_resources(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def pool(self) -> ThreadPoolExecutor:
        return self.stack.enter_context(ThreadPoolExecutor(2))

    def loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = start_thread(loop.run_forever, "loop")

        def stop() -> None:
            loop.call_soon_threadsafe(loop.stop)
            thread.result()
            loop.close()

        self.stack.callback(stop)
        return loop
