"""A source that works on the thread that asks: no element waits until a whole prefetch has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.operators import firsts, uses
from tests.operators.entry import NO_ORDER
from tests.rules.probes import ManualPublisher, Recorder, send

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
    recorder = Recorder(request=2, on_next=lambda recorder, x: recorder.subscription.request(1))
    OPERATORS[name](numbers).subscribe(recorder)
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
