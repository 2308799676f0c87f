"""The buffer of a multicast: a bounded sequence of elements, and a cursor for each subscriber.

Elements are numbered in the order of arrival. A *cursor* is the number of the element that its
subscriber gets next. An element is dropped when all cursors have passed it, unless it is retained
for late subscribers. A subscriber takes a slice (list) of elements at a time. The cursor moves
while the elements of the slice are delivered.

The subscriber with the largest demand decides how many elements are requested from upstream, but
never more than the buffer has room for. The *lag* of a subscriber is the number of elements in the
buffer that it has not received, without the elements that are retained for late subscribers. With
``gates=True`` the room is ``size`` minus the lag of the slowest subscriber. So a slow subscriber
slows upstream down. With ``gates=False`` the room is ``size`` minus the lag of the fastest
subscriber. Then a subscriber with a lag larger than ``size`` is dropped.

All methods are called under one lock, but any thread may move or read a cursor without the lock. No
method calls user code. A finalizer may be user code, so no method drops the last reference to an
object: it passes the object to ``release``, which drops the reference when the lock is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from rstreams_fast.core import DemandCounter
from rstreams_fast.streams.engine.defaults import replenish_at

__all__ = ["Cursor", "MulticastBuffer", "Retention"]

R = TypeVar("R")

NO_ELEMENT: Final = -1
"""The value of ``request_at`` if no request is planned. ``request_at`` is the number of an element:
when a cursor reaches it, the next request is due. No element has the number ``NO_ELEMENT``."""

_NOTHING: Final[Iterator[Any]] = iter(())


class Retention(Protocol):
    """Interface: computes how many of the newest elements (``kept``) late subscribers can get."""

    kept: int

    def weigh(self, elements: list[Any], weights: list[int]) -> None:
        """Append the weight of each element to ``weights``.

        The weigher is user code, so the caller of this method must hold no lock.
        """
        ...

    def now(self) -> float:
        """Return the timer's time. The timer may be user code, so the caller must hold no lock."""
        ...

    def keep(self, weights: list[int], now: float) -> None:
        """Add the new elements to ``kept``, the number of elements kept for late subscribers.

        Then lower ``kept`` until the bounds on the number, bytes and age of these elements are met.
        ``weights``: the weight of each new element. ``now``: the time of their arrival.
        """
        ...

    def evict(self, now: float) -> None:
        """Lower ``kept``, the number of elements to keep, until the bounds are met.

        The bounds are on the number, the bytes and (at the time ``now``) the age of these elements.
        """
        ...

    @property
    def held_bytes(self) -> int | None:
        """The bytes of the kept elements; ``None`` if elements are not weighed."""
        ...

    @property
    def max_kept(self) -> int:
        """The bound on ``kept``; ``UNBOUNDED`` if there is no bound on the number of elements."""
        ...


class Cursor:
    """The position of one subscriber in the numbered elements.

    ``demand`` is the sum of all requests of the subscriber: a delivery does not lower the sum. So
    any thread can compute ``limit`` (the number of the first element that was not requested) at any
    time.
    """

    __slots__ = ("by_bursts", "demand", "in_hand", "left", "start", "stop", "taken_at")

    def __init__(self, demand: DemandCounter, *, by_bursts: bool) -> None:
        self.demand = demand
        self.start = 0
        # ``in_hand``: the list of elements that the subscriber is getting now. ``taken_at``: the
        # number of its first element. ``stop``: the number of the first element after the list.
        # ``left``: an iterator over the list; each step of the iterator moves the cursor.
        self.taken_at = 0
        self.stop = 0
        self.in_hand: list[Any] = []
        self.left: Iterator[Any] = _NOTHING
        # ``by_bursts``: whether the subscriber gets a list of elements in one call. If not, the
        # lists are short: usually the buffer keeps a list until its last element is delivered.
        self.by_bursts = by_bursts

    @property
    def at(self) -> int:
        """The number of the subscriber's next element. Any thread may read this property."""
        return self.stop - length_hint(self.left)

    @property
    def limit(self) -> int:
        """The number of the first element that the subscriber has not requested.

        Negative after the end of the subscription.
        """
        total = self.demand.value
        return self.start + total if total >= 0 else total

    def begin_at(self, start: int) -> None:
        self.start = self.stop = self.taken_at = start

    def pass_all(self) -> None:
        """Move the cursor past all elements that the subscriber has taken from the buffer."""
        self.left = _NOTHING


