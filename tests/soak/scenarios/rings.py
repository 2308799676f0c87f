"""``SpscRing``: one puts, one takes, in every way there is; either closes it, or a third."""

from __future__ import annotations

import threading
from typing import Any

from rstreams_fast.core import SpscRing
from rstreams_fast.errors import RingClosed
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.ledger import Element, Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


class Stopped(Exception):
    """What a ring was closed with."""


def parked(arm: Any) -> None:
    """Wait without a thread of the ring's: to be woken, or because there is no need."""
    event = threading.Event()
    if arm(event.set) and not event.wait(DEADLINE):
        raise AssertionError("nobody called the waker")


def produce(ring: SpscRing, n: int, chance: Chance) -> int:
    """Put up to ``n`` elements in; return how many were accepted."""
    accepted = 0
    try:
        while accepted < n:
            way = chance.randrange(4)
            if way == 0:
                if ring.offer(Element("a", accepted)):
                    accepted += 1
                else:
                    parked(ring.arm_producer)
            elif way == 1:
                start = chance.randrange(3)  # what is before it is not meant
                burst = [Element("b", k) for k in range(start)]
                burst += [Element("a", accepted + k) for k in range(min(n - accepted, 40))]
                accepted += ring.offer_many(burst, start)
            elif way == 2:
                ring.put(Element("a", accepted), DEADLINE)
                accepted += 1
            else:
                try:
                    ring.put(Element("a", accepted), 0.0001)
                    accepted += 1
                except TimeoutError:
                    continue
    except RingClosed:
        pass
    return accepted


def consume(ring: SpscRing, reader: Reader, chance: Chance) -> None:
    """Take elements out until the ring says that it is over."""
    while True:
        way = chance.randrange(4)
        if way == 0:
            element = ring.poll()
            if element is None:
                parked(ring.arm)
            else:
                reader.see(element)
        elif way == 1:
            for element in ring.poll_many(chance.size(100)):
                reader.see(element)
        else:
            try:
                reader.see(ring.get(DEADLINE if way == 2 else 0.0001))
            except (RingClosed, Stopped):
                return
            except TimeoutError:
                assert way == 3, "an element, or the end, did not come"


def close_later(ring: SpscRing, error: BaseException | None, chance: Chance) -> None:
    for _ in range(chance.size(2000)):
        len(ring)
    ring.close(error)


@scenario
def threads(chance: Chance, place: Place) -> None:
    """Two threads, and perhaps a third that closes in the middle."""
    ring = SpscRing(chance.size(300))
    reader = Reader()
    n = chance.size(4000)
    closer = chance.choice(("producer", "another", "nobody before the end"))
    error = Stopped() if chance.one_in(2) else None
    producing = place.thread(produce, ring, n, chance.fork())
    consuming = place.thread(consume, ring, reader, chance.fork())
    if closer == "another":
        place.thread(close_later, ring, error, chance.fork())
    accepted = producing.result()
    ring.close(error)
    consuming.result()
    reader.check()
    assert reader.count == accepted, f"{accepted} were accepted, {reader.count} came"


@scenario
def loops(chance: Chance, place: Place) -> None:
    """A coroutine on at least one side, which may be cancelled and comes again."""
    import asyncio

    ring = SpscRing(chance.size(100))
    reader = Reader()
    n = chance.size(1500)

    async def impatient(make: Any) -> Any:
        """Cancelled at once, or seldom soon; then once more, patiently."""
        if chance.one_in(8):
            task = asyncio.ensure_future(make())
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if not task.cancel():
                return task.result()
            try:
                return await task
            except asyncio.CancelledError:
                pass
        return await make()

    async def taking() -> None:
        try:
            while True:
                reader.see(await impatient(ring.aget))
        except RingClosed:
            pass

    async def putting() -> int:
        for k in range(n):
            await ring.aput(Element("a", k))
        return n

    both = chance.randrange(3)
    if both == 0:
        producing = place.thread(produce, ring, n, chance.fork())
    else:
        producing = place.thread(place.on_loop, putting())
    if both == 1:
        consuming = place.thread(consume, ring, reader, chance.fork())
    else:
        consuming = place.thread(place.on_loop, taking())
    accepted = producing.result()
    ring.close()
    consuming.result()
    reader.check()
    assert reader.count == accepted == n, (reader.count, accepted, n)


@scenario
def dropped_with_elements(chance: Chance, place: Place) -> None:
    """A ring that is forgotten drops what is in it."""
    ledger = Ledger()
    ring = SpscRing(chance.size(500))
    elements = [ledger.new("a") for _ in range(chance.size(400))]
    place.thread(ring.offer_many, elements).result()
    place.thread(ring.poll_many, chance.size(200)).result()
    if chance.one_in(2):
        elements[0].producer = ring  # type: ignore[assignment]  # a circle
