"""The scenarios by name. Each ends by itself, and raises what it finds wrong."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import rstreams_fast as rsf
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import (
    CANCELLED,
    TERMINATED,
    DemandCounter,
    Emission,
    RecordRing,
    SignalSerializer,
    SpscRing,
)
from rstreams_fast.errors import DemandExceededError, RingClosed
from tests.helpers import DEADLINE
from tests.operators import USES, uses
from tests.operators.entry import NO_ORDER
from tests.operators.flow import OnOverflow
from tests.soak.consumers import Asking, consume
from tests.soak.ledger import Element, Ledger, Reader
from tests.soak.place import Chance, Place

Scenario = Callable[[Chance, Place], None]

SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    SCENARIOS[run.__name__] = run
    return run


# -- primitives ------------------------------------------------------------------------------------
@scenario
def requests_and_fulfils(chance: Chance, place: Place) -> None:
    """Several ask, several deliver, several end: the sums agree, and one end counts."""
    counter = DemandCounter(chance.randrange(5))
    initial = counter.value

    def request(chance: Chance) -> int:
        amounts = [chance.size(50) for _ in range(chance.size(500))]
        assert all(counter.request(n) >= 0 for n in amounts)
        return sum(amounts)

    def fulfil(chance: Chance) -> int:
        done = 0
        for n in (chance.size(20) for _ in range(chance.size(500))):
            with contextlib.suppress(DemandExceededError):
                assert counter.fulfil(n) >= 0
                done += n
        return done

    asking = [place.thread(request, chance.fork()) for _ in range(chance.randint(1, 3))]
    giving = [place.thread(fulfil, chance.fork()) for _ in range(chance.randint(1, 2))]
    asked = sum(thread.result() for thread in asking)
    done = sum(thread.result() for thread in giving)
    assert counter.value == initial + asked - done, (counter.value, initial, asked, done)

    def ask_beyond_the_end(chance: Chance) -> None:
        seen = 0
        for _ in range(400):
            before = counter.request(UNBOUNDED if chance.one_in(50) else chance.size(9))
            assert seen >= 0 or before == seen, "demand after the end"
            seen = before

    for _ in range(2):
        place.thread(ask_beyond_the_end, chance.fork())
    ends = [place.thread(chance.choice((counter.cancel, counter.terminate))) for _ in range(3)]
    assert sum(end.result() for end in ends) == 1
    assert counter.value in (CANCELLED, TERMINATED)


class Stopped(Exception):
    """What a ring was closed with, or a producer ended with."""


def _parked(arm: Any) -> None:
    """Wait until the ring calls the waker, or until there is no need."""
    event = threading.Event()
    if arm(event.set) and not event.wait(DEADLINE):
        raise AssertionError("nobody called the waker")


def _close_later(ring: Any, looks: int, error: BaseException | None = None) -> None:
    for _ in range(looks):
        len(ring)
    ring.close(error)


def _fill(ring: SpscRing, n: int, chance: Chance) -> int:
    """Put up to ``n`` elements in; return how many were accepted."""
    accepted = 0
    try:
        while accepted < n:
            way = chance.randrange(4)
            if way == 0:
                if ring.offer(Element("a", accepted)):
                    accepted += 1
                else:
                    _parked(ring.arm_producer)
            elif way == 1:
                start = chance.randrange(3)  # the elements before it are not offered
                burst = [Element("b", k) for k in range(start)]
                burst += [Element("a", accepted + k) for k in range(min(n - accepted, 40))]
                accepted += ring.offer_many(burst, start)
            else:
                with contextlib.suppress(TimeoutError):
                    ring.put(Element("a", accepted), DEADLINE if way == 2 else 0.0001)
                    accepted += 1
    except RingClosed:
        pass
    return accepted


def _empty(ring: SpscRing, reader: Reader, chance: Chance) -> None:
    while True:
        way = chance.randrange(4)
        if way == 0:
            element = ring.poll()
            if element is None:
                _parked(ring.arm)
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


async def _empty_on_loop(ring: SpscRing, reader: Reader, chance: Chance) -> None:
    """As a coroutine, which is sometimes cancelled and takes again."""
    with contextlib.suppress(RingClosed, Stopped):
        while True:
            if chance.one_in(8):
                task = asyncio.ensure_future(ring.aget())
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                if task.cancel():
                    with contextlib.suppress(asyncio.CancelledError):
                        reader.see(await task)
                    continue
                reader.see(task.result())
            reader.see(await ring.aget())


async def _fill_on_loop(ring: SpscRing, n: int) -> int:
    for k in range(n):
        try:
            await ring.aput(Element("a", k))
        except RingClosed:
            return k
    return n


@scenario
def ring(chance: Chance, place: Place) -> None:
    """A thread or a coroutine on each side, and perhaps a third thread that closes."""
    ring, reader, n = SpscRing(chance.size(300)), Reader(), chance.size(3000)
    error = Stopped() if chance.one_in(2) else None
    if chance.one_in(3):
        filling = place.thread(lambda: place.on_loop(_fill_on_loop(ring, n)))
    else:
        filling = place.thread(_fill, ring, n, chance.fork())
    own = chance.fork()
    if chance.one_in(3):
        emptying = place.thread(lambda: place.on_loop(_empty_on_loop(ring, reader, own)))
    else:
        emptying = place.thread(_empty, ring, reader, own)
    if chance.one_in(3):
        place.thread(_close_later, ring, own.size(2000), error)
    accepted = filling.result()
    ring.close(error)
    emptying.result()
    reader.check()
    assert reader.count == accepted, f"{accepted} were accepted, {reader.count} came"


def _write(ring: RecordRing, records: Any, chance: Chance) -> int:
    """Put the records in, as long as the ring is open; return how many."""
    at = 0
    with contextlib.suppress(RingClosed):
        while at < len(records):
            piece = records[at : at + chance.size(500)]
            way = chance.randrange(3)
            if way == 0:
                at += ring.write(piece)
            elif way == 1:
                with contextlib.suppress(TimeoutError):
                    # One record: of several, a part may be in when the time is over.
                    ring.put(piece[:1], 0.001 if chance.one_in(4) else DEADLINE)
                    at += 1
            else:
                view = ring.reserve(len(piece))
                n = len(view)
                view[...] = piece[:n]
                del view
                ring.commit(n)
                at += n
    return at


def _read(ring: RecordRing, chance: Chance) -> list[Any]:
    taken: list[Any] = []
    while True:
        way, most = chance.randrange(4), chance.size(400)
        if way == 0:
            taken.append(ring.read(most))
        elif way == 1:
            array = np.zeros(most, ring.dtype)
            taken.append(array[: ring.read_into(array)])
        elif way == 2:
            view = ring.peek(most)
            taken.append(view.copy())
            del view
            ring.release(len(taken[-1]))
        else:
            try:
                taken.append(ring.get(most, DEADLINE))
            except RingClosed:
                return taken


@scenario
def records(chance: Chance, place: Place) -> None:
    """Two threads; one record at a time or many, with a copy or without."""
    ring = RecordRing(chance.choice(("i8", "u4")), chance.size(3000))
    records = np.arange(chance.size(30_000)).astype(ring.dtype)
    writing = place.thread(_write, ring, records, chance.fork())
    reading = place.thread(_read, ring, chance.fork())
    if chance.one_in(3):
        place.thread(_close_later, ring, chance.size(2000))
    accepted = writing.result()
    ring.close()
    got = np.concatenate([records[:0], *reading.result()])
    assert np.array_equal(got, records[:accepted]), (len(got), accepted)


class Upstream:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def request(self, n: int) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled.set()


def _send(target: Any, ledger: Ledger, name: str, n: int, chance: Chance) -> int:
    """Signal ``n`` elements; those that find no room are sent again. How many were refused."""
    refused = 0
    for _ in range(n):
        element = ledger.new(name)
        if chance.one_in(2):
            target.on_next(element)
            continue
        while (answer := target.try_next(element)) in (Emission.FULL, Emission.BUSY):
            pass
        refused += answer is not Emission.OK
    return refused


@scenario
def serializer(chance: Chance, place: Place) -> None:
    """Several threads signal, to the end, or until two threads end it in the middle."""
    ledger, upstream = Ledger(), Upstream()
    askings = [Asking(Reader()) for _ in range(chance.randint(1, 3))]
    signals: Any
    if len(askings) == 1:
        delays = chance.one_in(2)
        signals = SignalSerializer(
            askings[0], capacity=chance.size(200), on_full="wait", delay_error=delays
        )
        signals.on_subscribe(upstream)
    else:
        signals = rsf.SerializedProcessor(capacity=chance.size(2000), on_full="wait")
        signals.on_subscribe(upstream)
        for asking in askings:
            signals.subscribe(asking)
    for asking in askings:
        asking.request(UNBOUNDED)
    sending = [
        place.thread(_send, signals, ledger, name, chance.size(800), chance.fork())
        for name in "abcd"[: chance.randint(1, 4)]
    ]
    if len(askings) == 1 and chance.one_in(2):
        how = chance.choice(("cancel", "on_error", "on_complete"))
        arguments = (Stopped(),) if how == "on_error" else ()
        for _ in range(2):
            place.thread(getattr(signals, how), *arguments)
        place.join()
        askings[0].reader.check()
        assert askings[0].ended is (how != "cancel")
        assert upstream.cancelled.is_set() or how != "cancel"
        return
    assert [thread.result() for thread in sending] == [0] * len(sending)
    signals.on_complete()
    for asking in askings:
        assert asking.ended
        assert asking.error is None, asking.error
        asking.reader.check(ledger)


# -- streams: what they make of elements, the random pipelines judge -------------------------------
async def _later(element: Any) -> Any:
    if element.number % 7 == 0:
        await asyncio.sleep(0)
    return element


#: Each operator of the table that keeps all elements and their order, and lets go of its source
#: with its subscriber.
SAME = [
    use.same
    for name, use in uses(lambda use: not use.slow and use.not_claimed != NO_ORDER).items()
    if not (USES[name][0].shared or USES[name][0] is OnOverflow or name == "MapInC")
]


def _source(ledger: Ledger, n: int, chance: Chance, place: Place) -> Any:
    if chance.one_in(4):
        return rsf.from_async_iterable(lambda: ledger.async_source("a", n), loop=place.loop())
    return rsf.from_iterable(ledger.source("a", n))


def _boundary(stream: Any, chance: Chance, place: Place) -> Any:
    """One that changes threads, or any that keeps all elements."""
    way = chance.randrange(8)
    if way == 0:
        return stream.publish_on(place.executor(), prefetch=chance.size(1500))
    if way == 1:
        # A private loop is started for each subscription, the place's is shared.
        loop = place.loop() if chance.one_in(2) else None
        return stream.map_async(_later, concurrency=chance.size(64), loop=loop)
    if way == 2:
        return stream.share(buffer_size=chance.size(300))
    return chance.choice(SAME)(stream)


@scenario
def chains(chance: Chance, place: Place) -> None:
    """All elements in their order, or a beginning of them; the sources are closed."""
    ledger, reader = Ledger(), Reader()
    stream = _source(ledger, chance.size(3000), chance, place)
    for _ in range(chance.randrange(5)):
        stream = _boundary(stream, chance, place)
    if consume(stream, reader, chance, place, stops=chance.one_in(2)):
        reader.check(ledger)
    reader.check()
    ledger.await_closed()
