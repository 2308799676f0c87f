"""``flat_map_sequential``: publishers run together, and their elements keep the order."""

from __future__ import annotations

from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, send, subscribed
from tests.stepping import steps


def test_later_elements_wait_for_those_before_them() -> None:
    a, b, c = inners = [ManualPublisher() for _ in range(3)]
    stream = rsf.range_(3).flat_map_sequential(inners.__getitem__)
    recorder = subscribed(stream, rsf.UNBOUNDED)
    c.subscriber.on_next(20)
    b.subscriber.on_next(10)
    assert recorder.elements == []
    a.subscriber.on_next(0)
    assert recorder.elements == [0]
    b.subscriber.on_complete()
    a.subscriber.on_next(1)
    assert recorder.elements == [0, 1]
    a.subscriber.on_complete()
    assert recorder.elements == [0, 1, 10, 20]
    c.subscriber.on_next(21)
    assert recorder.elements == [0, 1, 10, 20, 21]
    assert recorder.terminal is None
    c.subscriber.on_complete()
    assert recorder.terminal == ("on_complete",)


@pytest.mark.parametrize("where", ["here", "thread"])
@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_the_order_is_that_of_concat_map(where: str, concurrency: int) -> None:
    def some(n: int) -> Any:
        inner = rsf.range_(n % 7).map(lambda i: (n, i))
        return inner.subscribe_on() if where == "thread" else inner

    sequential = rsf.range_(200).flat_map_sequential(some, concurrency=concurrency, prefetch=3)
    assert sequential.to_list() == [(n, i) for n in range(200) for i in range(n % 7)]


def test_no_more_than_the_concurrency_are_open_and_no_more_than_asked_for_is_delivered() -> None:
    inners = [ManualPublisher() for _ in range(5)]
    opened: list[int] = []

    def open_one(n: int) -> Any:
        opened.append(n)
        return inners[n]

    stream = rsf.range_(5).flat_map_sequential(open_one, concurrency=2, prefetch=4)
    recorder = subscribed(stream, 1)
    assert opened == [0, 1]
    assert inners[1].requested == 4
    inners[1].subscriber.on_next(10)
    inners[1].subscriber.on_complete()  # it is not over: its element waits
    assert opened == [0, 1]
    inners[0].subscriber.on_next(0)
    inners[0].subscriber.on_complete()
    assert recorder.elements == [0]
    recorder.subscription.request(1)
    assert recorder.elements == [0, 10]
    assert opened == [0, 1, 2, 3]
    assert "flat_map_sequential" in str(stream.describe())


def test_a_cancel_while_a_publisher_is_opened_ends_it_and_breaks_nothing(
    dropped: list[BaseException],
) -> None:
    for step in steps():
        outer, inner = ManualPublisher(), ManualPublisher()
        stream = rsf.from_publisher(outer).flat_map_sequential(lambda _n, i=inner: i)
        recorder = subscribed(stream, 1)
        with step.meanwhile(recorder.subscription.cancel):
            send(outer, 0)
        assert outer.cancels == 1
        assert inner.cancels == inner.subscribes
        assert dropped == []
        recorder.check()
