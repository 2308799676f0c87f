"""The bounds of a ``Limit``, and the times at which its rate and quotas let calls start."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from rstreams_fast.calls.functions import check_positive

__all__ = ["MOST_UNITS", "Numbers", "Pace", "Quota", "per_minute", "per_second"]

LATE_SECONDS: Final = 0.002
"""A call that starts at most this many seconds late does not delay the calls after it."""

AT_ONCE: Final = 1 / 60
"""The share of a quota that calls may spend at once after a pause."""

MOST_UNITS: Final = 6
"""The most units of a limit: a file of ``HostLocks`` has space for this many clocks."""


@dataclass(frozen=True)
class Quota:
    """An amount for each period of ``seconds``, as ``per_second`` and ``per_minute`` return it."""

    amount: float
    seconds: float

    def __str__(self) -> str:
        names = {1.0: "second", 60.0: "minute"}
        return f"{self.amount:.12g} a {names.get(self.seconds, f'{self.seconds:g} seconds')}"


def per_second(amount: float) -> Quota:
    """Return the quota of ``amount`` a second, for ``Limit(rate=...)`` or ``Limit(units=...)``.

    Args:
        amount: A finite number > 0.

    Raises:
        TypeError: ``amount`` is no number.
        ValueError: ``amount`` is not finite, or not > 0.
    """
    return Quota(check_positive("per_second(amount)", amount), 1.0)


def per_minute(amount: float) -> Quota:
    """Return the quota of ``amount`` a minute, for ``Limit(rate=...)`` or ``Limit(units=...)``.

    Args:
        amount: A finite number > 0.

    Raises:
        TypeError: ``amount`` is no number.
        ValueError: ``amount`` is not finite, or not > 0.
    """
    return Quota(check_positive("per_minute(amount)", amount), 60.0)


class Numbers(NamedTuple):
    """The bounds of a limit. If several limits have one name, the newest sets the bounds of all."""

    made: float
    """When the limit was made, in seconds since the epoch."""
    concurrency: int | None
    rate: float | None
    burst: int
    quotas: tuple[Quota, ...] = ()
    """The quotas of the units, in the alphabetical order of the units' names."""

    @property
    def are_paced(self) -> bool:
        """Whether each call needs a new permit, because the limit has a rate or units."""
        return self.rate is not None or bool(self.quotas)


class Pace:
    """Computes when calls may start, from the rate and the quotas of a limit.

    A clock is the time until which earlier calls have spent a rate or a quota. The first clock
    belongs to the rate: calls start evenly spaced, and ``burst`` calls may start at once after a
    pause. Each unit has its own clock. As time passes, the quota of a unit covers the costs of
    calls. A call of any cost starts when the quota has covered all earlier calls. Later calls wait
    until the quota has covered this call, too.
    """

    def __init__(self, numbers: Numbers) -> None:
        rate = numbers.rate
        self._interval = 0.0 if rate is None else 1 / rate
        self._ahead = (numbers.burst - 1) * self._interval
        self._units = [(of.seconds / of.amount, of.seconds * AT_ONCE) for of in numbers.quotas]
        self.late = math.inf if rate is None else max(LATE_SECONDS, self._interval / 10)
        """A call that is more than this many seconds late needs a new start time."""
        self._free: list[float] = []
        """Start times that were reserved for calls which were not made after all, in order."""
        self.new = (0.0,) * (1 + len(self._units))
        """The clocks of a limit that was never used."""

    def reserve(
        self,
        now: float,
        clocks: tuple[float, ...],
        not_before: float,
        weights: tuple[float, ...] = (),
    ) -> tuple[float, tuple[float, ...]]:
        """Return when the next call may start, and the clocks after it.

        Args:
            now: The present time. All times are in seconds, and have the same origin.
            clocks: The clocks before the call.
            not_before: The time before which no call may start.
            weights: The cost of the call in each unit.
        """
        reserved = clocks[0]
        start = max(now, not_before)
        if self._interval:
            if self._free:
                del self._free[: bisect.bisect_left(self._free, now)]
                if (at := bisect.bisect_left(self._free, start)) < len(self._free):
                    return self._free.pop(at), clocks
            start = max(start, reserved - self._ahead)
            if not self._units:
                return start, (max(reserved, start) + self._interval, *clocks[1:])
        for clock, (_, ahead) in zip(clocks[1:], self._units, strict=False):
            start = max(start, clock - ahead)
        spent = zip(clocks[1:], self._units, weights, strict=False)
        after = [max(clock, start) + weight * each for clock, (each, _), weight in spent]
        if self._interval:
            reserved = max(reserved, start) + self._interval
        return start, (reserved, *after, *clocks[1 + len(after) :])

    def withdraw(
        self, clocks: tuple[float, ...], start: float, weights: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the clocks after the call that had reserved ``start`` was given up.

        With units, only the units are given back, not the start time. Without units, a later call
        of this process gets the start time, or the clock of the rate goes back. Without a rate and
        units there is nothing to give back.
        """
        if self._units:
            return self.spend(0.0, clocks, tuple(-weight for weight in weights))
        if not self._interval:  # without a rate, the call had only waited for ``not_before``
            return clocks
        reserved, free = clocks[0], self._free
        bisect.insort(free, start)
        # If the latest reserved start is free again, set the clock of the rate back by one call.
        each, ahead = self._interval, self._ahead
        while free and abs(reserved - each - ahead - free[-1]) < each / 2:
            reserved -= each
            free.pop()
        return reserved, *clocks[1:]

    def spend(
        self, now: float, clocks: tuple[float, ...], change: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the clocks after ``change`` more units were spent; numbers < 0 give units back."""
        after = list(clocks)
        for at, (units, (each, _)) in enumerate(zip(change, self._units, strict=False), 1):
            if units and at < len(after):
                after[at] = (max(after[at], now) if units > 0 else after[at]) + units * each
        return tuple(after)

    def adopt_remaining(
        self,
        now: float,
        clocks: tuple[float, ...],
        left: tuple[float, ...],
        weights: tuple[float, ...],
    ) -> tuple[float, ...]:
        """Return the clocks after the service has reported that ``left`` units remain.

        If fewer units than ``margins(weights)`` remain, the next calls wait.
        """
        after = list(clocks)
        reported = zip(left, self._units, self.margins(weights), strict=False)
        for at, (units, (each, ahead), margin) in enumerate(reported, 1):
            if math.isfinite(units) and at < len(after):
                after[at] = max(after[at], now + ahead + (margin - max(units, 0.0)) * each)
        return tuple(after)

    def restart(self, now: float, clocks: tuple[float, ...]) -> tuple[float, ...]:
        """Return the clocks after a change of the limit's numbers.

        Earlier calls delay the next call by at most one interval of the new rate.
        """
        latest = [now + self._interval, *(now + ahead for _, ahead in self._units)]
        return tuple(map(min, clocks, latest)) + clocks[len(latest) :]

    def margins(self, weights: tuple[float, ...]) -> list[float]:
        """Return how much of each unit must be left so that a call of this cost need not wait."""
        units = zip(self._units, weights, strict=False)
        return [max(weight, ahead / each) for (each, ahead), weight in units]
