"""The buffer of a multicast: a bounded sequence of elements, and a cursor for each subscriber.

Elements are numbered as they come. A *cursor* is the number of the element that its subscriber gets
next. An element is dropped when all cursors have passed it, unless it is retained for late
subscribers. A subscriber takes a slice (list) of elements at a time. Its cursor moves while the
slice is delivered.

The largest demand of a subscriber is requested from upstream, as far as the buffer has room. The
*lag* of a subscriber is the number of elements that wait for it; retained elements are not counted.
The room is ``size`` minus the lag of the slowest subscriber. So a slow subscriber slows upstream
down (it *gates*). If subscribers do not gate, the room is ``size`` minus the lag of the fastest
subscriber. Then a subscriber whose lag is larger than ``size`` is dropped.

All methods are called under one lock, but any thread may move or read a cursor without the lock. No
method calls user code: objects that may have a finalizer go to ``release``, which drops them after
the lock is free.
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

NOWHERE: Final = -1
"""An element number that no cursor (position of a subscriber) reaches."""

_NOTHING: Final[Iterator[Any]] = iter(())


class Retention(Protocol):
    """Decides how many of the newest elements are kept for late subscribers."""

    kept: int

    def weigh(self, elements: list[Any], weights: list[int]) -> None:
        """Append the weight of each element to ``weights``.

        The weigher is user code, so the caller holds no lock.
        """
        ...

    def now(self) -> float:
        """Return the time. The timer may be user code, so the caller holds no lock."""
        ...

    def keep(self, weights: list[int], now: float) -> None:
        """Count in ``kept`` new elements with these ``weights``, which came at time ``now``."""
        ...

    def evict(self, now: float) -> None:
        """Subtract from ``kept`` the elements that are beyond the bounds at the time ``now``."""
        ...

    @property
    def held_bytes(self) -> int | None:
        """The bytes of the elements kept; ``None`` if elements are not weighed."""
        ...

    @property
    def max_kept(self) -> int:
        """The bound on ``kept``; ``UNBOUNDED`` if only weight or time is bounded."""
        ...


class Cursor:
    """The position of one subscriber in the numbered elements.

    ``demand`` is the sum of all requests, and a delivery does not lower it. So any thread can
    compute ``limit`` from it at any time.
    """

    __slots__ = ("by_bursts", "demand", "in_hand", "left", "start", "stop", "taken_at")

    def __init__(self, demand: DemandCounter, *, by_bursts: bool) -> None:
        self.demand = demand
        self.start = 0
        # The slice of elements that is delivered at present. ``taken_at``: the number of its first
        # element. ``stop``: the number of the first element after the slice. ``in_hand``: the
        # elements. ``left``: an iterator over them; each step of the iterator moves the cursor.
        self.taken_at = 0
        self.stop = 0
        self.in_hand: list[Any] = []
        self.left: Iterator[Any] = _NOTHING
        # Whether the subscriber takes a slice in one call. Otherwise slices are short, because the
        # buffer keeps all elements of a slice until the last one is delivered.
        self.by_bursts = by_bursts

    @property
    def at(self) -> int:
        """The number of the element that the subscriber gets next. Any thread may read this."""
        return self.stop - length_hint(self.left)

    @property
    def limit(self) -> int:
        """The number of the first element that was not requested; negative after the end."""
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
        "ask_at",
        "asked",
        "end",
        "ended",
        "error",
        "readers",
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
        # ``_first``: the number of the element at index 0. ``_gone``: how many items at the front
        # were dropped, and are None. ``end``: the number of the next element that comes.
        self._first = 0
        self._gone = 0
        self.end = 0
        self.readers: dict[Cursor, R] = {}
        # No cursor is before the number ``_floor``, and at most ``_at_floor`` cursors are at this
        # number. All elements before the number ``asked`` were requested of upstream. When a cursor
        # reaches the number ``ask_at``, to_be_asked must be called again.
        self._floor = 0
        self._at_floor = 0
        self.asked = 0
        self.ask_at = NOWHERE
        # True if a subscriber with demand has received all elements in the buffer, and the buffer
        # has no room for new elements. Then to_be_asked must be called after each delivered
        # element.
        self.starving = False
        self.error: BaseException | None = None
        # The traceback that the error had when it came. Each ``raise`` of the error adds to the
        # traceback in the error object.
        self.traceback: TracebackType | None = None
        self.ended = False  # whether no more elements are added

    @property
    def held(self) -> int:
        return len(self._elements) - self._gone

    # -- adding and dropping elements --------------------------------------------------------------

    def append(self, elements: list[Any], weights: list[int], now: float) -> list[R] | None:
        """Add ``elements``. Return the subscribers to drop, because they lag too far behind.

        With ``gates`` no subscriber is dropped. Then return ``None`` if the buffer is full.
        """
        if self.ended:
            return []
        requested = self.end + len(elements) <= self.asked
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
        """Return the subscribers whose position is before ``floor``. The caller drops them.

        With ``gates`` no subscriber is dropped. Then return ``None`` if the buffer is full.
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
        """Count an element that is delivered to all subscribers and is not put in the buffer.

        Call this only if all subscribers have received all earlier elements. Return whether to call
        ``to_be_asked``.
        """
        self.end = end = self.end + 1
        for cursor in self.readers:
            cursor.stop = cursor.taken_at = end
        self._floor, self._at_floor = end, len(self.readers)
        if self._elements:
            self._drop_before(end)
        else:
            self._first = end
        return end >= self.asked or NOWHERE < self.ask_at <= end

    def take(self, cursor: Cursor) -> list[Any] | None:
        """Return the next elements for a subscriber that has received all earlier elements.

        Return ``None`` at the end of the stream.
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
        """Put the next requested elements in ``cursor.in_hand``, which must be empty.

        Return whether there are such elements. The caller must call ``trim`` later, to drop old
        elements.
        """
        at = cursor.taken_at = cursor.stop
        # ``stop`` is less than ``at`` if the subscription has ended.
        stop = cursor.start + cursor.demand.value
        stop = min(stop, self.end)
        if not cursor.by_bursts:
            stop = min(stop, at + self._portion)
            if at < self.ask_at < stop and not self.starving:
                stop = self.ask_at
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
        """Drop all elements, and keep none for late subscribers from now on."""
        self._retention = None
        self._drop_before(self.end)
        self._floor = self.end

    def _has_moved(self, taken_at: int) -> bool:
        """Note that a subscriber has moved on from the position ``taken_at``.

        Return true if it was the last subscriber at ``_floor``, the lowest position.
        """
        if taken_at > self._floor:
            return False
        self._at_floor -= 1
        if self._at_floor > 0:
            return False
        self.trim()
        return True

    def trim(self) -> bool:
        """Drop elements that no subscriber needs; return whether to call ``to_be_asked``."""
        due = False
        if self.readers:
            places = [cursor.stop - length_hint(cursor.left) for cursor in self.readers]
            self._floor = min(places)
            self._at_floor = places.count(self._floor)
            foremost = max(places)
            due = foremost >= self.asked or NOWHERE < self.ask_at <= foremost
        if self._retention is None:
            self._drop_before(self._floor)
        else:
            self._retain()
        return due

    def _retain(self) -> int:
        """Drop the elements that no present and no late subscriber will get.

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
        # Delete the dropped items from the list only if ``del`` moves at most as many items as it
        # deletes. Otherwise replace them by None.
        if 2 * n >= len(elements):
            del elements[:n]
            self._first = floor
            self._gone = 0
        else:
            elements[gone:n] = [None] * (n - gone)
            self._gone = n

    # -- adding and removing subscribers -----------------------------------------------------------

    def join(self, cursor: Cursor, reader: R, now: float) -> None:
        """Add the subscription ``reader``, which begins with the oldest element still available."""
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
            if oldest <= self._floor:  # stop early: there may be thousands of subscribers
                break
        return max(oldest, self.end - self.size)  # ignore subscribers that are about to be dropped

    def leave(self, cursor: Cursor, *, leaves_rest: bool) -> bool | None:
        """Remove a subscriber. Return whether it was the slowest; ``None`` if already removed.

        ``leaves_rest``: if this is the last subscriber, its elements wait for the next subscriber.
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

    def to_be_asked(self) -> int:
        """Return how many elements to request of upstream now, and count them as requested."""
        self.trim()
        asked = max(self.asked, self.end)  # elements may have come without a request
        wanted = asked
        # The largest position among the subscribers that want elements not requested yet.
        front = 0
        # The slowest subscriber, if slow subscribers slow upstream down; otherwise the fastest.
        pace: Cursor | None = None
        for cursor in self.readers:
            limit, at = cursor.limit, cursor.at
            if limit < 0:
                continue
            if pace is None or (at < pace.at) == self._gates:
                pace = cursor
            if limit > asked:
                wanted = max(wanted, limit)
                front = max(front, at)
        self.asked = asked
        self.ask_at = NOWHERE
        self.starving = False
        if pace is None or wanted == asked or self.ended:
            return 0
        kept = self.end if self._retention is None else self.end - self._retention.kept
        at = pace.at
        room = self.end + self.size - max(0, kept - at) - asked
        n = max(0, min(wanted - asked, room))
        if n < self._replenish_at and n < wanted - asked and front < asked:
            n = 0  # wait for a larger request, while the fastest subscriber has elements to get
        self.asked = asked = asked + n
        if wanted > asked:
            self.starving = front >= asked
            self.ask_at = at + (1 if self.starving else self._replenish_at) - (room - n)
            if pace.at >= self.ask_at:  # the cursor had passed ask_at before ask_at was set
                n += self.to_be_asked()
        return n
