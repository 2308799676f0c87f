"""Replay: a multicast that keeps past elements for late subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any, Literal, TypeVar

from rstreams_fast._checks import (
    Weigher,
    check_choice,
    check_count,
    check_seconds,
    check_weigher,
    describe_callable,
    safe_repr,
    weigh,
)
from rstreams_fast.api import UNBOUNDED, Processor
from rstreams_fast.runtime.timers import Timer, check_timer, default_timer
from rstreams_fast.streams.engine.defaults import MULTICAST_BUFFER
from rstreams_fast.streams.operators.multicast import Multicast, MulticastOptions
from rstreams_fast.streams.operators.sharing.buffer import Retention
from rstreams_fast.streams.operators.sharing.publisher import MulticastPublisher

__all__ = ["Replay", "ReplayBounds", "ReplayProcessor"]

T = TypeVar("T")


class ReplayBounds:
    """The bounds on the elements that a replay keeps. The constructor checks the arguments."""

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
        self.count = None if count is None else check_count("count", count, 1)
        self.weigher = weigher
        self.seconds = None if seconds is None else check_seconds("seconds", seconds, positive=True)
        self.timer = check_timer(timer)

    def describe(self) -> str:
        bounds = []
        if self.count is not None:
            bounds.append(f"{safe_repr(self.count)} elements")
        if self.max_bytes is not None and self.weigher is not None:
            bounds.append(
                f"{safe_repr(self.max_bytes)} bytes, weighed by {describe_callable(self.weigher)}"
            )
        if self.seconds is not None:
            bounds.append(f"{self.seconds:g} s")
        return f"keeps at most the last {' and '.join(bounds)}"


class _Bounded:
    """Computes ``kept``: how many of the newest elements a buffer keeps for late subscribers.

    ``kept`` becomes smaller only when an element arrives or a subscriber subscribes.
    """

    def __init__(self, bounds: ReplayBounds) -> None:
        self._count = bounds.count
        self._max_bytes = bounds.max_bytes
        self._weigher = bounds.weigher
        self._seconds = bounds.seconds
        self._timer = default_timer() if bounds.timer is None else bounds.timer
        self._bytes = 0
        self._last = 0.0
        # ``_notes``: for each kept element, its weight (the bytes that the user's ``weigher`` gave)
        # and its arrival time. None if the only bound is on the number of elements.
        self._notes: deque[tuple[int, float]] | None = None
        if bounds.max_bytes is not None or bounds.seconds is not None:
            self._notes = deque()
        self.kept = 0

    def weigh(self, elements: list[Any], weights: list[int]) -> None:
        """Append the weight of each element, in bytes, to ``weights``.

        An exception of the user's weigher propagates.
        """
        if self._weigher is not None:
            for element in elements:
                weights.append(weigh(self._weigher, element))  # noqa: PERF401 - weigh may raise
        else:
            weights += [0] * len(elements)

    def now(self) -> float:
        """Return the time of the timer, in seconds; 0 if there is no bound on time."""
        return 0.0 if self._seconds is None else self._timer.now()

    def keep(self, weights: list[int], now: float) -> None:
        """Add the new elements to ``kept``, the number of elements kept for late subscribers.

        Then lower ``kept`` until the bounds on the number, bytes and age of these elements are met.
        ``weights``: the weight of each new element, in bytes. ``now``: the time of their arrival.
        """
        # Use the latest time so far. If two threads read the clock, and then call this method in
        # the other order, the second call has the earlier time.
        self._last = now = max(self._last, now)
        self.kept += len(weights)
        if self._notes is not None:
            self._notes.extend(zip(weights, repeat(now)))
            self._bytes += sum(weights)
        self.evict(now)

    def evict(self, now: float) -> None:
        """Lower ``kept``, the number of elements to keep, until the bounds are met.

        The bounds are on the number, the bytes and (at the time ``now``) the age of these elements.
        """
        notes = self._notes
        if notes is None:
            if self._count is not None:
                self.kept = min(self.kept, self._count)
            return
        while notes and self._is_beyond(notes[0][1], now):
            self._bytes -= notes.popleft()[0]
            self.kept -= 1

    def _is_beyond(self, oldest: float, now: float) -> bool:
        return (
            (self._count is not None and self.kept > self._count)
            or (self._max_bytes is not None and self._bytes > self._max_bytes)
            or (self._seconds is not None and now - oldest > self._seconds)
        )

    @property
    def held_bytes(self) -> int | None:
        return None if self._max_bytes is None else self._bytes

    @property
    def max_kept(self) -> int:
        return UNBOUNDED if self._count is None else self._count


class ReplayProcessor(MulticastPublisher[T], Processor[T, T]):
    """A ``MulticastProcessor`` that keeps elements for late subscribers.

    At least one of ``count``, ``max_bytes`` and ``seconds`` must be given. If several are given,
    the bound that keeps the fewest elements applies. With ``seconds`` alone, the number of kept
    elements depends only on the speed of upstream. An element that is too old is dropped when the
    next element arrives or the next subscriber subscribes.

    A subscriber gets the kept elements first, then new elements. A subscriber that subscribes after
    the end gets the kept elements, then the terminal signal. The processor holds at most the kept
    elements and ``buffer_size`` more: ``buffer_size`` does not include the kept elements. An error
    is signalled immediately: present subscribers do not get the elements that wait for them, unless
    ``delay_error`` is set. After a shut-down (see ``on_last_cancel``) no elements are kept.
    Everything else is as in ``MulticastProcessor``.

    Args:
        count: Keep the last ``count`` elements.
        max_bytes: Keep the last elements, as many as weigh at most ``max_bytes`` together.
        weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
        seconds: Keep the elements of the last ``seconds``.
        buffer_size: The most elements between the fastest and the slowest subscriber.
        slow: As in ``MulticastProcessor``.
        on_last_cancel: As in ``MulticastProcessor``, but ``"keep"`` is the default.
        delay_error: As in ``MulticastProcessor``.
        timer: The clock of ``seconds``. Default: the timer of this process.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: No bound is given, or an argument has a wrong value.
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
        options = MulticastOptions(buffer_size, slow, delay_error)
        check_choice("on_last_cancel", on_last_cancel, ("keep", "shut_down"))
        super().__init__(
            name=f"ReplayProcessor: {bounds.describe()}, and {options.describe()}",
            buffer_size=options.buffer_size,
            gates=options.gates,
            delay_error=options.delay_error,
            keeps=on_last_cancel == "keep",
            retention=_Bounded(bounds),
        )


class Replay(Multicast):
    def __init__(
        self,
        bounds: ReplayBounds,
        options: MulticastOptions,
        min_subscribers: int,
        on_last_cancel: str,
    ) -> None:
        super().__init__(options, min_subscribers, on_last_cancel)
        self.bounds = bounds

    def retention(self) -> Retention:
        return _Bounded(self.bounds)

    def describe(self) -> str:
        return f"replay: {self.bounds.describe()}, and {self.describe_sharing()}"
