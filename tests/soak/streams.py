"""Chains of boundaries that keep every element and its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import rstreams_fast as rsf
from tests.operators import USES, uses
from tests.operators.entry import NO_ORDER
from tests.operators.flow import OnOverflow
from tests.soak.ledger import Ledger
from tests.soak.place import Chance, Place

Boundary = Callable[[Any, Chance, Place], Any]


async def _later(element: Any) -> Any:
    if element.number % 7 == 0:
        await asyncio.sleep(0)
    return element


def _publish_on(stream: Any, chance: Chance, place: Place) -> Any:
    options: dict[str, Any] = {"delay_error": chance.one_in(2)}
    if chance.one_in(4):
        options.update(max_bytes=chance.size(5000), weigher=lambda _element: 10)
    return stream.publish_on(place.executor(), prefetch=chance.size(1500), **options)


def _map_async(stream: Any, chance: Chance, place: Place) -> Any:
    # A private loop is started for each subscription, the place's is shared.
    loop = place.loop() if chance.one_in(2) else None
    return stream.map_async(_later, concurrency=chance.size(64), loop=loop)


def _timed_batches(stream: Any, chance: Chance, place: Place) -> Any:
    seconds = chance.choice((0.0005, 0.005, 60.0))
    return stream.batch(chance.size(200), seconds=seconds).unbatch()


def _sharing(stream: Any, chance: Chance, place: Place) -> Any:
    size, how = chance.size(300), chance.choice(("multicast", "share", "replay"))
    count = {"count": chance.size(50), "on_last_cancel": "restart"} if how == "replay" else {}
    return getattr(stream, how)(buffer_size=size, **count)


def _processor(stream: Any, chance: Chance, place: Place) -> Any:
    prefetch = chance.size(200)
    between: Any = rsf.processor(lambda s: s.publish_on(place.executor(), prefetch=prefetch))

    class Both:
        """Subscribing to it subscribes the processor to the source."""

        def subscribe(self, subscriber: Any) -> None:
            between.subscribe(subscriber)
            stream.subscribe(between)

    return rsf.from_publisher(Both())


#: Each operator of the table that keeps all elements and their order, and lets go of its source
#: with its subscriber.
SAME = [
    use.same
    for name, use in uses(lambda use: not use.slow and use.not_claimed != NO_ORDER).items()
    if not (USES[name][0].shared or USES[name][0] is OnOverflow or name == "MapInC")
]
KEEPING: tuple[Boundary, ...] = (
    _publish_on,
    lambda stream, _, place: stream.subscribe_on(place.executor()),
    _map_async,
    _timed_batches,
    _sharing,
    _processor,
    *[lambda stream, chance, _: chance.choice(SAME)(stream)] * 5,
)


def source(ledger: Ledger, name: str, n: int, chance: Chance, place: Place) -> Any:
    """A stream of ``n`` elements, from an iterator or an asynchronous one."""
    if chance.one_in(4):
        loop = place.loop() if chance.one_in(2) else None
        return rsf.from_async_iterable(lambda: ledger.async_source(name, n), loop=loop)
    return rsf.from_iterable(ledger.source(name, n))


def chain(stream: Any, chance: Chance, place: Place, most: int = 4) -> Any:
    """``stream`` with up to ``most`` boundaries that keep what it is."""
    for _ in range(chance.randrange(most + 1)):
        stream = chance.choice(KEEPING)(stream, chance, place)
    return stream


class Meant(Exception):
    """What a source fails with."""


class Resuming:
    """A publisher that fails now and then, and goes on where it was when subscribed to again."""

    def __init__(self, ledger: Ledger, n: int, chance: Chance) -> None:
        self._ledger = ledger
        self._left = n
        self._chance = chance

    def subscribe(self, subscriber: Any) -> None:
        rsf.from_iterable(self._piece(self._chance.size(200))).subscribe(subscriber)

    def _piece(self, n: int) -> Any:
        last = n >= self._left
        for _ in range(min(n, self._left)):
            self._left -= 1
            yield self._ledger.new("a")
        if not last:
            raise Meant
