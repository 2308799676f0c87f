"""Sources that do not wait: every element is delivered, or counted as dropped."""

from __future__ import annotations

import threading
from typing import Any

import rstreams_fast as rsf
from rstreams_fast.errors import BufferOverflowError
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.consumers import Asking, consume
from tests.soak.ledger import Element, Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.boundaries import source
from tests.soak.scenarios.registry import scenario

DROPPING = (rsf.Overflow.DROP_OLDEST, rsf.Overflow.DROP_LATEST, rsf.Overflow.LATEST)


class Drops:
    """What was dropped, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.elements: list[Element] = []

    def __call__(self, element: Element) -> None:
        with self._lock:
            self.elements.append(element)


def _options(chance: Chance, overflow: rsf.Overflow) -> dict[str, Any]:
    return {} if overflow is rsf.Overflow.LATEST else {"capacity": chance.size(300)}


@scenario
def emitters(chance: Chance, place: Place) -> None:
    """Threads emit, one asks: delivered and dropped together are what was sent."""
    ledger, reader, drops = Ledger(), Reader(gaps=True), Drops()
    overflow = chance.choice(DROPPING)
    names = "abc"[: chance.randint(1, 3)]
    amounts = {name: chance.size(800) for name in names}
    chances = [chance.fork() for _ in names]

    def fn(emitter: Any) -> None:
        def emit(name: str, n: int) -> None:
            for _ in range(n):
                emitter.next(ledger.new(name))

        emitting = [place.thread(emit, name, amounts[name]) for name in names]

        def complete() -> None:
            for thread in emitting:
                thread.result()
            emitter.complete()

        place.thread(complete)

    stream = rsf.create(fn, overflow=overflow, on_drop=drops, **_options(chances[0], overflow))
    if chance.one_in(2):
        stream = stream.publish_on(place.executor(), prefetch=chance.size(100))
    asking = Asking(reader)
    stream.subscribe(asking)
    asking.ask(chance.fork(), None)
    assert asking.error is None, asking.error
    reader.check(ledger, besides=len(drops.elements))
    both = {(x.producer, x.number) for x in drops.elements}
    assert len(both) == len(drops.elements), "an element was dropped twice"


@scenario
def emitters_left(chance: Chance, place: Place) -> None:
    """The subscriber leaves while threads emit: they learn of it."""
    reader = Reader(gaps=True)
    ledger = Ledger()
    told = threading.Event()

    def fn(emitter: Any) -> None:
        emitter.on_cancel(told.set)

        def emit() -> None:
            while emitter.next(ledger.new("a")):
                pass

        place.thread(emit)

    overflow = chance.choice(DROPPING)
    stream = rsf.create(fn, overflow=overflow, **_options(chance, overflow))
    asking = Asking(reader)
    stream.subscribe(asking)
    asking.ask(chance.fork(), chance.size(1000))
    asking.subscription.cancel()
    assert told.wait(DEADLINE)
    place.join()
    reader.check()


@scenario
def overflowing(chance: Chance, place: Place) -> None:
    """``on_overflow`` below a source that is asked for everything."""
    ledger, drops = Ledger(), Drops()
    overflow = chance.choice((*DROPPING, rsf.Overflow.BUFFER))
    reader = Reader(gaps=overflow is not rsf.Overflow.BUFFER)
    stream = source(ledger, "a", chance.size(3000), chance, place)
    if chance.one_in(2):
        stream = stream.subscribe_on(place.executor())
    stream = stream.on_overflow(overflow, on_drop=drops, **_options(chance, overflow))
    try:
        if consume(stream, reader, chance, place, stops=chance.one_in(3)):
            reader.check(ledger, besides=len(drops.elements))
    except BufferOverflowError:
        assert overflow is rsf.Overflow.BUFFER
    reader.check()
    ledger.await_closed()


@scenario
def intervals(chance: Chance, place: Place) -> None:
    """Numbers that nobody waits for, in order, to a cancel."""
    overflow = chance.choice((*DROPPING, rsf.Overflow.BUFFER))
    stream = rsf.interval(chance.choice((0.0002, 0.002)), overflow=overflow)
    if chance.one_in(2):
        stream = stream.publish_on(place.executor(), prefetch=chance.size(20))
    numbers = stream.take(chance.size(30)).to_list()
    assert numbers == sorted(set(numbers))  # those that are late are left out
