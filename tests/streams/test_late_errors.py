"""An error that comes after all elements that the subscriber needs does not overtake them."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for, wait_until
from tests.rules.probes import Clock
from tests.streams.held import Hold

Slow = Callable[[int], int]
Make = Callable[[rsf.Stream[int], Slow], rsf.Stream[Any]]


def _awaits(slow: Slow) -> Callable[[int], Any]:
    async def call(element: int) -> int:
        return await asyncio.to_thread(slow, element)

    return call


#: What holds three elements when the error comes, and gives 0, 1 and 2.
HOLDS: dict[str, Make] = {
    "publish_on": lambda s, slow: s.publish_on().map(slow).take(3),
    "publish_on by bytes": lambda s, slow: s.publish_on(max_bytes=9, weigher=abs).map(slow).take(3),
    "publish_on twice": lambda s, slow: s.publish_on().map(slow).publish_on().map(slow).take(3),
    "batch": lambda s, slow: s.publish_on().map(slow).batch(3).take(1).unbatch(),
    "inner": lambda s, slow: rsf.range_(1).flat_map(lambda _: s.publish_on().map(slow).take(3)),
    "map_blocking": lambda s, slow: s.map_blocking(slow, concurrency=1, prefetch=3).take(3),
    "map_blocking, any order": lambda s, slow: (
        s.map_blocking(slow, concurrency=3, ordered=False, prefetch=3).take(3).batch(3)
        .map(sorted).unbatch()
    ),
    "map_async": lambda s, slow: s.map_async(_awaits(slow), prefetch=3).take(3),
    "timeout": lambda s, slow: s.publish_on().timeout(DEADLINE).map(slow).take(3),
    "retry": lambda s, slow: s.publish_on().retry(1).map(slow).take(3),
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDS)
def test_the_next_tick_is_no_error_of_a_subscriber_that_is_served(name: str) -> None:
    emitters: list[rsf.Emitter[int]] = []
    hold = Hold()
    source = rsf.create(emitters.append, overflow=rsf.Overflow.ERROR)
    seen: list[Any] = []
    run = HOLDS[name](source, hold).for_each(seen.append)
    (emitter,) = emitters
    for element in range(3):
        wait_until(lambda: emitter.demand > 0, "a request")
        assert emitter.next(element)
    while emitter.demand and emitter.next(3):
        pass  # map_async asks ahead for what nobody needs below
    emitter.next(4)
    hold.leave.set()
    run.result(DEADLINE)
    assert seen == [0, 1, 2]


#: The same, for a source that fails by itself.
FAILING = rsf.concat(rsf.range_(3), rsf.error(OSError("the disk")))
BELOW: dict[str, rsf.Stream[int]] = {
    "nothing": FAILING,
    "publish_on": FAILING.publish_on(),
    "publish_on the caller": FAILING.publish_on("caller"),
    "publish_on by bytes": FAILING.publish_on(max_bytes=9, weigher=abs),
    "publish_on twice": FAILING.publish_on().map(abs).publish_on(),
    "map_blocking": FAILING.map_blocking(abs),
    "delay_elements": FAILING.delay_elements(0.001),
    "delay_elements and publish_on": FAILING.delay_elements(0.001).publish_on(),
    "a seed": FAILING.publish_on().scan(operator.add, 0).skip(1).publish_on(),
}


@pytest.mark.parametrize("name", BELOW)
def test_a_boundary_changes_nothing_about_an_error_behind_all_that_is_needed(name: str) -> None:
    """The seed of ``scan`` is one of the elements that are needed."""
    sums = [BELOW[name].scan(operator.add, 0).take(n).to_list() for n in range(5)]
    assert [len(elements) for elements in sums] == [*range(5)]
    assert BELOW[name].take(3).to_list() == [0, 1, 3 if name == "a seed" else 2]
    for failing in (BELOW[name].take(4), BELOW[name].scan(operator.add, 0).take(5)):
        with pytest.raises(OSError, match="the disk"):
            failing.to_list()


def test_what_is_not_needed_is_not_resumed_from() -> None:
    resumed = FAILING.publish_on().on_error_resume(lambda _: rsf.range_(9))
    assert resumed.take(3).to_list() == [0, 1, 2]


@pytest.mark.parametrize("name", ["map_async", "map_blocking"])
def test_an_error_before_all_that_is_needed_overtakes_running_calls(name: str) -> None:
    emitters: list[rsf.Emitter[int]] = []
    hold, ended = Hold(), threading.Event()
    calls = rsf.create(emitters.append, overflow=rsf.Overflow.ERROR)
    run = HOLDS[name](calls, hold).for_each(lambda _: None, lambda _: ended.set())
    (emitter,) = emitters
    wait_until(lambda: emitter.demand > 0, "a request")
    emitter.next(0)
    wait_for(hold.entered)
    emitter.error(OSError("the disk"))
    try:
        wait_for(ended)
    finally:
        hold.leave.set()
    with pytest.raises(OSError, match="the disk"):
        run.result(DEADLINE)


@pytest.mark.parametrize("end", ["take", "first", "batch"])
def test_delay_elements_asks_for_no_more_than_is_needed(end: str) -> None:
    timer = Clock()
    emitters: list[rsf.Emitter[int]] = []
    source = rsf.create(emitters.append, overflow=rsf.Overflow.ERROR)
    delayed = source.delay_elements(1, timer=timer)
    seen: list[Any] = []
    if end == "first":
        found = start_thread(lambda: seen.append(delayed.first()))
    else:
        (delayed.take(1) if end == "take" else delayed.batch(1).take(1).unbatch()).for_each(
            seen.append
        )
    wait_until(lambda: emitters and emitters[0].demand > 0, "a request")
    (emitter,) = emitters
    emitter.next(0)
    assert emitter.demand == 0
    emitter.next(1)
    timer.advance(1)
    wait_until(lambda: seen == [0], "the element")
    if end == "first":
        found.result()


@pytest.mark.parametrize("strategy", [rsf.Overflow.ERROR, rsf.Overflow.BUFFER])
def test_a_source_that_cannot_wait_is_asked_for_the_prefetch_where_the_need_is_not_known(
    strategy: rsf.Overflow,
) -> None:
    emitters: list[rsf.Emitter[int]] = []
    hold = Hold()
    source = rsf.create(emitters.append, overflow=strategy, capacity=1)
    seen: list[Any] = []
    even = source.publish_on(prefetch=4).map(hold).filter(lambda n: n == 3).take(1)
    assert "at most 4 elements" in even.describe()
    run = even.for_each(seen.append)
    (emitter,) = emitters
    for element in range(4):
        wait_until(lambda: emitter.demand > 0, "a request")
        assert emitter.next(element)
    hold.leave.set()
    run.result(DEADLINE)
    assert seen == [3]
    waits = rsf.range_(9).publish_on(prefetch=4).filter(lambda n: n == 3).take(1)
    assert "at most 1 elements" in waits.describe()
