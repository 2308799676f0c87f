"""Chains of boundaries that keep every element and its order, consumed in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import rstreams_fast as rsf
from rstreams_fast.errors import AlreadySubscribedError
from tests.operators import USES, uses
from tests.operators.entry import NO_ORDER
from tests.operators.flow import OnOverflow
from tests.soak.chance import Chance
from tests.soak.consumers import consume
from tests.soak.ledger import Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


async def _at_once(element: Any) -> Any:
    return element


async def _later(element: Any) -> Any:
    if element.number % 7 == 0:
        await asyncio.sleep(0)
    return element


def _publish_on(stream: Any, chance: Chance, place: Place) -> Any:
    options: dict[str, Any] = {"delay_error": chance.one_in(2)}
    if chance.one_in(4):
        options.update(max_bytes=chance.size(5000), weigher=lambda _element: 10)
    return stream.publish_on(place.executor(), prefetch=chance.size(1500), **options)


def _subscribe_on(stream: Any, chance: Chance, place: Place) -> Any:
    return stream.subscribe_on(place.executor())


def _map_async(stream: Any, chance: Chance, place: Place) -> Any:
    fn = chance.choice((_at_once, _later))
    # A private loop is started for each subscription, the place's is shared.
    loop = place.loop() if chance.one_in(2) else None
    return stream.map_async(fn, concurrency=chance.size(64), loop=loop)


def _timed_batches(stream: Any, chance: Chance, place: Place) -> Any:
    seconds = chance.choice((0.0005, 0.005, 60.0))
    return stream.batch(chance.size(200), seconds=seconds).unbatch()


def _sharing(stream: Any, chance: Chance, place: Place) -> Any:
    size = chance.size(300)
    return chance.choice(
        (
            lambda: stream.multicast(buffer_size=size),
            lambda: stream.share(buffer_size=size),
            lambda: stream.replay(
                count=chance.size(50), buffer_size=size, on_last_cancel="restart"
            ),
        )
    )()


def _processor(stream: Any, chance: Chance, place: Place) -> Any:
    prefetch = chance.size(200)
    between = rsf.processor(lambda s: s.publish_on(place.executor(), prefetch=prefetch))
    source = stream

    class Both:
        """Subscribing to it subscribes the processor to the source."""

        def subscribe(self, subscriber: Any) -> None:
            between.subscribe(subscriber)
            source.subscribe(between)

    return rsf.from_publisher(Both())


def _of_the_table(stream: Any, chance: Chance, place: Place) -> Any:
    return chance.choice(SAME)(stream)


#: Each operator of the table that keeps all elements and their order, and lets go of its source
#: with its subscriber.
SAME = [
    use.same
    for name, use in uses(lambda use: not use.slow and use.not_claimed != NO_ORDER).items()
    if not (USES[name][0].shared or USES[name][0] is OnOverflow or name == "MapInC")
]
KEEPING: tuple[Callable[[Any, Chance, Place], Any], ...] = (
    _publish_on,
    _subscribe_on,
    _map_async,
    _timed_batches,
    _sharing,
    _processor,
    *[_of_the_table] * 5,
)


def source(ledger: Ledger, name: str, n: int, chance: Chance, place: Place) -> Any:
    """A stream of ``n`` elements, from an iterator or an asynchronous one."""
    if chance.one_in(4):
        loop = place.loop() if chance.one_in(2) else None
        return rsf.from_async_iterable(lambda: ledger.async_source(name, n), loop=loop)
    return rsf.from_iterable(ledger.source(name, n))


def chain(stream: Any, chance: Chance, place: Place, most: int = 4) -> Any:
    """``stream`` with some boundaries that keep what it is."""
    for _ in range(chance.randrange(most + 1)):
        stream = chance.choice(KEEPING)(stream, chance, place)
    return stream


@scenario
def to_the_end(chance: Chance, place: Place) -> None:
    """All elements, in their order."""
    ledger, reader = Ledger(), Reader()
    stream = chain(source(ledger, "a", chance.size(3000), chance, place), chance, place)
    assert consume(stream, reader, chance, place, stops=False)
    reader.check(ledger)
    ledger.await_closed()


@scenario
def left_early(chance: Chance, place: Place) -> None:
    """A beginning of them; the source is closed, and nothing stays."""
    ledger, reader = Ledger(), Reader()
    stream = chain(source(ledger, "a", chance.size(3000), chance, place), chance, place)
    if consume(stream, reader, chance, place, stops=True):
        reader.check(ledger)
    reader.check()
    ledger.await_closed()


class Meant(Exception):
    """What a source fails with."""


@scenario
def failing(chance: Chance, place: Place) -> None:
    """A beginning of them, then the error; all of them, where every boundary delays it."""
    ledger, reader = Ledger(), Reader()
    n = chance.size(2000)

    def fails() -> Any:
        yield from ledger.source("a", n)
        raise Meant

    stream = chain(rsf.from_iterable(fails()), chance, place)
    try:
        consume(stream, reader, chance, place, stops=chance.one_in(3))
    except Meant:
        pass
    except AlreadySubscribedError:
        pass  # what retries, or starts anew, finds the iterator used up
    reader.check()
    ledger.await_closed()
