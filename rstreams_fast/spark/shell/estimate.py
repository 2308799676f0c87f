"""What a run will cost, before anything is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rstreams_fast.calls.words import PolicyWords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Estimate", "told"]

DEVIATION: Final = 0.01
"""The relative standard deviation of the number of different keys."""

CALL_SECONDS: Final = 0.1
"""How long a call is said to take for an example."""


@dataclass(frozen=True)
class Keys:
    """The rows of one worker."""

    rows: int
    with_key: int
    different: int

    def calls(self, entries: int | None) -> float:
        """How many rows make a call, if the worker keeps the results of so many keys."""
        if entries is None:
            return self.with_key
        fits = min(1.0, entries / max(1, self.different))
        return self.different + (self.with_key - self.different) * (1 - fits)


@dataclass(frozen=True)
class Estimate:
    """What the keys of an input tell."""

    workers: Sequence[Keys]
    different: int
    """Different keys of all rows."""

    @classmethod
    def of(cls, frame: DataFrame, on: Sequence[str], slots: int | None) -> Estimate:
        """Count the rows and the keys of ``frame``, in one pass over the key columns.

        A sample cannot tell how often a key comes again in the whole, and so what a cache saves.
        """
        from pyspark.sql import functions as f

        keys = [f.col(f"`{name.replace('`', '``')}`") for name in on]
        key = f.when(~f.greatest(*(k.isNull() for k in [*keys, keys[0]])), f.xxhash64(*keys))
        place = f.spark_partition_id()
        worker = place if slots is None else place % slots
        counted = (
            frame.select(worker.alias("worker"), key.alias("key"))
            .rollup("worker")
            .agg(
                f.count(f.lit(1)),
                f.count("key"),
                f.approx_count_distinct("key", DEVIATION),
            )
            .collect()
        )
        parts = [Keys(row[1], row[2], min(row[2], row[3])) for row in counted if row[0] is not None]
        whole = max((min(row[2], row[3]) for row in counted if row[0] is None), default=0)
        return cls(parts, whole)

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(part.rows for part in self.workers)

    @property
    def with_key(self) -> int:
        """The rows without a null in their key."""
        return sum(part.with_key for part in self.workers)

    def calls(self, policy: PolicyWords, batch: int | None) -> int:
        """How many calls will be made; of lists, if there is a ``batch``."""
        entries = None if policy.cache is None else policy.cache.entries
        return sum(math.ceil(part.calls(entries) / (batch or 1)) for part in self.workers)


def told(
    estimate: Estimate, policy: PolicyWords, *, concurrency: int, batch: int | None
) -> list[str]:
    """Return the lines that tell of the calls, the seconds, and what the service will see."""
    without = estimate.rows - estimate.with_key
    calls = estimate.calls(policy, batch)
    lists = "" if batch is None else f" of up to {batch} keys each"
    tasks = max(1, len(estimate.workers))
    at_once, rate = tasks * concurrency, None
    if (limit := policy.limit) is not None:
        at_once, rate = min(at_once, limit.concurrency or at_once), limit.rate
    lines = [
        f"  rows: {estimate.rows:,}, of which {without:,} have a null key and make no call",
        f"  different keys: about {estimate.different:,}",
        f"  calls: about {calls:,}{lists}" + _why(estimate, policy, batch, calls),
    ]
    if policy.retry is not None:
        lines.append(f"  attempts: at most {policy.retry.times + 1} for each call")
    if policy.journal is not None:
        lines.append(
            "  journal: what it has answers for makes no call, and is not counted off here"
        )
    a_second = "with no bound on calls a second" if rate is None else f"{rate:g} calls a second"
    lines.append(
        f"  the service sees at most: {at_once:,} calls at once, {a_second}, over all tasks"
    )
    by_time = calls * CALL_SECONDS / at_once
    if rate is None:
        lines.append(f"  seconds: {by_time:,.0f}, if a call takes {CALL_SECONDS} s")
    else:
        lines.append(
            f"  seconds: {max(calls / rate, by_time):,.0f}, if a call takes {CALL_SECONDS} s; "
            f"at least {calls / rate:,.0f}"
        )
    return lines


def _why(estimate: Estimate, policy: PolicyWords, batch: int | None, calls: int) -> str:
    if policy.cache is None:
        fewer = estimate.different
        if batch is None and fewer < calls:
            return f", one for each row; --cache could make it {fewer:,}"
        return ""
    kept = f"{policy.cache.entries:,} results"
    if len(estimate.workers) == 1:
        return f", by one worker that keeps {kept}"
    return f", by {len(estimate.workers)} workers that keep {kept} each"
