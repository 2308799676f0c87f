"""The numbers of a limit, and the start times that follow from its rate and quotas."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["MOST_UNITS", "Numbers", "Pace", "Quota", "per_minute", "per_second"]

LATE_SECONDS: Final = 0.002
"""A call that starts this much late, or less, does not delay the calls after it."""

AT_ONCE: Final = 1 / 60
"""The share of a quota that calls may spend at once after a pause."""

MOST_UNITS: Final = 6
"""The most units of a limit: the file of a host has room for this number of clocks."""


@dataclass(frozen=True)
class Quota:
    """An amount for each period of seconds. ``per_second`` and ``per_minute`` make a quota."""

    amount: float
    seconds: float

    def __str__(self) -> str:
        names = {1.0: "second", 60.0: "minute"}
        return f"{self.amount:.12g} a {names.get(self.seconds, f'{self.seconds:g} seconds')}"


def per_second(amount: float) -> Quota:
    """Return the quota of ``amount`` a second, for ``Limit(rate=...)`` or a unit of ``Limit``.

    Args:
        amount: A finite number > 0.

    Raises:
        TypeError: ``amount`` is no number.
        ValueError: ``amount`` is not finite, or not > 0.
    """
    return _quota("per_second", amount, 1.0)


def per_minute(amount: float) -> Quota:
    """Return the quota of ``amount`` a minute, for ``Limit(rate=...)`` or a unit of ``Limit``.

    Args:
        amount: A finite number > 0.

    Raises:
        TypeError: ``amount`` is no number.
        ValueError: ``amount`` is not finite, or not > 0.
    """
    return _quota("per_minute", amount, 60.0)


def _quota(name: str, amount: object, seconds: float) -> Quota:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{name}(amount) must be a number, got {type(amount).__name__}")
    if not (amount > 0 and math.isfinite(amount)):
        raise ValueError(f"{name}(amount) must be finite and > 0, got {amount}")
    return Quota(float(amount), seconds)


class Numbers(NamedTuple):
    """The numbers of a limit. All limits of one name have the numbers of the newest of them."""

    made: float
    """When the limit was made, in seconds since the epoch."""
    concurrency: int | None
    rate: float | None
    burst: int
    quotas: tuple[Quota, ...] = ()
    """The quotas of the units, in the order of their names."""

    @property
    def are_paced(self) -> bool:
        """Whether each call needs a permit of its own, because of a rate or a unit."""
        return self.rate is not None or bool(self.quotas)


class Pace:
    """Computes when calls may start. A "clock" is the time until which a rate or quota is spent.

    The first clock is the rate's: calls start evenly spaced, and ``burst`` calls may start at once
    after a pause. Each unit has a clock, too. A call of any weight starts when the quota has
    covered the calls before it. The next calls wait until the quota has covered this call.
    """

    def __init__(self, numbers: Numbers) -> None:
        rate = numbers.rate
        self._interval = 0.0 if rate is None else 1 / rate
        self._ahead = (numbers.burst - 1) * self._interval
        self._units = [(of.seconds / of.amount, of.seconds * AT_ONCE) for of in numbers.quotas]
        self.late = math.inf if rate is None else max(LATE_SECONDS, self._interval / 10)
        """A call that is late by more than this needs a new start time."""
        self._free: list[float] = []
        """Reserved start times of calls that were not made, in order."""
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
            now: The time; all times are seconds of one clock.
            clocks: The clocks before the call.
            not_before: No call may start before that time.
            weights: The units of the call.
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
        """Return the clocks after a call that had reserved ``start`` was given up.

        With units, only the units are given back. Otherwise, if another call has a later start, a
        later call of this process gets ``start``.
        """
        if self._units:
            return self.spend(0.0, clocks, tuple(-weight for weight in weights))
        reserved, free = clocks[0], self._free
        bisect.insort(free, start)
        # The clock of the rate can go back by one call if the latest start of all is free.
        each, ahead = self._interval, self._ahead
        while free and abs(reserved - each - ahead - free[-1]) < each / 2:
            reserved -= each
            free.pop()
        return reserved, *clocks[1:]

    def spend(
        self, now: float, clocks: tuple[float, ...], change: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the clocks after ``change`` more units were spent; numbers < 0 give back."""
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

        Calls from before the change then delay at most one call.
        """
        latest = [now + self._interval, *(now + ahead for _, ahead in self._units)]
        return tuple(map(min, clocks, latest)) + clocks[len(latest) :]

    def margins(self, weights: tuple[float, ...]) -> list[float]:
        """Return how many units must be left so that a call with ``weights`` need not wait."""
        units = zip(self._units, weights, strict=False)
        return [max(weight, ahead / each) for (each, ahead), weight in units]
