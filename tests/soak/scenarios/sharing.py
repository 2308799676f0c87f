"""One source for several subscribers, who come, lag and leave as they like."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rsf
from rstreams_fast.errors import BufferOverflowError, ShutDownError
from tests.soak.chance import Chance
from tests.soak.consumers import Asking, consume
from tests.soak.ledger import Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.boundaries import chain, source
from tests.soak.scenarios.registry import scenario


def _listen(publisher: Any, late: bool, chance: Chance, place: Place) -> tuple[bool, Reader]:
    """Consume in one way; whether the end was seen, and the elements."""
    reader = Reader(late=late)
    stream = rsf.from_publisher(publisher)
    if chance.one_in(3):
        stream = stream.publish_on(prefetch=chance.size(100))
    enough = chance.size(800) if chance.one_in(3) else None
    asking = Asking(reader)
    stream.subscribe(asking)
    asking.ask(chance, enough)
    if not asking.ended:
        asking.subscription.cancel()
    elif isinstance(asking.error, BufferOverflowError | ShutDownError):
        return False, reader
    elif asking.error is not None:
        raise asking.error
    return asking.ended, reader


def _all_listen(publisher: Any, n: int, chance: Chance, place: Place, *, late: bool) -> list[Any]:
    threads = [
        place.thread(_listen, publisher, late, chance.fork(), place)
        for _ in range(chance.randint(1, 4))
    ]
    outcomes = [thread.result() for thread in threads]
    for ended, reader in outcomes:
        reader.check()
        if ended and not late:
            assert reader.count == n, (reader.count, n)
    return outcomes


@scenario
def multicast(chance: Chance, place: Place) -> None:
    """Everybody's elements are in order and without gaps; who is there first gets all."""
    ledger = Ledger()
    n = chance.size(2000)
    upstream = chain(source(ledger, "a", n, chance, place), chance, place, most=1)
    shared = upstream.multicast(
        buffer_size=chance.size(300),
        slow=chance.choice(("gate", "drop")),
        on_last_cancel="shut_down",
    )
    if chance.one_in(3):
        shared = shared.publish_on(place.executor(), prefetch=chance.size(100))
    _all_listen(shared, n, chance, place, late=True)
    ledger.await_closed()


@scenario
def replay(chance: Chance, place: Place) -> None:
    """With everything kept, everybody gets everything, whenever they come."""
    ledger = Ledger()
    n = chance.size(1500)
    upstream = chain(source(ledger, "a", n, chance, place), chance, place, most=1)
    shared = upstream.replay(count=n, buffer_size=chance.size(300))
    first = Reader()
    assert consume(shared, first, chance, place, stops=False)
    first.check(ledger)
    _all_listen(shared, n, chance, place, late=False)
    ledger.await_closed()


@scenario
def processors(chance: Chance, place: Place) -> None:
    """The hubs themselves: one source, subscribers before and after it."""
    ledger = Ledger()
    n = chance.size(1500)
    hub: Any = chance.choice(
        (
            lambda: rsf.MulticastProcessor(buffer_size=chance.size(300)),
            lambda: rsf.ReplayProcessor(count=n, on_last_cancel="keep"),
            lambda: rsf.processor(lambda s: s.publish_on().multicast()),
        )
    )()
    reader = Reader()
    asking = Asking(reader)
    hub.subscribe(asking)  # it stays to the end, so the hub does
    stayed = place.thread(asking.ask, chance.fork(), None)
    listeners = [
        place.thread(_listen, hub, True, chance.fork(), place) for _ in range(chance.randrange(4))
    ]
    source(ledger, "a", n, chance, place).subscribe(hub)
    stayed.result()
    assert asking.error is None, asking.error
    reader.check(ledger)
    for listener in listeners:
        listener.result()[1].check()
    ledger.await_closed()


@scenario
def restarting(chance: Chance, place: Place) -> None:
    """``share``: anew after the last has left; every subscription of the source is closed."""
    ledgers: list[Ledger] = []
    n = chance.size(800)

    class Anew:
        def subscribe(self, subscriber: Any) -> None:
            ledger = Ledger()
            ledgers.append(ledger)
            rsf.from_iterable(ledger.source("a", n)).subscribe(subscriber)

    shared = rsf.from_publisher(Anew()).share(buffer_size=chance.size(100))
    for _ in range(chance.randint(1, 4)):
        # Two sources may overlap for one who listens while another leaves: each is in order.
        for ended, reader in (
            thread.result()
            for thread in [
                place.thread(_listen, shared, True, chance.fork(), place) for _ in range(2)
            ]
        ):
            reader.check()
            assert not ended or reader.count <= n
    for ledger in ledgers:
        ledger.await_closed()
