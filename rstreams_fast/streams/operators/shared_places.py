"""The bound on the elements that all substreams of a stream hold together."""

from __future__ import annotations

from functools import partial
from typing import Final

from rstreams_fast._checks import safe_repr
from rstreams_fast.errors import BufferOverflowError
from rstreams_fast.runtime.timers import Timer
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.operators.divider import Divider
from rstreams_fast.streams.operators.substreams import Substream

__all__ = ["SharedPlaces"]

NAMED: Final = 3
"""The most keys that an error message names."""


class SharedPlaces:
    """Bounds the number of elements that all substreams hold together: at most ``prefetch``.

    The first request is for ``prefetch`` elements. Later requests are for as many elements as have
    left the substreams. A stream that is *stuck* for ``patience`` seconds ends with an error. The
    stream is stuck when three conditions hold:

    * The substreams hold ``prefetch`` elements together.
    * No subscriber of a substream with elements requests an element.
    * A substream with elements has no subscriber, or the subscriber of an empty substream waits.
    """

    __slots__ = ("_checked", "_clock", "_patience", "_prefetch", "_replenish_at", "_stuck_since")

    shared = True

    def __init__(
        self, divider: Divider, prefetch: int, patience: float, timer: Timer | None
    ) -> None:
        self._prefetch = prefetch
        self._replenish_at = replenish_at(prefetch)
        self._patience = patience
        # The time at which the bound was reached, and how many elements had left the substreams
        # then. While the stream is stuck, no more elements leave.
        self._stuck_since: tuple[float, int] | None = None
        self._checked: tuple[float, int] | None = None
        self._clock = divider.add_clock(timer, self._due, partial(self._check, divider))

    def room(self, divider: Divider, /) -> int:
        """Return how many elements to request now.

        The result is 0 while requested elements are still to come, and there is not yet room for
        three quarters of ``prefetch``: one large request costs less than many small ones.
        """
        asked = divider.asked
        if not asked and not divider.requested.value:
            return 0  # make no request before the subscriber's first request
        room = self._prefetch - (asked - divider.taken.value)
        dry = asked == divider.came and not divider.signals
        return room if dry or room >= self._replenish_at else 0

    def watch(self, divider: Divider, /) -> None:
        """Start the clock that detects a stuck stream, if the substreams hold ``prefetch``
        elements.
        """
        if self._full(divider):
            self._stuck_since = self._clock.now(), divider.taken.value
            self._clock.look()

    def _full(self, divider: Divider) -> bool:
        return not divider.latch.won and divider.came - divider.taken.value >= self._prefetch

    def _stuck(self, divider: Divider) -> list[Substream]:
        """Return the substreams that hold elements, if the stream is stuck; else an empty list."""
        if not self._full(divider):
            return []
        substreams = divider.holding
        holding = [each for each in substreams if each.elements]
        waiting = {id(each.reader.waiting) for each in substreams if each.reader is not None}
        waiting.discard(id(None))
        readers = [each.reader for each in holding if each.reader is not None]
        if not all(reader.sleeps(waiting) for reader in readers):
            return []
        # No subscriber takes an element from ``holding``. The stream is stuck if one of these
        # substreams has no subscriber, or if the subscriber of an empty substream waits.
        return holding if waiting or len(readers) < len(holding) else []

    def _due(self) -> float | None:
        since = self._stuck_since
        return None if since is None or since is self._checked else since[0] + self._patience

    def _check(self, divider: Divider) -> None:
        since = self._stuck_since
        if since is None or since[0] + self._patience > self._clock.now():
            return
        self._checked = since
        holding = self._stuck(divider)
        if holding and divider.taken.value == since[1]:
            stuck = f"{divider.name}: they are {self._why_stuck(holding)}"
            divider._fail(BufferOverflowError(stuck))

    def _why_stuck(self, holding: list[Substream]) -> str:
        asleep = [each for each in holding if each.reader is not None]
        if not asleep:
            return (
                f"all held for streams that nobody has subscribed to for {self._patience:g} s; "
                "subscribe to each, at once, if only to cancel it: below flat_map(concurrency=), "
                "to as many at once as may be open"
            )
        keys = ", ".join(safe_repr(each.key) for each in asleep[:NAMED])
        more = "" if len(asleep) <= NAMED else f" and {len(asleep) - NAMED} more"
        return (
            f"held for subscribers that have asked for nothing for {self._patience:g} s, while "
            f"others wait: those of the key {keys}{more}; ask for more, cancel, or give a greater "
            "prefetch=, or a greater patience= if the subscribers are slow"
        )
