"""``group_by``: a stream for each key. All groups that are open share the places for elements."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from rstreams_fast._checks import check_capacity, check_seconds, describe_callable, safe_repr
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import BufferOverflowError
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.subscribing import Below
from rstreams_fast.streams.operators.parts import Divider, Part, ToStream

__all__ = ["GroupBy", "SharedPlaces"]

NAMED: Final = 3
"""The most keys that an error names."""


class GroupBy(Boundary):
    """The boundary of ``Stream.group_by``, its arguments checked."""

    def __init__(  # noqa: PLR0917 - those of the public method, in its order
        self,
        key: Callable[[Any], Hashable],
        max_groups: int,
        prefetch: int,
        unread: float,
        timer: Timer | None,
        to_group: ToStream,
    ) -> None:
        self.key = key
        self.max_groups = check_capacity("max_groups", max_groups)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.unread = check_seconds("group_by(unread): unread", unread, positive=True)
        check_timer(timer)
        self.timer = timer
        self.to_group = to_group

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _GroupBySubscription, self)

    def describe(self) -> str:
        return (
            f"group_by({describe_callable(self.key)}): at most {self.max_groups} groups open, "
            f"{self.prefetch} elements in all"
        )


class SharedPlaces(Divider):
    """Asks ahead for ``prefetch`` elements, and for as many again as its parts have given.

    When parts that nobody has subscribed to hold them all, nothing moves until somebody does: that
    ends with an error when it lasts ``unread`` seconds. So does the same of parts whose subscribers
    do not ask, while the subscriber of another part waits.
    """

    __slots__ = (
        "_checked",
        "_deadline",
        "_prefetch",
        "_replenish_at",
        "_stuck_since",
        "_taken",
        "_taking",
        "_unread",
    )

    def __init__(self, subscriber: Subscriber[Any], options: Any) -> None:
        super().__init__(subscriber, options.describe())
        self._prefetch = options.prefetch
        self._replenish_at = replenish_at(options.prefetch)
        self._unread = options.unread
        # When it was full, and how many elements had left: as long as it is stuck, none does.
        self._stuck_since: tuple[float, int] | None = None
        self._checked: tuple[float, int] | None = None
        self._taken = DemandCounter()  # elements that have left their parts
        self._taking = False
        self._deadline = Deadline(options.timer, self._due, self._check, self._fail)

    def on_burst(self) -> None:
        """Take elements, and see whether parts that nobody reads hold all that may be held."""
        self._taking = True
        super().on_burst()
        self._taking = False
        if self._came == self._asked:
            self.ask()
            if self._full():
                self._stuck_since = self._deadline.now(), self._taken.value
                self._deadline.look()

    def took(self, n: int) -> None:
        """Note that so many elements have left their part."""
        if n:
            self._taken.request(n)

    def ask_again(self) -> None:
        """Ask for as many as have left, if they make room. Not within a drain."""
        self.ask()

    def _room(self) -> int:
        if self._demand.value == 0 and not self._asked:
            return 0  # nobody is asked before the subscriber has asked
        room = self._prefetch - (self._asked - self._taken.value)
        dry = self._asked == self._came and not self._taking
        return room if dry or room >= self._replenish_at else 0

    def _most(self) -> int:
        return int(self._prefetch)

    # -- parts that nobody reads -----------------------------------------------------------------

    def _full(self) -> bool:
        return not self._completed and self._came - self._taken.value >= self._prefetch

    def _stuck(self) -> list[Part]:
        """Return the parts that hold all places, if nobody takes elements out of any of them."""
        if not self._full():
            return []
        parts = self._holding()
        holding = [part for part in parts if part.elements]
        waiting = {id(part.reader.waiting) for part in parts if part.reader is not None}
        waiting.discard(id(None))
        readers = [part.reader for part in holding if part.reader is not None]
        if not all(reader.sleeps(waiting) for reader in readers):
            return []
        # Readers that ask for nothing are slow, and no more, where they hold up nobody.
        return holding if waiting or len(readers) < len(holding) else []

    def _due(self) -> float | None:
        since = self._stuck_since
        return None if since is None or since is self._checked else since[0] + self._unread

    def _check(self) -> None:
        since = self._stuck_since
        if since is None or since[0] + self._unread > self._deadline.now():
            return
        self._checked = since
        holding = self._stuck()
        if holding and self._taken.value == since[1]:
            self._fail(BufferOverflowError(f"{self._name}: they are {self._why_stuck(holding)}"))

    def _why_stuck(self, holding: list[Part]) -> str:
        asleep = [part for part in holding if part.reader is not None]
        if not asleep:
            return (
                f"all held for streams that nobody has subscribed to for {self._unread:g} s; "
                "subscribe to each, at once, if only to cancel it: below flat_map(concurrency=), "
                "to as many at once as may be open"
            )
        keys = ", ".join(safe_repr(part.key) for part in asleep[:NAMED])
        more = "" if len(asleep) <= NAMED else f" and {len(asleep) - NAMED} more"
        return (
            f"held for subscribers that have asked for nothing for {self._unread:g} s, while "
            f"others wait: those of the key {keys}{more}; ask for more, cancel, or give a greater "
            "prefetch=, or a greater unread= if the subscribers are slow"
        )

    def look_for_readers(self) -> None:
        """The clock runs as long as any part does."""
        super().look_for_readers()
        if self._upstream.over:
            self._deadline.close()


class _GroupBySubscription(SharedPlaces):
    __slots__ = ("_options",)

    def __init__(self, subscriber: Subscriber[Any], options: GroupBy) -> None:
        super().__init__(subscriber, options)
        self._options = options

    def _take(self, burst: list[Any]) -> None:
        key_of, latch = self._options.key, self._upstream.latch
        find, touched = self._open.get, self._touched
        came = 0
        try:
            for element in burst:
                if latch.value < 0:
                    return
                came += 1
                key = key_of(element)
                try:
                    part = find(key)
                except TypeError as raised:
                    giver = describe_callable(key_of)
                    raised.add_note(f"group_by() looks up what {giver} gives: it must be hashable")
                    raise
                part = part or self._opened(key)
                if part is None:
                    self.took(1)
                else:
                    part.elements.append(element)
                    touched[part] = None
        finally:
            self._came += came  # not before they are where they belong: see _stuck
            element = part = key = None  # a traceback keeps this frame (§3.13)

    def _opened(self, key: Hashable) -> Part | None:
        """Open a group, unless nobody wants another."""
        options = self._options
        if self._demand.value < 0:
            return None
        if len(self._open) >= options.max_groups:
            raise BufferOverflowError(
                f"{self._name}: an element has a key that no open group is for; "
                "give a greater max_groups=, or cancel groups that are done, as take(n) does"
            )
        part, group = self._new_part(key, options.to_group)
        self._made.append(group)
        return part
