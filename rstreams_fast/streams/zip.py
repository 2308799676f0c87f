"""Zipping: the first elements of several publishers together, the second ones, and so on."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar, overload

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core._common import check_capacity
from rstreams_fast.streams.assembly import Foreign
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.junction import Ended, Junction, QueueLink
from rstreams_fast.streams.merge import check_publishers
from rstreams_fast.streams.sources import empty
from rstreams_fast.streams.stream import Stream
from rstreams_fast.streams.tuning import BURST, INNER_PREFETCH

__all__ = ["zip_"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


@overload
def zip_(a: Publisher[A], /, *, prefetch: int = INNER_PREFETCH) -> Stream[tuple[A]]: ...


@overload
def zip_(
    a: Publisher[A], b: Publisher[B], /, *, prefetch: int = INNER_PREFETCH
) -> Stream[tuple[A, B]]: ...


@overload
def zip_(
    a: Publisher[A], b: Publisher[B], c: Publisher[C], /, *, prefetch: int = INNER_PREFETCH
) -> Stream[tuple[A, B, C]]: ...


@overload
def zip_(
    a: Publisher[A],
    b: Publisher[B],
    c: Publisher[C],
    d: Publisher[D],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
) -> Stream[tuple[A, B, C, D]]: ...


@overload
def zip_(
    a: Publisher[A],
    b: Publisher[B],
    c: Publisher[C],
    d: Publisher[D],
    e: Publisher[E],
    /,
    *,
    prefetch: int = INNER_PREFETCH,
) -> Stream[tuple[A, B, C, D, E]]: ...


@overload
def zip_(
    *publishers: Publisher[Any], prefetch: int = INNER_PREFETCH
) -> Stream[tuple[Any, ...]]: ...


def zip_(*publishers: Publisher[Any], prefetch: int = INNER_PREFETCH) -> Stream[Any]:
    """Tuples of the elements that have the same position in each of ``publishers``.

    Completes, and cancels the others, as soon as one has completed and none of its elements waits
    for a partner; of no publishers, at once. The error of one ends the stream at once, overtakes
    what waits, and cancels the others. Each is asked when the subscriber first asks: for at most
    ``prefetch`` elements ahead of what was delivered, and again when three quarters are.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    check_publishers("zip_", publishers)
    prefetch = check_capacity("prefetch", prefetch)
    if not publishers:
        return empty()
    zipped = _Zip(publishers, prefetch)
    return Stream(Foreign(zipped, zipped.describe(), trusted=True, inside=publishers))


class _Zip:
    def __init__(self, publishers: tuple[Publisher[Any], ...], prefetch: int) -> None:
        self._publishers = publishers
        self._prefetch = prefetch

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        check_subscriber(subscriber)
        _ZipSubscription(subscriber, self._publishers, self._prefetch, self.describe()).start()

    def describe(self) -> str:
        """Say in one line how much may be held."""
        count = len(self._publishers)
        return (
            f"zip of {count} publishers: at most {self._prefetch} elements of each, "
            f"{count * self._prefetch} in all"
        )


class _ZipSubscription(Junction):
    __slots__ = ("_consumed", "_lacking", "_order", "_publishers")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        publishers: tuple[Publisher[Any], ...],
        prefetch: int,
        name: str,
    ) -> None:
        super().__init__(subscriber, prefetch, name, len(publishers) * prefetch)
        self._order = tuple(QueueLink(self) for _ in publishers)
        self._publishers = deque(zip(self._order, publishers, strict=True))
        self._lacking = len(publishers)  # links without an element
        self._consumed = 0  # elements of each link delivered for which others were not asked yet

    def _upward(self) -> bool:
        publishers = self._publishers  # replaced, not emptied, by who lets go
        if publishers:  # all are subscribed to before any is asked
            link, publisher = publishers.popleft()
            if self._add(link):
                link.subscribe(publisher)
            return True
        return super()._upward()

    def _link_next(self, link: QueueLink, element: Any, /) -> None:
        if self._wip.request(1) != 0:
            super()._link_next(link, element)
            return
        if self._mail or link.done or self._demand.value < 0:
            self._mail.append((link, element))
        else:
            if not link.queue:
                self._lacking -= 1
            link.put(element)
            if self._lacking and self._wip.fulfil(1) == 0:  # it has to wait for a partner
                return
        self._drain()

    # -- the drain -------------------------------------------------------------------------------

    def _step(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._settle()
        if self._mail and self._sort():
            return self._complete()
        if demand == 0 or self._lacking:
            return False
        order = self._order
        for _ in range(min(demand, BURST)):
            self._deliver(tuple(link.queue.popleft() for link in order if link.queue))
            self._consumed += 1
            over = False
            for link in order:
                if not link.queue:
                    self._lacking += 1
                    over = over or link.done
            if over:
                return self._complete()
            if self._consumed >= self._replenish_at:
                consumed, self._consumed = self._consumed, 0
                self._asks.extend((link, consumed) for link in order)
            if self._lacking or self._demand.value < 0:
                break
        return True

    def _sort(self) -> bool:
        """Put what was mailed where it belongs; true if a link can give no more, and gave all."""
        mail = self._mail
        over = False
        while mail:
            link, what = mail.popleft()
            if link.done:
                continue
            if type(what) is Ended:
                link.done = True
                over = over or not link.queue
            else:
                if not link.queue:
                    self._lacking -= 1
                link.put(what)
        return over

    def _let_go(self) -> None:
        super()._let_go()
        self._order = ()
        self._publishers = deque()
