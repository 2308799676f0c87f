"""A bounded sequence of elements, and a cursor for each of those that read it.

Elements are numbered as they come. A cursor is the number of the element that its reader gets next,
and an element goes when the last cursor has passed it, unless it is retained for readers who come
late. A reader takes a slice at a time, and its cursor moves as it works on it.

How much is asked of upstream: what the greediest reader wants, as far as the buffer has room. A
reader *lags* by the elements that are kept for it alone, and the room is what ``size`` leaves
beyond the lag of the slowest, which *gates* so. Where nobody gates, the fastest sets the pace, and
a reader that lags by more than ``size`` is to be dropped.

All methods are called under one lock, but cursors are moved and read by any thread. Nothing here
calls user code: what may have a finalizer goes to ``release``, which drops it without the lock.
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
"""A place where no cursor arrives."""

_NOTHING: Final[Iterator[Any]] = iter(())


class Retention(Protocol):
    """How many of the newest elements are kept for readers who come late."""

    kept: int

    def weigh(self, elements: list[Any], weights: list[int]) -> None:
        """Append to ``weights`` what each element weighs; without the lock: it is user code."""
        ...

    def now(self) -> float:
        """Return the time; without the lock, too."""
        ...

    def keep(self, weights: list[int], now: float) -> None:
        """Take so many more elements into account, which came at the time ``now``."""
        ...

    def evict(self, now: float) -> None:
        """Count out what is beyond the bounds at the time ``now``."""
        ...

    @property
    def held_bytes(self) -> int | None:
        """The weight of what is kept."""
        ...

    @property
    def max_kept(self) -> int:
        """The bound on ``kept``; ``UNBOUNDED`` if it is a matter of weight or time."""
        ...


class Cursor:
    """Where one reader is. Its demand is never fulfilled: it is the sum of all requests, so that
    how far the reader may go is known exactly at any moment.
    """

    __slots__ = ("by_bursts", "demand", "in_hand", "left", "start", "stop", "taken_at")

    def __init__(self, demand: DemandCounter, *, by_bursts: bool) -> None:
        self.demand = demand
        self.start = 0
        self.taken_at = 0  # where the slice begins that it works on
        self.stop = 0  # where that ends
        self.in_hand: list[Any] = []  # the slice itself
        self.left: Iterator[Any] = _NOTHING  # runs over it, and so moves the cursor
        self.by_bursts = by_bursts  # else a slice is short, as it is held until its last was had

    @property
    def at(self) -> int:
        """The number of the element that comes next. Any thread."""
        return self.stop - length_hint(self.left)

    @property
    def limit(self) -> int:
        """How far the reader has asked; negative when it is over."""
        total = self.demand.value
        return self.start + total if total >= 0 else total

    def begin_at(self, start: int) -> None:
        """Start with the element of that number."""
        self.start = self.stop = self.taken_at = start

    def pass_all(self) -> None:
        """Count all that is in hand as had."""
        self.left = _NOTHING


class MulticastBuffer(Generic[R]):
    """The elements that are needed, and the readers with their cursors."""

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
        self._first = 0  # the number of the first place in the list
        self._gone = 0  # so many places at the front are empty
        self.end = 0  # the number that the next element gets
        self.readers: dict[Cursor, R] = {}
        self._floor = 0  # no cursor is before it
        self._at_floor = 0  # at most so many have not moved since they were found there
        self.asked = 0  # upstream was asked for the elements before this one; only grows
        self.ask_at = NOWHERE  # a cursor that arrives there makes asking worth another look
        self.starving = False  # so does each step of any, as the foremost has had all that came
        self.error: BaseException | None = None  # set before ``ended``
        self.traceback: TracebackType | None = None  # as it came: who raises the error adds to it
        self.ended = False  # nothing is added any more

    @property
    def held(self) -> int:
        """How many elements there are."""
        return len(self._elements) - self._gone

    # -- elements --------------------------------------------------------------------------------

    def append(self, elements: list[Any], weights: list[int], now: float) -> list[R] | None:
        """Add ``elements``. Return the readers that lag too much; ``None`` if there is no room."""
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
        """See to it that no cursor is before ``floor``."""
        if not self.readers:
            if self._gates:
                return None
            self._drop_before(floor)  # nobody is there to miss them
            self._floor = floor
            return []
        self.trim()
        if self._floor >= floor:
            return []
        return None if self._gates else [r for c, r in self.readers.items() if c.at < floor]

    def pass_by(self) -> bool:
        """Count an element that all readers, who have had all before it, are handed elsewhere;
        whether asking is worth another look.
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
        """Return what the reader gets next, when it has nothing in hand; ``None`` at the end."""
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
        """Whether there is something to have in hand: as far as the reader has asked. It has
        nothing, and it is to be trimmed afterwards.
        """
        at = cursor.taken_at = cursor.stop
        stop = cursor.start + cursor.demand.value  # before ``at`` when it is over
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
        """Add nothing any more; false if that was so before. ``at_once``: before what is left."""
        if self.ended:
            return False
        self.error = error
        self.traceback = None if error is None else error.__traceback__
        self.ended = True
        if at_once and not self.readers and self._retention is None:
            self.clear()
        return True

    def clear(self) -> None:
        """Keep nothing for readers who come late, from now on."""
        self._retention = None
        self._drop_before(self.end)
        self._floor = self.end

    def _has_moved(self, taken_at: int) -> bool:
        """Note that a reader is not at ``taken_at`` any more; whether it was the last there."""
        if taken_at > self._floor:
            return False
        self._at_floor -= 1
        if self._at_floor > 0:
            return False
        self.trim()
        return True

    def trim(self) -> bool:
        """Drop what is needed no more; whether a reader is where asking is worth another look."""
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
        """Drop what is neither retained nor ahead of a cursor; return where the former begins."""
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
        if 2 * n >= len(elements):  # no more is moved than has gone
            del elements[:n]
            self._first = floor
            self._gone = 0
        else:
            elements[gone:n] = [None] * (n - gone)
            self._gone = n

    # -- readers ---------------------------------------------------------------------------------

    def join(self, cursor: Cursor, reader: R, now: float) -> None:
        """Have ``reader`` begin with the oldest element still available."""
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
            if oldest <= self._floor:  # no need to look at thousands
                break
        return max(oldest, self.end - self.size)  # what is before that is for those to be dropped

    def leave(self, cursor: Cursor, *, leaves_rest: bool) -> bool | None:
        """Forget a reader; ``None`` if it was forgotten before. Whether it was the slowest.

        ``leaves_rest``: the last reader leaves what it has not had to the next one.
        """
        if self.readers.pop(cursor, None) is None:
            return None
        if self.readers:
            return self._has_moved(cursor.taken_at)
        if self._retention is None:
            self._floor = max(cursor.at, self.end - self.size) if leaves_rest else self.end
        self.trim()
        return True

    # -- demand ----------------------------------------------------------------------------------

    def to_be_asked(self) -> int:
        """How many elements upstream is to be asked for now; they count as asked from here on."""
        self.trim()
        asked = max(self.asked, self.end)  # some may have come without having been asked for
        wanted = asked
        front = 0  # where the foremost is of those who want more
        pace: Cursor | None = None  # that of the reader that sets the pace
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
            n = 0  # not in driblets, while the foremost has something to do
        self.asked = asked = asked + n
        if wanted > asked:
            self.starving = front >= asked
            self.ask_at = at + (1 if self.starving else self._replenish_at) - (room - n)
            if pace.at >= self.ask_at:  # it has passed the place before it could see it
                n += self.to_be_asked()
        return n
