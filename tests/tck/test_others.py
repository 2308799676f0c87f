"""The kit on publishers that others wrote: those of the ``rsocket`` package, as they are released.

RSocket's subscribers learn of the end by a second argument of ``on_next``; the adapter makes a
signal of that, and nothing else is mended. ``docs/tck.md`` tells what these findings mean.
"""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rstreams_fast.tck import PublisherVerification
from rstreams_fast.tck.runner import ERROR, Result, run

VERSION = "0.4.20"

#: What RSocket leaves behind is its own, whichever test is running when that is collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine method 'aclose' of .* was never awaited:RuntimeWarning"
)


class _Ears:
    """A subscriber as RSocket calls it."""

    def __init__(self, subscriber: Any) -> None:
        self.on_subscribe = subscriber.on_subscribe
        self.on_error = subscriber.on_error
        self.on_complete = subscriber.on_complete
        self._on_next = subscriber.on_next

    def on_next(self, element: Any, is_complete: bool = False) -> None:
        self._on_next(element)
        if is_complete:
            self.on_complete()


class Adapted:
    """A publisher of RSocket's as one of Reactive Streams."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher

    def subscribe(self, subscriber: Any, /) -> None:
        self._publisher.subscribe(_Ears(subscriber) if subscriber is not None else None)


class OfRSocket(PublisherVerification):
    """Not collected: what it finds is asserted below."""

    __test__ = False
    asyncio_bound = True
    timeout = 2.0


class StreamFromGenerator(OfRSocket):
    def create_publisher(self, elements: int) -> Any:
        from rsocket.payload import Payload
        from rsocket.streams.stream_from_generator import StreamFromGenerator as Stream

        def payloads() -> Iterator[tuple[Any, bool]]:
            for n in range(elements):
                yield Payload(str(n).encode()), n + 1 == elements

        return Adapted(Stream(payloads))


class StreamFromAsyncGenerator(OfRSocket):
    def create_publisher(self, elements: int) -> Any:
        from rsocket.payload import Payload
        from rsocket.streams.stream_from_async_generator import StreamFromAsyncGenerator as Stream

        async def payloads() -> AsyncIterator[tuple[Any, bool]]:
            for n in range(elements):
                yield Payload(str(n).encode()), n + 1 == elements

        return Adapted(Stream(payloads))


class BackPressurePublisher(OfRSocket):
    """A reactivex observable as a publisher of RSocket's."""

    def create_publisher(self, elements: int) -> Any:
        import reactivex
        from rsocket.payload import Payload
        from rsocket.reactivex.back_pressure_publisher import observable_to_publisher

        numbers = (Payload(str(n).encode()) for n in range(elements))
        return Adapted(observable_to_publisher(reactivex.from_iterable(numbers)))


#: The rules that each breaks at ``spec``, and what is seen of them.
_OF_GENERATORS = {
    "1.1": "subscriber-2.on_next",
    "3.9": "expected: on_error for request(0)",
    "3.13": "it is kept alive",
    "3.15": "has no attribute '_generator'",
}
FOUND: dict[type[OfRSocket], dict[str, str]] = {
    StreamFromGenerator: _OF_GENERATORS,
    StreamFromAsyncGenerator: _OF_GENERATORS,
    BackPressurePublisher: {
        "1.1": "subscriber-2.on_next",
        "3.9": "expected: on_error for request(0)",
        "3.13": "it is kept alive",
        "3.15": "has no attribute 'on_completed'",
        "3.16": "has no attribute 'on_next'",
    },
}


def test_the_version_is_the_one_that_was_judged() -> None:
    assert importlib.metadata.version("rsocket") == VERSION


@pytest.fixture(scope="module")
def judged() -> dict[type[OfRSocket], list[Result]]:
    """All of them, side by side: what is broken takes its time-outs."""
    with ThreadPoolExecutor(len(FOUND)) as pool:
        results = dict(zip(FOUND, pool.map(lambda made: list(run(made)), FOUND), strict=True))
    gc.collect()  # here, where its warnings are ours to ignore
    return results


@pytest.mark.parametrize("made", FOUND, ids=lambda made: made.__name__)
def test_the_rules_found_broken_in_rsocket(
    made: type[OfRSocket], judged: dict[type[OfRSocket], list[Result]]
) -> None:
    assert not [result for result in judged[made] if result.outcome == ERROR]
    broken: dict[str, list[str]] = {}
    for result in judged[made]:
        if result.broken is not None and result.broken.grade == "spec":
            broken.setdefault(result.broken.rule, []).append(result.message)
    assert broken.keys() == FOUND[made].keys()
    for rule, words in FOUND[made].items():
        assert any(words in message for message in broken[rule]), broken[rule]
