"""Replay: a multicast that keeps elements for those who come late, as many as it was told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from rstreams_fast.api import UNBOUNDED, Processor
from rstreams_fast.core._common import check_count, describe_callable
from rstreams_fast.errors import shown
from rstreams_fast.runtime.timers import Timer, check_seconds, check_timer, default_timer
from rstreams_fast.streams.hub import Hub, HubOptions, Node, Retention, check_choice
from rstreams_fast.streams.multicast import Multicast
from rstreams_fast.streams.tuning import MULTICAST_BUFFER
from rstreams_fast.streams.weighing import Weigher, check_weigher, weigh

__all__ = ["Replay", "ReplayBounds", "ReplayProcessor"]

T = TypeVar("T")


class ReplayBounds:
    """How much is kept: elements, bytes, seconds; the arguments, checked."""

    def __init__(
        self,
        count: int | None,
        max_bytes: int | None,
        weigher: Weigher | None,
        seconds: float | None,
        timer: Timer | None,
    ) -> None:
        if count is None and max_bytes is None and seconds is None:
            raise ValueError(
                "give at least one of count, max_bytes and seconds: what is kept must have a bound"
            )
        self.max_bytes = check_weigher(max_bytes, weigher)
        if timer is not None and seconds is None:
            raise ValueError("timer is given, but not seconds")
        check_timer(timer)
        self.count = None if count is None else check_count("count", count, 1)
        self.weigher = weigher
        self.seconds = None if seconds is None else check_seconds("seconds", seconds, positive=True)
        self.timer = timer

    def describe(self) -> str:
        """Say what is kept."""
        bounds = []
        if self.count is not None:
            bounds.append(f"{shown(self.count)} elements")
        if self.max_bytes is not None and self.weigher is not None:
            bounds.append(
                f"{shown(self.max_bytes)} bytes, weighed by {describe_callable(self.weigher)}"
            )
        if self.seconds is not None:
            bounds.append(f"{self.seconds:g} s")
        return f"keeps at most the last {' and '.join(bounds)}"


class _Note(NamedTuple):
    weight: int
    at: float


class _Bounded:
    """The retention of one hub. What is not needed is let go of when something comes: an element,
    or a subscriber.
    """

    def __init__(self, bounds: ReplayBounds) -> None:
        self._count = bounds.count
        self._max_bytes = bounds.max_bytes
        self._weigher = bounds.weigher
        self._seconds = bounds.seconds
        self._timer = default_timer() if bounds.timer is None else bounds.timer
        self._kept = 0
        self._bytes = 0
        self._last = 0.0

    def now(self) -> float:
        """Return the time, if it matters."""
        return 0.0 if self._seconds is None else self._timer.now()

    def note(self, element: Any) -> _Note:
        """Weigh and date ``element``; raises what a bad weigher deserves."""
        weigher = self._weigher
        return _Note(0 if weigher is None else weigh(weigher, element), self.now())

    def keep(self, head: Node, node: Node, note: Any) -> Node:
        """Take one more into account, and as many out as must be."""
        # Those who overlap may come here in another order than they were dated in.
        self._last = at = max(self._last, note.at)
        node.note = _Note(note.weight, at)
        self._kept += 1
        self._bytes += note.weight
        return self.evict(head, at)

    def evict(self, head: Node, now: float) -> Node:
        """Take out, oldest first, what is beyond the bounds."""
        while (following := head.next) is not None and self._is_beyond(head.note, now):
            self._kept -= 1
            self._bytes -= head.note.weight
            head = following
        return head

    def _is_beyond(self, oldest: _Note, now: float) -> bool:
        return (
            (self._count is not None and self._kept > self._count)
            or (self._max_bytes is not None and self._bytes > self._max_bytes)
            or (self._seconds is not None and now - oldest.at > self._seconds)
        )

    @property
    def held_bytes(self) -> int | None:
        """The bytes that are kept, if they are weighed."""
        return None if self._max_bytes is None else self._bytes

    @property
    def max_kept(self) -> int:
        """The bound on their number, if it has one."""
        return UNBOUNDED if self._count is None else self._count


class ReplayProcessor(Hub[T], Processor[T, T]):
    """A :class:`MulticastProcessor` that keeps elements for subscribers who come late.

    Kept are the last ``count`` elements, as many of the last as weigh at most ``max_bytes``
    together, as ``weigher(element)`` counts them, and those of the last ``seconds``, as the
    ``timer`` counts them: whichever is fewest. At least one of the three must be given; with
    ``seconds`` alone the number of elements has no other bound than upstream's pace. What is too
    old is let go of when the next element or subscriber comes.

    A subscriber gets first what is kept, then what comes; also after the end, and then the terminal
    signal. Elements that are kept for all do not count as a subscriber's lag: the processor holds
    at most what is kept and ``buffer_size`` elements more. An error overtakes what subscribers have
    not had yet, unless ``delay_error``, but those who come after it get what is kept before it.

    ``on_last_cancel="keep"``: without subscribers upstream waits, unasked. After a shut-down
    nothing is kept. All else is as with :class:`MulticastProcessor`.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        count: int | None = None,
        max_bytes: int | None = None,
        weigher: Callable[[T], int] | None = None,
        seconds: float | None = None,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        on_last_cancel: Literal["keep", "shut_down"] = "keep",
        delay_error: bool = False,
        timer: Timer | None = None,
    ) -> None:
        bounds = ReplayBounds(count, max_bytes, weigher, seconds, timer)
        options = HubOptions(buffer_size, slow, delay_error)
        check_choice("on_last_cancel", on_last_cancel, Literal["keep", "shut_down"])
        super().__init__(
            options,
            name=f"ReplayProcessor: {bounds.describe()}, and {options.describe()}",
            keeps=on_last_cancel == "keep",
            retention=_Bounded(bounds),
        )


class Replay(Multicast):
    """The boundary of ``Stream.replay``."""

    def __init__(
        self,
        bounds: ReplayBounds,
        options: HubOptions,
        min_subscribers: int,
        on_last_cancel: str,
    ) -> None:
        super().__init__(options, min_subscribers, on_last_cancel)
        self.bounds = bounds

    def retention(self) -> Retention:
        """What a new hub keeps for those who come late."""
        return _Bounded(self.bounds)

    def describe(self) -> str:
        """Say how many elements may be held, for whom, and what ends it."""
        return f"replay: {self.bounds.describe()}, and {self.describe_sharing()}"
