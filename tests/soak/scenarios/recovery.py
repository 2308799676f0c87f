"""``retry``, ``on_error_resume``, ``timeout``: nothing is lost where a source goes on."""

from __future__ import annotations

import threading
from typing import Any

import rstreams_fast as rsf
from tests.soak.chance import Chance
from tests.soak.consumers import consume
from tests.soak.ledger import Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.boundaries import Meant, chain
from tests.soak.scenarios.registry import scenario


class Resuming:
    """A publisher that fails now and then, and goes on where it was when subscribed to again."""

    def __init__(self, ledger: Ledger, n: int, chance: Chance, stuck: bool = False) -> None:
        self._ledger = ledger
        self._left = n
        self._chance = chance
        self._stuck = stuck
        self.subscribed = 0

    def subscribe(self, subscriber: Any) -> None:
        self.subscribed += 1
        piece = self._chance.size(200)
        stream: Any = rsf.from_iterable(self._piece(piece))
        if self._left > piece and self._stuck:
            stream = rsf.concat(stream, rsf.never())
        stream.subscribe(subscriber)

    def _piece(self, n: int) -> Any:
        last = n >= self._left
        for _ in range(min(n, self._left)):
            self._left -= 1
            yield self._ledger.new("a")
        if not last and not self._stuck:
            raise Meant


@scenario
def retrying(chance: Chance, place: Place) -> None:
    """At once, or after a while on a worker."""
    ledger, reader = Ledger(), Reader()
    resuming = Resuming(ledger, chance.size(2000), chance.fork())
    delay = chance.choice((None, 0.0002))
    stream = rsf.from_publisher(resuming).retry(delay=delay)
    if consume(chain(stream, chance, place, 2), reader, chance, place, stops=chance.one_in(3)):
        reader.check(ledger)
    reader.check()


@scenario
def resuming(chance: Chance, place: Place) -> None:
    """The rest comes from where the error says."""
    ledger, reader = Ledger(), Reader()
    source = Resuming(ledger, chance.size(1000), chance.fork())

    def rest(_error: BaseException) -> Any:
        return rsf.from_publisher(source).on_error_resume(rest, on=Meant)

    stream = rsf.from_publisher(source).on_error_resume(rest, on=Meant)
    if consume(chain(stream, chance, place, 2), reader, chance, place, stops=chance.one_in(3)):
        reader.check(ledger)
    reader.check()


@scenario
def timing_out(chance: Chance, place: Place) -> None:
    """A source that gets stuck is left, and subscribed to again.

    On a busy machine it is also left because an element took its time, which is lost then.
    """
    ledger, reader = Ledger(), Reader(gaps=True)
    source = Resuming(ledger, chance.size(600), chance.fork(), stuck=True)
    stream = rsf.from_publisher(source).timeout(0.005).retry(when=_late)
    if consume(stream, reader, chance, place, stops=chance.one_in(3)):
        lost = ledger.sent() - reader.count
        assert lost < source.subscribed, (lost, source.subscribed)
    reader.check()


def _late(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


@scenario
def cancelling_from_many_threads(chance: Chance, place: Place) -> None:
    """Cancels race with each other, with requests and with elements: one counts."""
    ledger, reader = Ledger(), Reader()
    stream = chain(rsf.from_iterable(ledger.source("a", 20_000)), chance, place, 2)
    begun = threading.Event()
    subscriptions: list[Any] = []
    ends: list[str] = []

    class Subscriber:
        def on_subscribe(self, subscription: Any) -> None:
            subscriptions.append(subscription)
            begun.set()

        def on_next(self, element: Any) -> None:
            reader.see(element)

        def on_error(self, error: BaseException) -> None:
            reader.note(f"an error: {error!r}")

        def on_complete(self) -> None:
            ends.append("complete")

    stream.subscribe(Subscriber())
    assert begun.wait(20)
    (subscription,) = subscriptions

    def request(chance: Chance) -> None:
        for _ in range(chance.size(100)):
            subscription.request(chance.size(100))

    for _ in range(2):
        place.thread(request, chance.fork())
    for _ in range(2):
        place.thread(lambda: [subscription.request(1) for _ in range(9)] and subscription.cancel())
    place.join()
    reader.check(ledger if ends else None)
    subscriptions.clear()
    ledger.await_closed()
