"""Operators: how they fail, and how much they ask upstream for.

What each gives, its entry in tests/operators says; what it refuses, test_arguments.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.errors import StageReturnedNoneError
from tests.operators.entry import NoStream
from tests.rules.probes import ManualPublisher, subscribed

SOURCES: dict[str, Callable[[int], Any]] = {
    "pulled": rsf.range_,
    "pushed": lambda n: rsf.from_publisher(NoStream(rsf.range_(n))),
    "ring": lambda n: rsf.range_(n).publish_on("caller"),
    "small ring": lambda n: rsf.range_(n).publish_on("caller", prefetch=1),
    "weighed ring": lambda n: rsf.range_(n).publish_on("caller", max_bytes=3, weigher=lambda _x: 2),
    "unbatched": lambda n: rsf.range_(n).batch(2).unbatch(),
    "observed": lambda n: rsf.range_(n).do_on_error(print),
    "thread": lambda n: rsf.range_(n).subscribe_on().publish_on(prefetch=3),
    "retried": lambda n: rsf.range_(n).retry(),
    "resumed": lambda n: rsf.error(OSError()).on_error_resume(lambda _e: NoStream(rsf.range_(n))),
    "timed": lambda n: rsf.range_(n).timeout(1000),
}


def test_unbatch_takes_no_more_of_an_iterable_than_is_asked_for() -> None:
    for source in SOURCES.values():
        endless = source(3).map(lambda _x: itertools.count()).unbatch()
        assert endless.take(5).to_list() == [0, 1, 2, 3, 4]


# -- failures at run time --------------------------------------------------------------------------
def nothing(*_args: object) -> None:
    """Returns ``None``."""


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize("name", ["map", "scan", "reduce"])
def test_a_function_that_returns_none_is_named_with_its_stage(source: str, name: str) -> None:
    recorder = subscribed(getattr(SOURCES[source](5), name)(nothing), 100)
    recorder.wait_terminal()
    assert isinstance(recorder.error, StageReturnedNoneError)
    assert isinstance(recorder.error, TypeError)
    assert f"({name})" in str(recorder.error)
    assert "nothing" in str(recorder.error)
    recorder.check()


@pytest.mark.parametrize("weight", [-1, 1.5, None, True, "4"])
@pytest.mark.parametrize(
    "build",
    [
        lambda s, weigh: s.publish_on("caller", max_bytes=10, weigher=weigh),
        lambda s, weigh: s.batch(3, max_bytes=5, weigher=weigh),
        lambda s, weigh: s.replay(max_bytes=10, weigher=weigh),
    ],
)
def test_a_weigher_that_returns_no_weight_is_named(build: Any, weight: Any) -> None:
    def weigh(_element: Any) -> Any:
        return weight

    publisher = ManualPublisher()
    recorder = subscribed(build(rsf.from_publisher(publisher), weigh), 5)
    publisher.subscriber.on_next(1)
    assert isinstance(recorder.error, TypeError)
    assert "weigh" in str(recorder.error)
    assert (recorder.elements, publisher.cancels) == ([], 1)


def test_unbatch_of_what_is_not_iterable_is_a_type_error_that_says_so() -> None:
    recorder = subscribed(rsf.range_(5).unbatch(), 100)  # type: ignore[misc]
    assert isinstance(recorder.error, TypeError)
    assert "unbatch" in "".join(recorder.error.__notes__)


# -- how much upstream is asked for ----------------------------------------------------------------
@pytest.mark.parametrize(("wanted", "asked"), [(7, 21), (2**62, rsf.UNBOUNDED)])
def test_batch_multiplies_demand_and_saturates(wanted: int, asked: int) -> None:
    publisher = ManualPublisher()
    subscribed(rsf.from_publisher(publisher).batch(3), wanted)
    assert publisher.requests == [asked]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.take(0),
        lambda s: s.map(str).take(0),
        lambda s: s.publish_on("caller").take(0),
        lambda s: s.publish_on("caller").map(str).take(0).map(str),
        lambda s: s.subscribe_on("caller").take(0),
        lambda s: s.unbatch().take(0),
    ],
)
def test_take_0_completes_without_asking(build: Callable[[Any], Any]) -> None:
    publisher = ManualPublisher()
    recorder = subscribed(build(rsf.from_publisher(publisher)))
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert (publisher.requests, publisher.cancels) == ([], 1)


def test_take_0_needs_no_request_and_does_not_even_open_its_iterable() -> None:
    class Source:
        def __iter__(self) -> Any:
            raise AssertionError("opened")

    seeded = rsf.range_(5).scan(lambda a, b: a + b, 10)  # the seed is there to come first
    for stream in (rsf.from_iterable(Source()), seeded, seeded.map(str).filter(bool)):
        recorder = subscribed(stream.take(0))
        assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert seeded.take(0).reduce(max, 7).to_list() == [7]
