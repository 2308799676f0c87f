"""The kit on everything: on what we ship, on what others do, on itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.helpers import start_thread
from tests.operators import representatives

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01
#: The verifications that `make test` runs: one for each part of the engine. All run in `make tck`.
EACH_PART: Final = {
    *representatives(),
    # A generated drain, an iterator, an asynchronous one, an emitter, ticks, records, accounts.
    *(
        "Generator",
        "AsyncIterable",
        "CreateWithBuffer",
        "Interval",
        "PublishRecordsOn",
        "OnDiscard",
    ),
    # Executors of others, stack breaks.
    *("PublishOnLoop", "LongChain"),
    # Processors, ends, subscribers.
    *("MapProcessor", "Serialized", "ForEachBehindFromPublisher", "Iterate"),
    *("SyncWithPrefetch", "AsyncOnLoopWhitebox"),
    # The upper sides of a run, and of a boundary; what is within another operator.
    *("FromPublisher", "PublishOnAbove", "MergeAbove", "FlatMapAbove", "SlidingBatchAbove"),
    *("OnOverflowLATESTAbove", "OnErrorResumeWithin", "FlatMapWithin"),
}
#: Of these, the verifications that `make test` runs on each backend: one for each primitive.
EACH_PRIMITIVE: Final = ("Map", "PublishOn", "PublishRecordsOn", "MapAsync", "Serialized")


def add_case(module: dict[str, Any], base: type, name: str, **members: Any) -> None:
    """To ``module`` a verification of this name: ``base`` with other members."""
    module[name] = type(
        name, (base,), {"__module__": module["__name__"], "__test__": True, **members}
    )


def add_cases(module: dict[str, Any], base: type, member: str, **values: Any) -> None:
    """To ``module`` a verification for each name: ``base`` with another ``member``."""
    for name, value in values.items():
        add_case(module, base, name, **{member: value})


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
