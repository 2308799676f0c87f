"""``merge``, ``flat_map``, ``concat_map``, over sources on any resource."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rsf
from tests.soak.chance import Chance
from tests.soak.consumers import consume
from tests.soak.ledger import Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.boundaries import chain, source
from tests.soak.scenarios.registry import scenario

NAMES = "abcde"


def sources(ledger: Ledger, chance: Chance, place: Place, n: int | None = None) -> list[Any]:
    """Some streams, each with elements of its own."""
    names = NAMES[: chance.randint(1, len(NAMES))]
    return [
        chain(source(ledger, name, n or chance.size(800), chance, place), chance, place, most=2)
        for name in names
    ]


def judge(stream: Any, ledger: Ledger, chance: Chance, place: Place) -> None:
    """Each source's elements in its order; all of them, if the end is seen."""
    reader = Reader()
    if consume(chain(stream, chance, place, most=1), reader, chance, place, stops=chance.one_in(3)):
        reader.check(ledger)
    reader.check()
    ledger.await_closed()


@scenario
def merging(chance: Chance, place: Place) -> None:
    """Whatever comes, of each in its order."""
    ledger = Ledger()
    judge(
        rsf.merge(*sources(ledger, chance, place), prefetch=chance.size(64)), ledger, chance, place
    )


@scenario
def flat_mapping(chance: Chance, place: Place) -> None:
    """A source for each element; on workers, on pools, at once."""
    ledger = Ledger()
    many = chance.randint(1, 40)

    def inner(k: int) -> Any:
        own = chances[k]
        stream = rsf.from_iterable(ledger.source(f"s{k}.", own.size(100)))
        return stream.publish_on(place.pool()) if own.one_in(2) else stream

    chances = [chance.fork() for _ in range(many)]
    place.pool()
    numbers = rsf.range_(many)
    if chance.one_in(2):
        stream = numbers.flat_map(inner, concurrency=chance.size(many), prefetch=chance.size(64))
    else:
        stream = numbers.concat_map(inner, prefetch=chance.size(8))
    judge(stream, ledger, chance, place)
