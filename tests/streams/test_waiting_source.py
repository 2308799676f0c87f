"""A source that waits in the middle of a burst keeps back nothing that it has delivered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE
from tests.rules.probes import Recorder


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
    recorder = Recorder(request=rsf.UNBOUNDED, on_next=lambda _recorder, x: source.see(x))
    BOUNDARIES[boundary](rsf.from_iterable(source).subscribe_on()).subscribe(recorder)
    assert recorder.wait_terminal() == ("on_complete",)
    assert recorder.elements == [1, 2, 3, 4]
    recorder.check()


def test_a_waiting_source_keeps_nothing_back_from_a_loop() -> None:
    source = Pausing()
    stream = rsf.from_iterable(source).subscribe_on()
    assert [source.see(x) for x in stream] == [1, 2, 3, 4]


def test_a_waiting_source_keeps_nothing_back_from_an_async_loop() -> None:
    source = Pausing()

    async def consume() -> list[int]:
        return [source.see(x) async for x in rsf.from_iterable(source).subscribe_on()]

    assert asyncio.run(consume()) == [1, 2, 3, 4]
