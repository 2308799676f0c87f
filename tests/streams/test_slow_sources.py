"""A source that works on the thread that asks: no element waits until a whole prefetch has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, Recorder, send

Op = Callable[[rsf.Stream[int]], rsf.Stream[Any]]

N = 300


async def same(x: int) -> int:
    return x


OPERATORS: dict[str, Op] = {
    "nothing": lambda s: s,
    "publish_on": lambda s: s.publish_on(),
    "publish_on the caller": lambda s: s.publish_on("caller"),
    "publish_on by weight": lambda s: s.publish_on(max_bytes=1000, weigher=lambda x: 1),
    "map_async": lambda s: s.map_async(same),
    "map_blocking": lambda s: s.map_blocking(lambda x: x, concurrency=2),
    "flat_map": lambda s: s.flat_map(lambda x: rsf.from_iterable([x])),
    "flat_map_sequential": lambda s: s.flat_map_sequential(lambda x: rsf.from_iterable([x])),
    "concat_map": lambda s: s.concat_map(lambda x: rsf.from_iterable([x])),
    "concat_map of what is no sequence": lambda s: s.publish_on("caller").concat_map(
        lambda x: rsf.from_iterable([x]).publish_on("caller")
    ),
    "switch_map": lambda s: s.switch_map(lambda x: rsf.from_iterable([x])),
    "merge": lambda s: s.merge(rsf.empty()),
    "zip": lambda s: s.zip(rsf.range_(N)).map(lambda pair: pair[0]),
    "combine_latest": lambda s: s.combine_latest(rsf.from_iterable([0])).map(lambda pair: pair[0]),
    "timeout": lambda s: s.timeout(60),
    "named": lambda s: s.named("slow"),
    "two": lambda s: (
        s.merge(rsf.empty()).publish_on("caller").flat_map(lambda x: rsf.range_(x, x + 1))
    ),
}


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("source", ["sequence", "iterator"])
def test_the_first_element_comes_before_many_others_are_made(name: str, source: str) -> None:
    made: list[int] = []
    numbers = rsf.range_(N) if source == "sequence" else rsf.from_iterable(iter(range(N)))
    stream = OPERATORS[name](numbers.do_on_next(made.append))
    with stream.iterate() as elements:
        assert next(elements) == 0
        # Another thread may be further on by now, but then it is not in one piece.
        at_once = "publish_on", "publish_on by weight", "map_async", "map_blocking"
        assert name in at_once or len(made) <= 3
        assert list(elements) == list(range(1, N))


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("name", OPERATORS)
def test_all_elements_come_however_they_are_asked_for(name: str) -> None:
    stream = OPERATORS[name](rsf.range_(N).map(lambda x: x))
    assert stream.to_list() == list(range(N))
    recorder = Recorder(request=2, on_next=lambda recorder, x: recorder.subscription.request(1))
    stream.subscribe(recorder)
    recorder.wait_terminal()
    recorder.check()
    assert recorder.elements == list(range(N))


@pytest.mark.usefixtures("slow_sources")
def test_async_for_gives_the_loop_a_turn_between_slow_elements() -> None:
    made: list[int] = []

    async def main() -> list[int]:
        stream = rsf.range_(N).map(lambda x: x).do_on_next(made.append)
        seen = []
        async with stream.iterate() as elements:
            async for x in elements:
                assert len(made) == x + 1
                seen.append(x)
        return seen

    assert asyncio.run(main()) == list(range(N))


def test_a_foreign_publisher_is_asked_once_for_a_prefetch() -> None:
    publisher = ManualPublisher()
    with rsf.from_publisher(publisher).publish_on("caller", prefetch=8).iterate() as elements:
        assert publisher.requests == [8]
        send(publisher, 0)
        assert next(elements) == 0
