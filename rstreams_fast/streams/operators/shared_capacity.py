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

__all__ = ["SharedCapacity"]

MAX_KEYS_NAMED: Final = 3
"""The maximum number of keys in an error message."""


class SharedCapacity:
    """Bounds the number of elements that all substreams hold together: at most ``prefetch``.

    The first request is for ``prefetch`` elements. Later requests are for as many elements as have
    left the substreams. A stream that is *stuck* for ``patience`` seconds ends with an error. The
    stream is stuck when three conditions hold:

    * The substreams hold ``prefetch`` elements together. So no more elements are requested.
    * No subscriber of a substream with elements has demand.
    * Either at least one substream with elements has no subscriber, or the subscriber of an empty
      substream waits for an element, which cannot come. Otherwise the subscribers are only slow.
    """

    __slots__ = ("_checked", "_clock", "_patience", "_prefetch", "_replenish_at", "_stuck_since")

    shared = True

    def __init__(
        self, divider: Divider, prefetch: int, patience: float, timer: Timer | None
    ) -> None:
        self._prefetch = prefetch
        self._replenish_at = replenish_at(prefetch)
        self._patience = patience
        # ``_stuck_since``: the time at which the substreams were full, and how many elements had
        # left the substreams at that time. If more elements have left later, the stream is not
        # stuck. ``_checked``: the value of ``_stuck_since`` at the last check.
        self._stuck_since: tuple[float, int] | None = None
        self._checked: tuple[float, int] | None = None
        self._clock = divider.add_clock(timer, self._due, partial(self._check, divider))

    def room(self, divider: Divider, /) -> int:
        """Return how many elements ``divider``, the operator's subscription, must now request.

        Usually this is the room: ``prefetch`` minus the elements that are held or yet to arrive.
        But one large request costs less than many small requests. So the result is 0 if the room is
        less than three quarters of ``prefetch``, and upstream has not sent all requested elements.
        """
        requested = divider.requested
        if not requested and not divider.parts_requested.value:
            return 0  # make no request before the subscriber's first request
        room = self._prefetch - (requested - divider.taken.value)
        dry = requested == divider.received and not divider.signals
        return room if dry or room >= self._replenish_at else 0

    def detect_stuck(self, divider: Divider, /) -> None:
        """If the substreams hold ``prefetch`` elements, start the clock.

        After ``patience`` seconds the clock checks whether the stream is stuck (see the class).
        """
        if self._full(divider):
            self._stuck_since = self._clock.now(), divider.taken.value
            self._clock.update()

    def _full(self, divider: Divider) -> bool:
        return not divider.latch.won and divider.received - divider.taken.value >= self._prefetch

    def _stuck(self, divider: Divider) -> list[Substream]:
        """If the stream is stuck, return the substreams that hold elements; else an empty list.

        Stuck: the substreams are full, and no subscriber makes room. The class defines it exactly.
        """
        if not self._full(divider):
            return []
        substreams = divider.holding
        holding = [each for each in substreams if each.elements]
        waiting = {id(each.reader.waiting) for each in substreams if each.reader is not None}
        waiting.discard(id(None))
        readers = [each.reader for each in holding if each.reader is not None]
        if not all(reader.sleeps(waiting) for reader in readers):
            return []
        # The substreams are full, and no subscriber of a substream with elements (``holding``) has
        # demand. So the stream is stuck if a substream in ``holding`` has no subscriber, or if a
        # subscriber of an empty substream has demand (``waiting``), because no element can come.
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
        keys = ", ".join(safe_repr(each.key) for each in asleep[:MAX_KEYS_NAMED])
        more = "" if len(asleep) <= MAX_KEYS_NAMED else f" and {len(asleep) - MAX_KEYS_NAMED} more"
        return (
            f"held for subscribers that have asked for nothing for {self._patience:g} s, while "
            f"others wait: those of the key {keys}{more}; ask for more, cancel, or give a greater "
            "prefetch=, or a greater patience= if the subscribers are slow"
        )
