"""Rules 1.1 to 1.11 and 3.1 to 3.17, one by one, on every kind of publisher a stream can be."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, run_threads
from tests.rules.probes import Recorder, subscribed

Make = Callable[[int], Any]


async def _identity(x: int) -> int:
    return x


def _async_range(n: int) -> Callable[[], AsyncIterator[int]]:
    async def generate() -> AsyncIterator[int]:
        for x in range(n):
            yield x

    return generate


class _Foreign:
    """A publisher of somebody else's making: it knows nothing of Stream."""

    def __init__(self, n: int) -> None:
        self._stream = rsf.range_(n)

    def subscribe(self, subscriber: Any, /) -> None:
        self._stream.subscribe(subscriber)

    def moved(self, by: int) -> rsf.Stream[int]:
        return rsf.from_publisher(self).map(lambda x: x + by)


KINDS: dict[str, Make] = {
    "range": rsf.range_,
    "list": lambda n: rsf.from_iterable(list(range(n))),
    "generator": lambda n: rsf.from_iterable(x for x in range(n)),
    "map-filter": lambda n: rsf.range_(2 * n).filter(lambda x: x % 2 == 0).map(lambda x: x // 2),
    "c-callables": lambda n: rsf.from_iterable([str(x) for x in range(n)]).map(int),
    "take": lambda n: rsf.range_(10**9).take(n),
    "skip": lambda n: rsf.range_(-3, n).skip(3),
    "scan": lambda n: rsf.from_iterable([0] + [1] * (n - 1) if n else []).scan(lambda a, b: a + b),
    "batch-unbatch": lambda n: rsf.range_(n).batch(3).unbatch(),
    "foreign": lambda n: rsf.from_publisher(_Foreign(n)).map(lambda x: x),
    "foreign-filter": lambda n: rsf.from_publisher(_Foreign(2 * n)).filter(lambda x: x < n),
    "merge": lambda n: rsf.merge(rsf.range_(n), rsf.empty()),
    "zip": lambda n: rsf.range_(n).zip(rsf.range_(n)).map(lambda pair: pair[0]),
    "concat": lambda n: rsf.range_(n // 2).concat(_Foreign(n - n // 2).moved(n // 2)),
    "flat_map": lambda n: rsf.range_(n).flat_map(lambda x: rsf.from_iterable((x,))),
    "flat_map-long": lambda n: rsf.range_(1).flat_map(lambda _x: _Foreign(n), prefetch=4),
    "concat_map": lambda n: rsf.range_(n).concat_map(lambda x: rsf.from_iterable((x,))),
    "multicast": lambda n: rsf.range_(n).multicast(),
    "share": lambda n: rsf.from_publisher(_Foreign(n)).share(),
    "replay": lambda n: rsf.range_(n).replay(count=3),
    "publish_on": lambda n: rsf.range_(n).publish_on(),
    "publish_on-4": lambda n: (
        rsf.range_(n).map(lambda x: x).publish_on(prefetch=4).map(lambda x: x)
    ),
    "subscribe_on": lambda n: rsf.range_(n).subscribe_on(),
    "both": lambda n: rsf.range_(n).subscribe_on().map(lambda x: x).publish_on(prefetch=8),
    "map_async": lambda n: rsf.range_(n).map_async(_identity, concurrency=4),
    "async_iterable": lambda n: rsf.from_async_iterable(_async_range(n)),
}
SYNCHRONOUS = [
    "range", "list", "generator", "map-filter", "c-callables", "take", "skip", "scan",
    "batch-unbatch", "foreign", "foreign-filter", "merge", "zip", "concat", "flat_map",
    "flat_map-long", "concat_map", "multicast", "share", "replay",
]  # fmt: skip


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Make:
    return KINDS[request.param]


@pytest.fixture(params=SYNCHRONOUS)
def make_sync(request: pytest.FixtureRequest) -> Make:
    return KINDS[request.param]


def started(publisher: Any, **options: Any) -> Recorder:
    recorder = subscribed(publisher, **options)
    recorder.wait_subscribed()
    return recorder


def test_spec103_requests_from_many_threads_signal_serially(make: Make) -> None:
    total, threads = 2000, 4
    recorder = started(make(total), on_next=lambda _r, _x: None)

    def ask() -> None:
        for _ in range(total // threads):
            recorder.subscription.request(1)

    run_threads([ask] * threads)
    recorder.wait_elements(total)
    recorder.subscription.request(1)  # a source that cannot know its end needs to be asked
    recorder.wait_terminal()
    assert recorder.elements == list(range(total))
    recorder.check()


BOOM = RuntimeError("boom")


def _failing(after: int) -> Iterator[int]:
    yield from range(after)
    raise BOOM


def _raise_at(n: int) -> Callable[[int], int]:
    def function(x: int) -> int:
        if x == n:
            raise BOOM
        return x

    return function


async def _failing_async() -> AsyncIterator[int]:
    for x in range(3):
        yield x
    raise BOOM


async def _raise_async(x: int) -> int:
    if x == 3:
        raise BOOM
    return x


@pytest.mark.parametrize(
    "publisher",
    [
        pytest.param(lambda: rsf.from_iterable(_failing(3)), id="source"),
        pytest.param(lambda: rsf.range_(9).map(_raise_at(3)), id="map"),
        pytest.param(lambda: rsf.range_(9).filter(lambda x: _raise_at(3)(x) >= 0), id="filter"),
        pytest.param(lambda: rsf.from_publisher(_Foreign(9)).map(_raise_at(3)), id="foreign-map"),
        pytest.param(
            lambda: rsf.range_(9).publish_on(delay_error=True).map(_raise_at(3)), id="behind"
        ),
        pytest.param(
            lambda: rsf.range_(9).map(_raise_at(3)).publish_on(delay_error=True), id="before"
        ),
        pytest.param(lambda: rsf.range_(9).map(_raise_at(3)).subscribe_on(), id="subscribe_on"),
        pytest.param(lambda: rsf.range_(9).map_async(_raise_async, concurrency=1), id="map_async"),
        pytest.param(lambda: rsf.from_async_iterable(_failing_async), id="async_iterable"),
    ],
)
def test_spec104_a_failure_is_signalled(publisher: Callable[[], Any]) -> None:
    recorder = started(publisher(), request=100)
    recorder.wait_terminal()
    assert recorder.error is BOOM
    assert recorder.elements == list(range(3))[: len(recorder.elements)]
    recorder.check()


@pytest.mark.parametrize(
    "make_known",
    [
        rsf.range_,
        lambda n: rsf.from_iterable(list(range(n))),
        lambda n: rsf.range_(n).map(lambda x: x),
        lambda n: rsf.range_(100).take(n),
        lambda n: rsf.range_(n).publish_on(),
        lambda n: rsf.range_(n).subscribe_on(),
    ],
)
def test_spec105_completion_comes_without_an_extra_request(make_known: Make) -> None:
    recorder = started(make_known(3), request=3)
    assert recorder.wait_terminal() == ("on_complete",)
    assert recorder.elements == [0, 1, 2]
    recorder.check()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "generator"])
def test_spec110_111_subscribers_are_independent(kind: str) -> None:
    publisher = KINDS[kind](20)
    first, second = started(publisher), started(publisher)
    first.subscription.request(5)
    first.wait_elements(5)
    second.subscription.request(30)
    second.wait_terminal()
    assert second.elements == list(range(20))
    assert first.elements == list(range(5))
    first.subscription.request(30)
    first.wait_terminal()
    assert first.elements == list(range(20))
    first.check()
    second.check()


def test_spec110_a_one_shot_source_rejects_the_second_subscriber() -> None:
    publisher = rsf.from_iterable(iter([1, 2, 3]))
    first, second = started(publisher, request=10), started(publisher, request=10)
    assert first.elements == [1, 2, 3]
    second.wait_terminal()
    assert isinstance(second.error, RuntimeError)
    second.check()


def test_spec303_recursion_is_bounded_at_depth_one(make: Make) -> None:
    count = sys.getrecursionlimit() * 3
    recorder = started(make(count), request=1, on_next=lambda r, _x: r.subscription.request(1))
    recorder.wait_terminal()
    assert recorder.elements == list(range(count))
    assert recorder.max_depth == 1
    recorder.check()


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in SYNCHRONOUS])
def test_spec304_305_request_and_cancel_do_not_wait_for_on_next(kind: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stuck(_recorder: Recorder, _x: int) -> None:
        entered.set()
        assert leave.wait(DEADLINE)

    recorder = started(KINDS[kind](100), request=1, on_next=stuck)
    assert entered.wait(DEADLINE)
    recorder.subscription.request(1)  # would never come back if it waited
    recorder.subscription.cancel()
    recorder.subscription.cancel()
    leave.set()
    recorder.check()
    assert recorder.elements == [0]


class _Unknowable:
    """A number that raises when it is asked which one it is."""

    def __index__(self) -> int:
        raise ZeroDivisionError


class _Unshowable(int):
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("n", "error"),
    [(_Unknowable(), ZeroDivisionError), (_Unshowable(-1), ValueError), (-(10**6000), ValueError)],
    ids=["unknowable", "unshowable", "too long to be shown"],
)
def test_spec316_whatever_is_requested_the_call_returns(
    make: Make, n: Any, error: type[Exception]
) -> None:
    recorder = started(make(10))
    recorder.subscription.request(n)
    recorder.wait_terminal()
    assert isinstance(recorder.error, error)
    assert recorder.elements == []
    recorder.check()


def test_spec310_311_a_synchronous_publisher_signals_before_request_returns(
    make_sync: Make,
) -> None:
    recorder = started(make_sync(10))
    recorder.subscription.request(4)
    assert recorder.elements == [0, 1, 2, 3]
    recorder.subscription.request(100)
    assert recorder.elements == list(range(10))
    assert recorder.terminal == ("on_complete",)
    recorder.check()


def test_spec315_316_request_and_cancel_return_none(make: Make) -> None:
    recorder = started(make(10))
    assert recorder.subscription.request(1) is None
    assert recorder.subscription.request(-1) is None
    assert recorder.subscription.cancel() is None
    recorder.check()
