"""expand: each element and what follows from it, in two orders, without a stack."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import run_threads, start_thread
from tests.rules.probes import ManualPublisher, send, subscribed
from tests.stepping import steps

TREE = {1: [2, 3], 2: [4, 5], 3: [6], 4: [7]}
ORDERS = {False: [1, 2, 3, 4, 5, 6, 7], True: [1, 2, 4, 7, 5, 3, 6]}
both = pytest.mark.parametrize("deep", [False, True])


def children(n: int) -> rsf.Stream[int]:
    return rsf.from_iterable(TREE.get(n, []))


def children_on_a_thread(n: int) -> rsf.Stream[int]:
    return children(n).subscribe_on()


def children_one_by_one(n: int) -> rsf.Stream[int]:
    """Which are over only when they are asked for one more."""
    return rsf.from_iterable(iter(TREE.get(n, []))).map(int)


@both
@pytest.mark.parametrize("fn", [children, children_on_a_thread, children_one_by_one])
def test_the_order_of_a_tree(fn: Any, deep: bool) -> None:
    assert rsf.from_iterable([1]).expand(fn, depth_first=deep).to_list() == ORDERS[deep]
    assert rsf.empty().expand(fn, depth_first=deep).to_list() == []


@pytest.mark.parametrize(("deep", "over_with_it"), [(False, True), (True, False)])
def test_twenty_thousand_levels_need_no_stack(deep: bool, over_with_it: bool) -> None:
    last = 20_000

    def follow(n: int) -> Any:
        if n == last:
            return rsf.empty()
        return rsf.from_iterable([n + 1] if over_with_it else iter([n + 1]))

    stream = rsf.from_iterable([0]).expand(follow, depth_first=deep)
    assert start_thread(stream.to_list).result(100) == list(range(last + 1))


@both
def test_a_thousand_pages_that_are_awaited(deep: bool) -> None:
    async def fetch(page: int) -> int:
        await asyncio.sleep(0)
        return page + 1

    def follow(page: int) -> rsf.Stream[int]:
        return rsf.from_iterable([page]).map_async(fetch) if page < 1000 else rsf.empty()

    pages = rsf.from_iterable([0]).expand(follow, depth_first=deep)
    assert pages.to_list() == list(range(1001))


@both
def test_nothing_is_asked_that_was_not_asked_for(deep: bool) -> None:
    outer, inners = ManualPublisher(), [ManualPublisher() for _ in range(2)]
    stream = rsf.from_publisher(outer).expand(inners.__getitem__, depth_first=deep)
    recorder = subscribed(stream)
    assert outer.requests == []
    recorder.subscription.request(3)
    assert outer.requests == [1 if deep else 3]
    send(outer, 0)
    outer.subscriber.on_complete()
    assert inners[0].requests == [1 if deep else 2]
    send(inners[0], 1)
    assert inners[1].subscribes == deep
    inners[0].subscriber.on_complete()
    assert inners[1].requests == [1]
    inners[1].subscriber.on_complete()
    assert recorder.elements == [0, 1]
    assert recorder.terminal == ("on_complete",)
    recorder.check()


@both
def test_a_request_while_an_element_comes_does_not_change_the_order(deep: bool) -> None:
    for step in steps():
        manual = ManualPublisher()
        recorder = subscribed(rsf.from_publisher(manual).expand(children, depth_first=deep), 1)
        with step.meanwhile(lambda r=recorder: r.subscription.request(9)):
            send(manual, 1)
        manual.subscriber.on_complete()
        assert recorder.elements == ORDERS[deep]
        recorder.check()


@both
def test_demand_from_threads_is_neither_lost_nor_doubled(deep: bool) -> None:
    last, threads = 400, 4

    def follow(n: int) -> Any:
        return rsf.range_(n + 1, n + 2).subscribe_on() if n < last else rsf.empty()

    recorder = subscribed(rsf.range_(1).expand(follow, depth_first=deep))

    def ask() -> None:
        for _ in range(last // threads):
            recorder.subscription.request(1)

    run_threads([ask] * threads)
    recorder.wait_elements(last)
    recorder.subscription.request(1)
    recorder.wait_terminal()
    assert recorder.elements == list(range(last + 1))
    recorder.check()
