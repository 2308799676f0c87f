"""Who sent what, and whether all of it came, once, in its order."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.helpers import DEADLINE


class Element:
    """One element: the producer's name, and its number there."""

    __slots__ = ("__weakref__", "number", "producer")

    def __init__(self, producer: str, number: int) -> None:
        self.producer = producer
        self.number = number

    def __repr__(self) -> str:
        return f"{self.producer}{self.number}"


class Ledger:
    """What the producers have sent, and whether their sources were closed."""

    def __init__(self, patience: float = DEADLINE) -> None:
        self._patience = patience
        self._sent: dict[str, int] = {}
        self._open = 0
        self._changed = threading.Condition()

    def new(self, producer: str) -> Element:
        """The next element of a producer; one thread at a time for each."""
        number = self._sent.get(producer, 0)
        self._sent[producer] = number + 1
        return Element(producer, number)

    def sent(self) -> int:
        return sum(self._sent.values())

    def source(self, producer: str, n: int) -> Iterator[Element]:
        """``n`` elements; one that stops early must close it."""
        self._count(1)
        try:
            for _ in range(n):
                yield self.new(producer)
        finally:
            self._count(-1)

    async def async_source(self, producer: str, n: int) -> AsyncIterator[Element]:
        """The same for loops."""
        from asyncio import sleep

        self._count(1)
        try:
            for k in range(n):
                if k % 64 == 63:
                    await sleep(0)
                yield self.new(producer)
        finally:
            self._count(-1)

    def _count(self, n: int) -> None:
        with self._changed:
            self._open += n
            self._changed.notify_all()

    def await_closed(self) -> None:
        """Every source that was opened has been closed, or is in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._open == 0, self._patience):
                raise AssertionError(f"{self._open} sources were not closed")


class Reader:
    """What one consumer has seen."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._wrong: list[str] = []
        self.count = 0

    def see(self, element: Any) -> None:
        """Take the next element. Never raises: what is wrong is kept for :meth:`check`."""
        if type(element) is not Element:
            self.note(f"{element!r} is no element")
            return
        expected = self._next.get(element.producer, 0)
        if element.number != expected:
            what = "came again, or late" if element.number < expected else "came too early"
            self.note(f"{element!r} {what}: expected was number {expected}")
        self._next[element.producer] = element.number + 1
        self.count += 1

    def note(self, wrong: str) -> None:
        if len(self._wrong) < 5:
            self._wrong.append(wrong)

    def check(self, ledger: Ledger | None = None) -> None:
        """Raise what was wrong; with a ledger, all that was sent has to have come."""
        if self._wrong:
            raise AssertionError("; ".join(self._wrong))
        if ledger is not None and self.count != ledger.sent():
            raise AssertionError(f"{ledger.sent()} were sent, {self.count} came")
