"""What the kit cannot see of the rules: who signals when, odd numbers, and where errors go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import wait_until
from tests.rules.probes import subscribed

Make = Callable[[int], Any]


class _Foreign:
    """A publisher that is no ``Stream``."""

    def __init__(self, n: int) -> None:
        self.subscribe = rsf.range_(n).subscribe


async def _identity(x: int) -> int:
    return x


SYNCHRONOUS: dict[str, Make] = {
    "range": rsf.range_,
    "generator": lambda n: rsf.from_iterable(x for x in range(n)),
    "map-filter": lambda n: rsf.range_(2 * n).filter(lambda x: x % 2 == 0).map(lambda x: x // 2),
    "c-callables": lambda n: rsf.from_iterable([str(x) for x in range(n)]).map(int),
    "batch-unbatch": lambda n: rsf.range_(n).batch(3).unbatch(),
    "foreign": lambda n: rsf.from_publisher(_Foreign(n)).map(lambda x: x),
    "merge": lambda n: rsf.merge(rsf.range_(n), rsf.empty()),
    "zip": lambda n: rsf.range_(n).zip(rsf.range_(n)).map(lambda pair: pair[0]),
    "concat": lambda n: rsf.empty().concat(_Foreign(n)),
    "flat_map": lambda n: rsf.range_(1).flat_map(lambda _x: _Foreign(n), prefetch=4),
    "concat_map": lambda n: rsf.range_(n).concat_map(lambda x: rsf.from_iterable((x,))),
    "multicast": lambda n: rsf.range_(n).multicast(),
    "replay": lambda n: rsf.range_(n).replay(count=3),
}
KINDS: dict[str, Make] = {
    **SYNCHRONOUS,
    "publish_on": lambda n: rsf.range_(n).publish_on(),
    "subscribe_on": lambda n: rsf.range_(n).subscribe_on(),
    "map_async": lambda n: rsf.range_(n).map_async(_identity, concurrency=4),
}


@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_spec310_311_a_synchronous_publisher_signals_before_request_returns(kind: str) -> None:
    recorder = subscribed(SYNCHRONOUS[kind](10))
    assert recorder.subscription.request(4) is None
    assert recorder.elements == [0, 1, 2, 3]
    recorder.subscription.request(100)
    assert recorder.elements == list(range(10))
    assert recorder.terminal == ("on_complete",)
    assert recorder.subscription.cancel() is None
    recorder.check()


class _Unknowable:
    """A number that raises when it is asked which one it is."""

    def __index__(self) -> int:
        raise ZeroDivisionError


class _Unshowable(int):
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", KINDS)
def test_spec316_whatever_is_requested_the_call_returns(kind: str) -> None:
    for n, error in (
        (_Unknowable(), ZeroDivisionError),
        (_Unshowable(-1), ValueError),
        (-(10**6000), ValueError),
    ):
        recorder = subscribed(KINDS[kind](10))
        recorder.wait_subscribed()
        recorder.subscription.request(n)
        recorder.wait_terminal()
        assert isinstance(recorder.error, error)
        assert recorder.elements == []
        recorder.check()


@pytest.mark.parametrize("signal", ["on_subscribe", "on_next", "on_error", "on_complete"])
@pytest.mark.parametrize("kind", ["range", "generator", "foreign", *(KINDS.keys() - SYNCHRONOUS)])
def test_spec213_an_error_of_the_subscriber_is_reported_and_ends_the_stream(
    kind: str, signal: str, dropped: list[BaseException]
) -> None:
    boom = RuntimeError("the subscriber's own")
    stream = KINDS[kind](5)
    if signal == "on_error":
        stream = stream.map(lambda _x: 1 // 0)
    recorder = subscribed(stream, 2 if signal == "on_next" else 100, raises=(signal, boom))
    wait_until(lambda: dropped, "the report")
    assert dropped == [boom]
    assert recorder.signals[-1][0] == signal
    if signal == "on_next":
        assert len(recorder.elements) == 1
