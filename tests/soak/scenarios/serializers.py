"""``SignalSerializer`` and ``SerializedProcessor``: many signal, one is signalled."""

from __future__ import annotations

import threading
from typing import Any

import rstreams_fast as rsf
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import Emission, SignalSerializer
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.consumers import Asking
from tests.soak.ledger import Ledger, Reader
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario


class Upstream:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def request(self, n: int) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled.set()


def send(target: Any, ledger: Ledger, name: str, n: int, chance: Chance) -> int:
    """Signal ``n`` elements; those that found no room are sent again. How many were refused."""
    refused = 0
    for _ in range(n):
        element = ledger.new(name)
        if chance.one_in(2):
            target.on_next(element)
            continue
        while (answer := target.try_next(element)) in (Emission.FULL, Emission.BUSY):
            pass
        if answer is not Emission.OK:
            refused += 1
    return refused


def unbounded(reader: Reader) -> Asking:
    asking = Asking(reader)
    asking._requested = UNBOUNDED
    return asking


@scenario
def threads(chance: Chance, place: Place) -> None:
    """All elements of several threads, each thread's in its order, then the end."""
    ledger, reader = Ledger(), Reader()
    asking = unbounded(reader)
    signals = SignalSerializer(asking, capacity=chance.size(200), on_full="wait")
    signals.on_subscribe(Upstream())
    producers = [
        place.thread(send, signals, ledger, name, chance.size(800), chance.fork())
        for name in "abcd"[: chance.randint(1, 4)]
    ]
    for producer in producers:
        assert producer.result() == 0
    signals.on_complete()
    assert asking.ended
    reader.check(ledger)


@scenario
def ends_in_the_middle(chance: Chance, place: Place) -> None:
    """A cancel, an error, or a completion while others signal: the first elements of each."""
    ledger, reader = Ledger(), Reader()
    asking = unbounded(reader)
    upstream = Upstream()
    signals = SignalSerializer(
        asking, capacity=chance.size(50), on_full="wait", delay_error=chance.one_in(2)
    )
    signals.on_subscribe(upstream)
    for name in "ab":
        place.thread(send, signals, ledger, name, chance.size(800), chance.fork())
    how = chance.choice(("cancel", "on_error", "on_complete"))
    for _ in range(chance.size(2000)):
        signals.queued  # noqa: B018 - to pass the time, and to look
    arguments = (ValueError("in the middle"),) if how == "on_error" else ()
    ending = [place.thread(getattr(signals, how), *arguments) for _ in range(2)]
    for thread in ending:
        thread.result()
    place.join()
    reader.check()
    assert asking.ended is (how != "cancel")
    if how == "cancel":
        assert upstream.cancelled.wait(DEADLINE)


@scenario
def processor(chance: Chance, place: Place) -> None:
    """Several threads into one ``SerializedProcessor``, several subscribers below."""
    ledger = Ledger()
    processor: Any = rsf.SerializedProcessor(capacity=chance.size(2000), on_full="wait")
    readers = [Reader() for _ in range(chance.randint(1, 3))]
    askings = [Asking(reader) for reader in readers]
    processor.on_subscribe(Upstream())
    for asking in askings:
        processor.subscribe(asking)
    for asking in askings:
        asking.request(UNBOUNDED)
    names = "abc"[: chance.randint(1, 3)]
    producers = [
        place.thread(send, processor, ledger, name, chance.size(500), chance.fork())
        for name in names
    ]
    for producer in producers:
        assert producer.result() == 0
    processor.on_complete()
    for asking, reader in zip(askings, readers, strict=True):
        assert asking.ended
        assert asking.error is None, asking.error
        reader.check(ledger)
