"""A source that works on the thread that asks: no element waits until a whole prefetch has come.
And one that waits itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE
from tests.operators import firsts, uses
from tests.operators.entry import NO_ORDER
from tests.rules.probes import ManualPublisher, send, subscribed

N = 300

#: Uses that ask for all they may hold, and those below which another thread may be further on.
AT_ONCE = {
    *("OnOverflowBUFFER", "GroupBy", "WindowTime"),
    *("PublishRecordsOnTheCaller", "SubscribeOnTheCaller"),
    *uses(lambda use: use.threads),
}
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda s: s,
    **{
        name: use.same
        for name, use in firsts().items()
        if not use.delivers_at_end and use.not_claimed != NO_ORDER
    },
    "concat_map of what is no sequence": lambda s: s.publish_on("caller").concat_map(
        lambda x: rsf.from_iterable([x]).publish_on("caller")
    ),
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
        assert name in AT_ONCE or len(made) <= 3
        assert list(elements) == list(range(1, N))


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("name", OPERATORS)
def test_all_elements_come_however_they_are_asked_for(name: str) -> None:
    numbers = rsf.range_(N).map(lambda x: x)
    assert OPERATORS[name](numbers).to_list() == list(range(N))
    stream = OPERATORS[name](numbers)
    recorder = subscribed(stream, 2, on_next=lambda recorder, _x: recorder.subscription.request(1))
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


# -- one that waits in the middle of a burst keeps back nothing that it has delivered --------------
class Pausing:
    """Three elements; then it waits, with a burst under way, until the third has been consumed."""

    def __init__(self) -> None:
        self.consumed = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from (1, 2, 3)
        assert self.consumed.wait(DEADLINE), "the third element was kept back"
        yield 4

    def see(self, element: int) -> int:
        if element == 3:
            self.consumed.set()
        return element


async def _call(element: int) -> int:
    return element


BOUNDARIES: dict[str, Callable[[Any], Any]] = {
    "publish_on": lambda stream: stream.publish_on(),
    "publish_on behind a map": lambda stream: stream.map(lambda x: x).publish_on(),
    "publish_on by bytes": lambda stream: stream.publish_on(max_bytes=9, weigher=lambda _x: 1),
    "two boundaries": lambda stream: stream.publish_on().map(lambda x: x).publish_on(),
    "map_async": lambda stream: stream.map_async(_call),
}


@pytest.mark.parametrize("boundary", list(BOUNDARIES))
def test_a_waiting_source_keeps_nothing_back_from_a_boundary(boundary: str) -> None:
    source = Pausing()
    stream = BOUNDARIES[boundary](rsf.from_iterable(source).subscribe_on())
    recorder = subscribed(stream, rsf.UNBOUNDED, on_next=lambda _recorder, x: source.see(x))
    assert recorder.wait_terminal() == ("on_complete",)
    assert recorder.elements == [1, 2, 3, 4]
    recorder.check()


async def test_a_waiting_source_keeps_nothing_back_from_a_loop() -> None:
    source = Pausing()
    stream = rsf.from_iterable(source).subscribe_on()
    assert [source.see(x) async for x in stream] == [1, 2, 3, 4]
    source = Pausing()
    stream = rsf.from_iterable(source).subscribe_on()
    assert await asyncio.to_thread(lambda: [source.see(x) for x in stream]) == [1, 2, 3, 4]
