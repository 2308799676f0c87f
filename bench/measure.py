"""What is measured: groups of contestants for the same work, every run with its result checked."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Contestant", "Group", "Outcome", "Role", "Spread", "Timing", "WrongResultError"]

#: ours; the *floor*: the same user calls and nothing else; a *peer*: what one would take instead;
#: *lost*: a design of ours that was tried and given up.
Role = Literal["ours", "floor", "peer", "lost"]
Kind = Literal["primitive", "use"]


class WrongResultError(Exception):
    """A contestant lost, doubled or reordered elements: its time means nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to, where that is more than its result."""

    result: object
    #: What was measured, if it is not the time.
    value: float | None = None
    #: Nanoseconds of processor time that other processes took for it.
    cpu: int = 0


Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One run: the clock, and all processors together; nanoseconds per operation, or a value."""

    wall: float
    cpu: float | None


@dataclass(frozen=True)
class Contestant:
    """One way of doing a group's work.

    ``begin(n)`` prepares n operations, untimed, and answers the work to be timed and the result it
    must have. ``n`` makes a timed run last some tens of milliseconds.
    """

    name: str
    role: Role
    n: int
    begin: Callable[[int], tuple[Work, object]]
    note: str = ""
    #: A run that looks at every element, before anything is timed.
    check: Callable[[], None] | None = None

    def time_once(self, n: int | None = None) -> Timing:
        """One timed run."""
        n = n or self.n
        work, expected = self.begin(n)
        gc.collect()
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        result = work()
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        outcome = result if isinstance(result, Outcome) else Outcome(result)
        self.require(outcome.result, expected)
        if outcome.value is not None:
            return Timing(outcome.value, None)
        return Timing(wall / n, (cpu + outcome.cpu) / n)

    def require(self, result: object, expected: object) -> None:
        if isinstance(result, Outcome):
            result = result.result
        if expected != result:  # in this order: an expectation may be an object of ours
            said = f"{result!r:.100} instead of {expected!r:.100}"
            raise WrongResultError(f"{self.name}: {said}")


@dataclass(frozen=True)
class Group:
    """Contestants for the same work."""

    name: str
    kind: Kind
    title: str
    contestants: Sequence[Contestant]
    unit: str = "ns per element"
    #: At most so many rounds in each process; 0: one round in the first process, and no warm-up.
    rounds: int | None = None

    @property
    def is_timed(self) -> bool:
        return self.unit.startswith("ns per ")


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{figure(self.median)} [{figure(self.low)} .. {figure(self.high)}]"


def figure(value: float) -> str:
    """Three digits, as far as they say something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
