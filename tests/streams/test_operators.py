"""Operators: what they give, and what they refuse when they are called."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.errors import StageReturnedNoneError
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed


class Foreign:
    def __init__(self, n: int) -> None:
        self._n = n

    def subscribe(self, subscriber: Any, /) -> None:
        rsf.range_(self._n).subscribe(subscriber)


SOURCES: dict[str, Callable[[int], Any]] = {
    "pulled": rsf.range_,
    "pushed": lambda n: rsf.from_publisher(Foreign(n)),
    "ring": lambda n: rsf.range_(n).publish_on("caller"),
    "small ring": lambda n: rsf.range_(n).publish_on("caller", prefetch=1),
    "weighed ring": lambda n: rsf.range_(n).publish_on("caller", max_bytes=3, weigher=lambda _x: 2),
    "unbatched": lambda n: rsf.range_(n).batch(2).unbatch(),
    "observed": lambda n: rsf.range_(n).do_on_error(print),
    "thread": lambda n: rsf.range_(n).subscribe_on().publish_on(prefetch=3),
    "retried": lambda n: rsf.range_(n).retry(),
    "resumed": lambda n: rsf.error(OSError()).on_error_resume(lambda _e: Foreign(n)),
    "timed": lambda n: rsf.range_(n).timeout(1000),
}

OPERATORS: dict[str, tuple[Callable[[Any], Any], Callable[[list[int]], list[Any]]]] = {
    "map": (lambda s: s.map(lambda x: x * 2), lambda xs: [x * 2 for x in xs]),
    "map C": (lambda s: s.map(str), lambda xs: [str(x) for x in xs]),
    "map_not_none": (
        lambda s: s.map_not_none(lambda x: x if x % 3 else None),
        lambda xs: [x for x in xs if x % 3],
    ),
    "filter": (lambda s: s.filter(lambda x: x % 3 == 0), lambda xs: xs[::3]),
    "filter to nothing": (lambda s: s.filter(lambda _x: False), lambda _xs: []),
    "take": (lambda s: s.take(4), lambda xs: xs[:4]),
    "take 0": (lambda s: s.take(0), lambda _xs: []),
    "take more": (lambda s: s.take(10**6), lambda xs: xs),
    "take_while": (lambda s: s.take_while(lambda x: x < 5), lambda xs: xs[:5]),
    "skip": (lambda s: s.skip(3), lambda xs: xs[3:]),
    "skip_while": (
        lambda s: s.skip_while(lambda x: x % 4 < 3),
        lambda xs: list(itertools.dropwhile(lambda x: x % 4 < 3, xs)),
    ),
    "skip take": (lambda s: s.skip(3).take(2), lambda xs: xs[3:5]),
    "scan": (lambda s: s.scan(operator.add), lambda xs: list(itertools.accumulate(xs))),
    "scan seed": (
        lambda s: s.scan(operator.add, 100),
        lambda xs: list(itertools.accumulate(xs, initial=100)),
    ),
    "map scan seed map": (
        lambda s: s.map(lambda x: x + 1).scan(operator.add, 5).map(lambda x: -x),
        lambda xs: [-y for y in itertools.accumulate((x + 1 for x in xs), initial=5)],
    ),
    "scan seed filter take": (
        lambda s: s.scan(operator.add, 1).filter(lambda x: x > 1).take(2),
        lambda xs: [y for y in itertools.accumulate(xs, initial=1) if y > 1][:2],
    ),
    "scan seed twice": (
        lambda s: s.scan(operator.add, 1).scan(operator.add, 2),
        lambda xs: list(itertools.accumulate(itertools.accumulate(xs, initial=1), initial=2)),
    ),
    "reduce": (lambda s: s.reduce(operator.add), lambda xs: [sum(xs)] if xs else []),
    "reduce seed": (lambda s: s.reduce(operator.add, 7), lambda xs: [7 + sum(xs)]),
    "batch": (lambda s: s.batch(3), lambda xs: [xs[i : i + 3] for i in range(0, len(xs), 3)]),
    "batch batch": (
        lambda s: s.batch(2).batch(2).map(len),
        lambda xs: [len(range(i, min(i + 4, len(xs)), 2)) for i in range(0, len(xs), 4)],
    ),
    "batch take": (
        lambda s: s.batch(3).take(2),
        lambda xs: [xs[i : i + 3] for i in range(0, len(xs), 3)][:2],
    ),
    "batch in time": (
        lambda s: s.batch(3, seconds=1000),
        lambda xs: [xs[i : i + 3] for i in range(0, len(xs), 3)],
    ),
    "batch by weight take": (
        lambda s: s.batch(9, max_bytes=3, weigher=lambda _x: 1).take(2),
        lambda xs: [xs[i : i + 3] for i in range(0, len(xs), 3)][:2],
    ),
    "distinct": (
        lambda s: s.map(lambda x: x // 2).distinct_until_changed().take(3),
        lambda xs: sorted({x // 2 for x in xs})[:3],
    ),
    "unbatch": (
        lambda s: s.map(lambda x: range(x % 4)).unbatch(),
        lambda xs: [y for x in xs for y in range(x % 4)],
    ),
    "unbatch take": (
        lambda s: s.map(lambda _x: itertools.count()).unbatch().take(5),
        lambda xs: list(range(5)) if xs else [],
    ),
}


@pytest.mark.parametrize("n", [0, 1, 11])
@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize("demand", ["unbounded", "one by one"])
def test_every_operator_on_every_kind_of_source(
    source: str, name: str, n: int, demand: str
) -> None:
    build, expected = OPERATORS[name]
    if demand == "unbounded":
        recorder = Recorder(request=rsf.UNBOUNDED)
    else:
        recorder = Recorder(request=1, on_next=lambda r, _x: r.subscription.request(1))
    build(SOURCES[source](n)).subscribe(recorder)
    assert recorder.wait_terminal() == ("on_complete",)
    assert recorder.elements == expected(list(range(n)))
    assert recorder.max_depth <= 1
    recorder.check()


# -- refused at build time -------------------------------------------------------------------------

FUNCTIONS = [
    "map", "map_not_none", "filter", "take_while", "skip_while", "scan", "reduce", "do_on_next",
    "do_on_error", "do_on_complete", "do_on_subscribe", "do_on_request", "do_on_cancel",
    "map_async",
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("bad", [None, 5, "len"])
def test_what_is_not_callable_is_a_type_error_naming_the_argument(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(.*\): .* must be callable, got"):
        getattr(rsf.range_(3), name)(bad)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "map_async"])
def test_an_async_function_is_a_type_error_and_map_async_named_where_it_helps(name: str) -> None:
    async def fetch(*_args: int) -> None: ...

    async def elements(*_args: int) -> AsyncIterator[int]:
        yield 1

    class Fetch:
        async def __call__(self, *_args: int) -> None: ...

    for fn in (fetch, Fetch(), functools.partial(fetch, 1), elements):
        with pytest.raises(TypeError, match=rf"{name}\(.*must be a plain function") as raised:
            getattr(rsf.range_(3), name)(fn)
        takes_elements = {"map", "map_not_none", "filter", "take_while", "skip_while"}
        helps = name in takes_elements and fn is not elements
        assert ("map_async" in str(raised.value)) == helps
        assert ("from_async_iterable" in str(raised.value)) == (fn is elements)


def test_an_async_weigher_is_refused() -> None:
    async def weigh(_x: int) -> int:
        return 1

    weighed: Any = {"max_bytes": 5, "weigher": weigh}
    numbers = rsf.range_(3)
    for build in (numbers.publish_on, numbers.replay, functools.partial(numbers.batch, 3)):
        with pytest.raises(TypeError, match="weigher must be a plain function"):
            build(**weighed)


@pytest.mark.parametrize("name", ["take", "skip", "batch"])
@pytest.mark.parametrize("bad", [-1, True, 1.5, "3", None])
def test_a_bad_count_is_an_error_naming_the_argument(name: str, bad: Any) -> None:
    error = ValueError if bad == -1 else TypeError
    with pytest.raises(error, match=rf"{name}\(n\): n must be"):
        getattr(rsf.range_(3), name)(bad)


def test_batch_of_zero_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="n must be >= 1"):
        rsf.range_(3).batch(0)


@pytest.mark.parametrize("name", ["scan", "reduce"])
def test_a_seed_of_none_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match="seed must not be None"):
        getattr(rsf.range_(3), name)(operator.add, None)


# -- failures at run time --------------------------------------------------------------------------
def nothing(*_args: object) -> None:
    """Returns ``None``."""


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("map", lambda s: s.map(nothing)),
        ("scan", lambda s: s.scan(nothing)),
        ("reduce", lambda s: s.reduce(nothing)),
    ],
)
def test_a_stage_function_that_returns_none_is_a_type_error_naming_stage_and_function(
    source: str, name: str, build: Callable[[Any], Any]
) -> None:
    recorder = subscribed(build(SOURCES[source](5)), 100)
    recorder.wait_terminal()
    assert isinstance(recorder.error, StageReturnedNoneError)
    assert isinstance(recorder.error, TypeError)
    assert f"({name})" in str(recorder.error)
    assert "nothing" in str(recorder.error)
    recorder.check()


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda x: 1 // (x - 2)),
        lambda s: s.filter(lambda x: 1 // (x - 2)),
        lambda s: s.take_while(lambda x: 1 // (x - 2) or True),
        lambda s: s.scan(lambda a, x: a + 1 // (x - 2)),
        lambda s: s.map_not_none(lambda x: 1 // (x - 2)),
        lambda s: s.map(lambda x: [1 // (x - 2)]).unbatch(),
    ],
)
def test_an_exception_from_user_code_becomes_on_error(
    source: str, build: Callable[[Any], Any]
) -> None:
    recorder = subscribed(build(SOURCES[source](5)), 100)
    recorder.wait_terminal()
    assert isinstance(recorder.error, ZeroDivisionError)
    recorder.check()


def test_unbatch_of_what_is_not_iterable_is_a_type_error_that_says_so() -> None:
    recorder = Recorder(request=100)
    rsf.range_(5).unbatch().subscribe(recorder)  # type: ignore[misc]
    assert isinstance(recorder.error, TypeError)
    assert "unbatch" in "".join(recorder.error.__notes__)


# -- how much upstream is asked for ----------------------------------------------------------------
def asked(build: Callable[[Any], Any], request: int = 1000) -> ManualPublisher:
    publisher, recorder = ManualPublisher(), Recorder(request=request)
    build(rsf.from_publisher(publisher)).subscribe(recorder)
    return publisher


def test_demand_is_passed_on_as_it_is() -> None:
    assert asked(lambda s: s.map(str), 7).requests == [7]
    assert asked(lambda s: s, rsf.UNBOUNDED).requests == [rsf.UNBOUNDED]


def test_batch_multiplies_demand_and_saturates() -> None:
    assert asked(lambda s: s.batch(3), 7).requests == [21]
    assert asked(lambda s: s.batch(3), 2**62).requests == [rsf.UNBOUNDED]


@pytest.mark.parametrize("request_", [1, 5, 100, rsf.UNBOUNDED])
@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.take(5),
        lambda s: s.map(str).take(5),
        lambda s: s.take(5).map(str),
        lambda s: s.publish_on("caller").take(5),
        lambda s: s.publish_on("caller").publish_on("caller").map(str).take(5),
        lambda s: s.subscribe_on("caller").publish_on("caller").take(5),
        lambda s: s.publish_on("caller").do_on_error(print).take(5),
        lambda s: s.scan(operator.add, 0).take(5),
        lambda s: s.publish_on("caller", max_bytes=100, weigher=len).take(5),
    ],
)
def test_take_never_asks_upstream_for_more_than_n(
    build: Callable[[Any], Any], request_: int
) -> None:
    assert asked(build, request_).requested <= 5


def test_take_behind_a_filter_has_no_more_than_n_outstanding() -> None:
    publisher = asked(lambda s: s.filter(lambda x: x % 2).take(5))
    assert publisher.requested == 5
    for sent in range(9):
        publisher.subscriber.on_next(sent)
        assert publisher.requested - (sent + 1) <= 5
    assert publisher.requested >= 9
    publisher.subscriber.on_next(9)  # the fifth odd one
    assert publisher.cancels == 1


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
    publisher, recorder = ManualPublisher(), Recorder()
    build(rsf.from_publisher(publisher)).subscribe(recorder)
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert publisher.requests == []
    assert publisher.cancels == 1


def test_take_0_does_not_even_open_its_iterable() -> None:
    class Source:
        def __iter__(self) -> Any:
            raise AssertionError("opened")

    recorder = subscribed(rsf.from_iterable(Source()).take(0))
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]


def test_take_0_needs_no_request_though_a_seed_is_there_to_come_first() -> None:
    for stages in (lambda s: s, lambda s: s.map(str).filter(bool), lambda s: s.batch(2)):
        recorder = subscribed(stages(rsf.range_(5).scan(lambda a, b: a + b, 10)).take(0))
        assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert rsf.range_(5).scan(lambda a, b: a + b, 10).take(0).reduce(max, 7).to_list() == [7]


def test_what_a_filter_drops_is_asked_for_again_before_upstream_runs_dry() -> None:
    publisher = asked(lambda s: s.filter(lambda x: x < 0), 8)
    for sent in range(1000):
        assert publisher.requested > sent, "upstream may send no more, and the subscriber waits"
        publisher.subscriber.on_next(sent)
    assert publisher.requested == 1008 - (1008 - publisher.requested)
    assert publisher.requested <= 1008
    assert len(publisher.requests) < 500  # not one by one


def test_a_finished_take_cancels_upstream_exactly_once_and_completes_without_an_extra_request() -> (
    None
):
    publisher, recorder = ManualPublisher(), Recorder(request=2)
    rsf.from_publisher(publisher).take(2).subscribe(recorder)
    send(publisher, 1, 2)
    assert recorder.terminal == ("on_complete",)
    assert publisher.cancels == 1
    recorder.subscription.cancel()
    publisher.subscriber.on_next(3)
    assert publisher.cancels == 1
    recorder.check()


def test_a_stream_is_immutable_and_operators_return_new_ones() -> None:
    base = rsf.range_(5)
    doubled, odd = base.map(lambda x: x * 2), base.filter(lambda x: x % 2)
    results = []
    for stream in (base, doubled, odd):
        recorder = subscribed(stream, 100)
        results.append(recorder.elements)
    assert results == [[0, 1, 2, 3, 4], [0, 2, 4, 6, 8], [1, 3]]
