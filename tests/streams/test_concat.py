"""concat and concat_map: one after another, and the demand that goes from one to the next."""

from __future__ import annotations

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, send, subscribed


def test_only_the_current_one_is_cancelled() -> None:
    a, b, c = ManualPublisher(), ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.concat(a, b, c), 1)
    a.subscriber.on_complete()
    recorder.subscription.cancel()
    recorder.subscription.cancel()
    assert (a.cancels, b.cancels, c.subscribes) == (0, 1, 0)


def test_concat_map_calls_its_function_when_the_publisher_before_is_over() -> None:
    outer, inners = ManualPublisher(), [ManualPublisher(), ManualPublisher()]
    called: list[int] = []

    def fn(n: int) -> ManualPublisher:
        called.append(n)
        return inners[n]

    recorder = subscribed(rsf.from_publisher(outer).concat_map(fn, prefetch=4), 3)
    assert outer.requests == [4]
    send(outer, 0, 1)
    assert called == [0]
    send(inners[0], "a")
    inners[0].subscriber.on_complete()
    assert called == [0, 1]
    assert (inners[0].requests, inners[1].requests) == ([3], [2])
    outer.subscriber.on_complete()
    assert recorder.terminal is None
    inners[1].subscriber.on_complete()
    assert recorder.signals[1:] == [("on_next", "a"), ("on_complete",)]
    recorder.check()


def test_concat_map_asks_when_three_quarters_were_opened() -> None:
    outer = ManualPublisher()
    subscribed(rsf.from_publisher(outer).concat_map(lambda _n: rsf.empty(), prefetch=4), 1)
    send(outer, 1, 2)
    assert outer.requests == [4]
    send(outer, 3)
    assert outer.requests == [4, 3]


@pytest.mark.parametrize("stages", [False, True], ids=["bare", "map"])
def test_concat_map_counts_what_came_of_a_sequence(stages: bool) -> None:
    def inner(n: int) -> rsf.Stream[int]:
        return rsf.range_(100).map(abs) if stages and n else rsf.range_(3)

    recorder = subscribed(rsf.range_(4).concat_map(inner), 4)
    (metrics,) = rsf.metrics_of(recorder.subscription)
    assert metrics.demand == 0
    recorder.subscription.request(rsf.UNBOUNDED)
    assert recorder.terminal == ("on_complete",)