class MulticastBuffer(Generic[R]):
    """Holds the elements that subscribers still need, and the positions of the subscribers."""

    __slots__ = (
        "_at_floor",
        "_elements",
        "_first",
        "_floor",
        "_gates",
        "_gone",
        "_portion",
        "_release",
        "_replenish_at",
        "_retention",
        "end",
        "ended",
        "error",
        "readers",
        "request_at",
        "requested",
        "size",
        "starving",
        "traceback",
    )

    def __init__(
        self,
        size: int,
        *,
        gates: bool,
        retention: Retention | None,
        release: Callable[[object], None],
    ) -> None:
        self.size = size
        self._gates = gates
        self._retention = retention
        self._release = release
        self._replenish_at = replenish_at(size)
        self._portion = -(-size // 4)
        self._elements: list[Any] = []
        # Elements are numbered in the order of arrival. ``_first``: the number of ``_elements[0]``.
        # ``_gone``: how many elements at the front of ``_elements`` were dropped, and replaced by
        # None. ``end``: the number that the next new element will get.
        self._first = 0
        self._gone = 0
        self.end = 0
        self.readers: dict[Cursor, R] = {}
        # A subscriber's cursor is the number of its next element. ``_floor``: no cursor is smaller.
        # ``_at_floor``: roughly, how many cursors are at ``_floor``. When no cursor is left there,
        # the two fields are computed anew. ``requested``: the number of the first element that was
        # not requested from upstream. ``request_at``: when a cursor reaches this number, the next
        # request may be due: call ``next_request``, which computes it.
        self._floor = 0
        self._at_floor = 0
        self.requested = 0
        self.request_at = NO_ELEMENT
        # ``starving``: a subscriber with demand has received all elements, but a slower subscriber
        # leaves no room for new elements. Then ``next_request`` must be called after each delivered
        # element, because the delivery may have made room.
        self.starving = False
        self.error: BaseException | None = None
        # ``traceback``: the traceback of ``error`` when it arrived. Each subscriber gets the error
        # with this traceback. Otherwise each ``raise`` would make the traceback longer.
        self.traceback: TracebackType | None = None
        self.ended = False  # whether no more elements are added

    @property
    def held(self) -> int:
        return len(self._elements) - self._gone

    # -- adding and dropping elements --------------------------------------------------------------

    def append(self, elements: list[Any], weights: list[int], now: float) -> list[R] | None:
        """Add ``elements``. Return the subscribers that are too slow: the caller must drop them.

        If slow subscribers slow upstream down (``gates=True``), no subscriber is dropped: return an
        empty list, or ``None`` if the elements were not requested and the buffer is full.
        """
        if self.ended:
            return []
        requested = self.end + len(elements) <= self.requested
        self._elements += elements
        self.end += len(elements)
        kept = self.end
        if self._retention is not None:
            self._retention.keep(weights, now)
            kept = self._retain()
        if (requested and self._gates) or kept - self._floor <= self.size:
            return []
        return self._make_room(kept - self.size)

    def _make_room(self, floor: int) -> list[R] | None:
        """Try to drop all elements before the number ``floor``, to make room for new elements.

        Return the subscribers that still need elements before ``floor``: the caller must drop these
        subscribers. But if slow subscribers slow upstream down (``gates=True``), no subscriber is
        dropped: return ``None``, which means that the buffer is full.
        """
        if not self.readers:
            if self._gates:
                return None
            self._drop_before(floor)  # no subscriber needs these elements
            self._floor = floor
            return []
        self.trim()
        if self._floor >= floor:
            return []
        return None if self._gates else [r for c, r in self.readers.items() if c.at < floor]

    def pass_by(self) -> bool:
        """Move all cursors past a new element, which the caller delivers without the buffer.

        Call this method only if all subscribers have received all earlier elements. Return whether
        a request to upstream may be due after the delivery.
        """
        self.end = end = self.end + 1
        for cursor in self.readers:
            cursor.stop = cursor.taken_at = end
        self._floor, self._at_floor = end, len(self.readers)
        if self._elements:
            self._drop_before(end)
        else:
            self._first = end
        return end >= self.requested or NO_ELEMENT < self.request_at <= end

    def take(self, cursor: Cursor) -> list[Any] | None:
        """Return the next requested elements for the subscriber at ``cursor``.

        The subscriber must have received all elements that it took before. The list is empty if no
        requested element has arrived. Return ``None`` at the end of the stream.
        """
        if cursor not in self.readers:
            return []
        taken_at = cursor.taken_at
        if cursor.stop > taken_at:
            cursor.taken_at = cursor.stop
            self._has_moved(taken_at)
        if not self.hand_out(cursor) and self.ended and cursor.stop >= self.end:
            return None
        return cursor.in_hand

    def hand_out(self, cursor: Cursor) -> bool:
        """Set ``cursor.in_hand`` to a list of the next requested elements.

        Call this method only if ``in_hand`` is empty. Return false if no requested element has
        arrived. The caller must call ``trim`` later, to drop elements that no subscriber needs.
        """
        at = cursor.taken_at = cursor.stop
        # After the end of the subscription its demand is negative. Then ``stop`` is less than
        # ``at``, and the subscriber gets no elements.
        stop = cursor.start + cursor.demand.value
        stop = min(stop, self.end)
        if not cursor.by_bursts:
            stop = min(stop, at + self._portion)
            if at < self.request_at < stop and not self.starving:
                stop = self.request_at
        if stop <= at:
            return False
        cursor.in_hand = elements = self._elements[at - self._first : stop - self._first]
        cursor.stop = stop
        cursor.left = iter(elements)
        return True

    def close(self, error: BaseException | None, *, at_once: bool) -> bool:
        """Accept no more elements. Return false if the buffer was closed before.

        ``at_once``: the present subscribers do not get the elements that are still in the buffer.
        """
        if self.ended:
            return False
        self.error = error
        self.traceback = None if error is None else error.__traceback__
        self.ended = True
        if at_once and not self.readers and self._retention is None:
            self.clear()
        return True

    def clear(self) -> None:
        """Drop all elements. From now on, keep no elements for late subscribers."""
        self._retention = None
        self._drop_before(self.end)
        self._floor = self.end

    def _has_moved(self, taken_at: int) -> bool:
        """Record that a cursor has left the element number ``taken_at``, or was removed there.

        If no other cursor is at ``_floor``, the lowest number of all cursors, drop the elements
        that no subscriber needs. Then return true: the buffer may have more room.
        """
        if taken_at > self._floor:
            return False
        self._at_floor -= 1
        if self._at_floor > 0:
            return False
        self.trim()
        return True

    def trim(self) -> bool:
        """Drop the elements that no subscriber needs. Return whether a request may now be due."""
        due = False
        if self.readers:
            places = [cursor.stop - length_hint(cursor.left) for cursor in self.readers]
            self._floor = min(places)
            self._at_floor = places.count(self._floor)
            foremost = max(places)
            due = foremost >= self.requested or NO_ELEMENT < self.request_at <= foremost
        if self._retention is None:
            self._drop_before(self._floor)
        else:
            self._retain()
        return due

    def _retain(self) -> int:
        """Drop the elements that neither present nor late subscribers will get.

        Return the number of the first element that is kept for late subscribers.
        """
        kept = self.end - (self._retention.kept if self._retention is not None else 0)
        if not self.readers:
            self._floor = kept
        self._drop_before(min(self._floor, kept))
        return kept

    def _drop_before(self, floor: int) -> None:
        elements, gone, n = self._elements, self._gone, floor - self._first
        if n <= gone:
            return
        self._release(elements[gone:n])
        # ``del`` moves all items behind the deleted items, which takes time. So use ``del`` only if
        # at least half of the items are dropped. Otherwise replace the dropped items by None.
        if 2 * n >= len(elements):
            del elements[:n]
            self._first = floor
            self._gone = 0
        else:
            elements[gone:n] = [None] * (n - gone)
            self._gone = n

    # -- adding and removing subscribers -----------------------------------------------------------

    def join(self, cursor: Cursor, reader: R, now: float) -> None:
        """Add the subscription ``reader``, which starts at the oldest available element."""
        start = self._oldest(now)
        cursor.begin_at(start)
        if not self.readers or start < self._floor:
            self._floor, self._at_floor = start, 1
        elif start == self._floor:
            self._at_floor += 1
        self.readers[cursor] = reader

    def _oldest(self, now: float) -> int:
        if self._retention is not None:
            self._retention.evict(now)
            return self._retain()
        oldest = self.end if self.readers else self._floor
        for cursor in self.readers:
            oldest = min(oldest, cursor.at)
            if oldest <= self._floor:  # no cursor is lower than ``_floor``
                break
        # Ignore a cursor that lags by more than ``size``: its subscriber will soon be dropped.
        return max(oldest, self.end - self.size)

    def leave(self, cursor: Cursor, *, leaves_rest: bool) -> bool | None:
        """Remove the subscriber at ``cursor``. Return whether the buffer may have more room now.

        Return ``None`` if the subscriber was removed before. ``leaves_rest``: if this subscriber
        was the last, its remaining elements stay in the buffer for the next subscriber.
        """
        if self.readers.pop(cursor, None) is None:
            return None
        if self.readers:
            return self._has_moved(cursor.taken_at)
        if self._retention is None:
            self._floor = max(cursor.at, self.end - self.size) if leaves_rest else self.end
        self.trim()
        return True

    # -- how many elements to request --------------------------------------------------------------

    def next_request(self) -> int:
        """Return how many elements to request from upstream now. Count them as requested."""
        self.trim()
        requested = max(self.requested, self.end)  # elements may arrive without a request
        wanted = requested
        # ``front``: the number of the next element for the subscriber that is furthest ahead. Only
        # subscribers count that want more elements than were requested from upstream.
        front = 0
        # ``pace``: the cursor that decides how much room there is. If ``_gates`` is true, slow
        # subscribers slow upstream down: ``pace`` is the slowest subscriber's cursor. Otherwise
        # ``pace`` is the fastest subscriber's cursor.
        pace: Cursor | None = None
        for cursor in self.readers:
            limit, at = cursor.limit, cursor.at
            if limit < 0:
                continue
            if pace is None or (at < pace.at) == self._gates:
                pace = cursor
            if limit > requested:
                wanted = max(wanted, limit)
                front = max(front, at)
        self.requested = requested
        self.request_at = NO_ELEMENT
        self.starving = False
        if pace is None or wanted == requested or self.ended:
            return 0
        kept = self.end if self._retention is None else self.end - self._retention.kept
        at = pace.at
        room = self.end + self.size - max(0, kept - at) - requested
        n = max(0, min(wanted - requested, room))
        if n < self._replenish_at and n < wanted - requested and front < requested:
            n = 0  # make one larger request later: the fastest subscriber still has elements to get
        self.requested = requested = requested + n
        if wanted > requested:
            self.starving = front >= requested
            self.request_at = at + (1 if self.starving else self._replenish_at) - (room - n)
            if pace.at >= self.request_at:  # another thread has moved this cursor there meanwhile
                n += self.next_request()  # so the next request is due now
        return n
