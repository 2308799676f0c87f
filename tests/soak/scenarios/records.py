"""``RecordRing``, and ``publish_records_on``: every record once, however they are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

import rstreams_fast as rsf
from rstreams_fast.core import RecordRing
from rstreams_fast.errors import RingClosed
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


def produce(ring: RecordRing, records: Any, chance: Chance) -> int:
    """Put the records in, as long as the ring is open; return how many."""
    at = 0
    try:
        while at < len(records):
            piece = records[at : at + chance.size(500)]
            way = chance.randrange(3)
            if way == 0:
                at += ring.write(piece)
            elif way == 1:
                try:
                    # One, so that all or nothing is in: several go in by parts.
                    ring.put(piece[:1], 0.001 if chance.one_in(4) else DEADLINE)
                except TimeoutError:
                    continue
                at += 1
            else:
                view = ring.reserve(len(piece))
                n = len(view)
                view[...] = piece[:n]
                del view
                ring.commit(n)
                at += n
    except RingClosed:
        pass
    return at


def consume(ring: RecordRing, chance: Chance) -> list[Any]:
    """Take records out to the end; copies of them."""
    taken: list[Any] = []
    while True:
        way = chance.randrange(4)
        most = chance.size(400)
        if way == 0:
            taken.append(ring.read(most))
        elif way == 1:
            array = np.zeros(most, ring.dtype)
            taken.append(array[: ring.read_into(array)])
        elif way == 2:
            view = ring.peek(most)
            n = len(view)
            taken.append(view.copy())
            del view
            ring.release(n)
        else:
            try:
                taken.append(ring.get(most, DEADLINE))
            except RingClosed:
                return taken


@scenario
def threads(chance: Chance, place: Place) -> None:
    """Two threads; one record at a time or many, with a copy or without."""
    ring = RecordRing(chance.choice(("i8", "u4")), chance.size(3000))
    records = np.arange(chance.size(30_000)).astype(ring.dtype)
    producing = place.thread(produce, ring, records, chance.fork())
    consuming = place.thread(consume, ring, chance.fork())
    if chance.one_in(3):
        place.thread(lambda: [len(ring) for _ in range(chance.size(2000))] and ring.close())
    accepted = producing.result()
    ring.close()
    got = np.concatenate([records[:0], *consuming.result()])
    assert np.array_equal(got, records[:accepted]), (len(got), accepted)


@scenario
def loops(chance: Chance, place: Place) -> None:
    """Coroutines on both sides."""
    ring = RecordRing("i8", chance.size(300))
    records = np.arange(chance.size(5000))
    taken: list[Any] = []

    async def putting() -> None:
        at = 0
        while at < len(records):
            piece = records[at : at + chance.size(200)]
            await ring.aput(piece)
            at += len(piece)
        ring.close()

    async def taking() -> None:
        try:
            while True:
                taken.append(await ring.aget(chance.size(200)))
        except RingClosed:
            pass

    async def both() -> None:
        await asyncio.gather(putting(), taking())

    place.on_loop(both())
    assert np.array_equal(np.concatenate(taken), records)


@scenario
def boundary(chance: Chance, place: Place) -> None:
    """Arrays of any size through ``publish_records_on``, to the end or not."""
    records = np.arange(chance.size(20_000))
    cuts = sorted(chance.randrange(len(records) + 1) for _ in range(chance.size(50)))
    arrays = [piece for piece in np.split(records, cuts) if len(piece)]
    stream = rsf.from_iterable(arrays).publish_records_on(
        "i8", place.executor(), capacity=chance.size(2000), chunk=chance.size(500)
    )
    if chance.one_in(2):
        stream = stream.publish_on(place.executor(), prefetch=chance.size(30))
    if chance.one_in(2):
        enough = chance.size(20)
        got = stream.take(enough).to_list()
    else:
        enough, got = None, stream.to_list()
    whole = np.concatenate([records[:0], *got])
    assert np.array_equal(whole, records[: len(whole)])
    assert enough is not None or len(whole) == len(records), (len(whole), len(records))
