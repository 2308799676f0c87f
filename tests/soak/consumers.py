"""The ways to consume a stream, one of which is chosen; to its end, or until enough has come."""

from __future__ import annotations

import threading
from typing import Any

from rstreams_fast.api import UNBOUNDED
from tests.helpers import DEADLINE
from tests.soak.ledger import Reader
from tests.soak.place import Chance, Place


def consume(stream: Any, reader: Reader, chance: Chance, place: Place, *, stops: bool) -> bool:
    """Show the elements to ``reader``; raise the stream's error.

    With ``stops`` the consumer leaves after some elements, if they come. True if it saw the end.
    """
    enough = chance.size(1500) if stops else None
    return chance.choice((_for, _async_for, _asking))(stream, reader, chance, place, enough)


def _for(stream: Any, reader: Reader, chance: Chance, place: Place, enough: int | None) -> bool:
    with stream.iterate(prefetch=chance.size(300)) as elements:
        for element in elements:
            reader.see(element)
            if reader.count == enough:
                return False
    return True


def _async_for(
    stream: Any, reader: Reader, chance: Chance, place: Place, enough: int | None
) -> bool:
    prefetch = chance.size(300)

    async def iterate() -> bool:
        async with stream.iterate(prefetch=prefetch) as elements:
            async for element in elements:
                reader.see(element)
                if reader.count == enough:
                    return False
        return True

    return bool(place.on_loop(iterate()))


class Asking:
    """A subscriber that is asked for by threads, and says what breaks the rules."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._delivering = threading.Lock()
        self._changed = threading.Condition()
        self._requested = 0
        self.received = 0
        self.subscription: Any = None
        self.introduced = threading.Event()
        self.ended = False
        self.error: BaseException | None = None

    def on_subscribe(self, subscription: Any) -> None:
        if self.subscription is not None:
            self.reader.note("§1.9: on_subscribe came twice")
        self.subscription = subscription
        self.introduced.set()

    def on_next(self, element: Any) -> None:
        if not self._delivering.acquire(blocking=False):
            self.reader.note("§1.3: on_next overlaps")
            return
        try:
            self.reader.see(element)
            with self._changed:
                self.received += 1
                if self.received > self._requested:
                    self.reader.note("§1.1: more than was requested")
                if self.ended:
                    self.reader.note("§1.7: on_next after the end")
                self._changed.notify_all()
        finally:
            self._delivering.release()

    def on_error(self, error: BaseException) -> None:
        self.error = error
        self._end()

    def on_complete(self) -> None:
        self._end()

    def _end(self) -> None:
        with self._changed:
            if self.ended:
                self.reader.note("§1.7: a second end")
            self.ended = True
            self._changed.notify_all()

    def request(self, n: int) -> None:
        with self._changed:
            self._requested += n
        self.subscription.request(n)

    def ask(self, chance: Chance, enough: int | None) -> None:
        """Ask again and again, until the end, or for enough."""
        if not self.introduced.wait(DEADLINE):
            raise AssertionError("on_subscribe did not come")
        while not self.ended and (enough is None or self.received < enough):
            n = UNBOUNDED if chance.one_in(20) else chance.size(700)
            self.request(n)
            with self._changed:
                if not self._changed.wait_for(
                    lambda: (
                        self.ended
                        or self.received >= self._requested
                        or (enough is not None and self.received >= enough)
                    ),
                    DEADLINE,
                ):
                    raise AssertionError(
                        f"{self._requested} were requested, {self.received} came, and no end"
                    )


def _asking(stream: Any, reader: Reader, chance: Chance, place: Place, enough: int | None) -> bool:
    asking = Asking(reader)
    stream.subscribe(asking)
    threads = [place.thread(asking.ask, chance.fork(), enough) for _ in range(chance.randint(1, 3))]
    for thread in threads:
        thread.result()
    if not asking.ended:  # cancels race with each other, with requests, and with elements
        subscription = asking.subscription
        for call in (subscription.cancel, subscription.cancel, lambda: asking.request(5)):
            place.thread(call)
        place.join()
        return False
    if asking.error is not None:
        raise asking.error
    return True
