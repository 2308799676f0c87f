"""Estimates the calls and the costs of a job, for ``rstreams-fast run --explain``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.settings import PolicySettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Estimate", "estimate_lines"]

DEVIATION: Final = 0.01
"""The relative standard deviation of the estimated number of distinct keys."""

SAMPLE_ROWS: Final = 1000
"""About how many rows are sampled to estimate the cost of calls in units such as tokens."""

CALL_SECONDS: Final = 0.1
"""The estimated seconds of the whole job assume that each call takes this time."""


@dataclass(frozen=True)
class Keys:
    """The numbers of rows, of rows with a key, and of different keys that one worker gets."""

    rows: int
    with_key: int
    different: int

    def calls(self, entries: int | None) -> float:
        """Return the estimated number of calls, if the worker's cache keeps ``entries`` results."""
        if entries is None:
            return self.with_key
        fits = min(1.0, entries / max(1, self.different))
        return self.different + (self.with_key - self.different) * (1 - fits)


@dataclass(frozen=True)
class Estimate:
    """The numbers of rows and of keys in an input, from which the cost is estimated."""

    workers: Sequence[Keys]
    different: int
    """The number of different keys in the whole input."""
    sample: Sequence[tuple[Any, ...]]
    """The keys of about ``SAMPLE_ROWS`` rows, without the keys that have a null."""

    @classmethod
    def of(
        cls, frame: DataFrame, on: Sequence[str], slots: int | None, *, sampled: bool
    ) -> Estimate:
        """Count the rows and the keys of ``frame``, in one pass over the key columns.

        All rows are counted. A sample would not show how often keys recur in the whole input, and
        so how many calls a cache saves.

        Args:
            frame: The input.
            on: The names of its key columns.
            slots: How many tasks run at once; ``None`` if this is not known.
            sampled: Whether to sample keys, too. This takes a second pass.
        """
        from pyspark.sql import functions as f

        keys = [f.col(f"`{name.replace('`', '``')}`") for name in on]
        # Allow map columns as keys. By default Spark refuses to hash a map, because equal maps may
        # have different hashes.
        frame.sparkSession.conf.set("spark.sql.legacy.allowHashOnMapType", "true")
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
        if not sampled:
            return cls(parts, whole, [])
        share = min(1.0, SAMPLE_ROWS / max(1, sum(part.rows for part in parts)))
        some = frame.select(*keys).sample(fraction=share, seed=0).collect()
        sample = [tuple(row) for row in some if None not in tuple(row)]
        return cls(parts, whole, sample)

    @property
    def rows(self) -> int:
        """The number of rows in the input."""
        return sum(part.rows for part in self.workers)

    @property
    def with_key(self) -> int:
        """The number of rows whose key columns have no null."""
        return sum(part.with_key for part in self.workers)

    def calls(self, policy: PolicySettings, batch: int | None) -> int:
        """Return the estimated number of calls. A call has a list of ``batch`` keys, if given."""
        entries, workers = None, self.workers
        if policy.cache is not None:
            entries = policy.cache.entries
            if policy.cache.scope == "executor":  # one cache for all workers of a host
                workers = [Keys(self.rows, self.with_key, self.different)]
        return sum(math.ceil(part.calls(entries) / (batch or 1)) for part in workers)

    def units(self, policy: PolicySettings) -> dict[str, float]:
        """Return the estimated amount of each unit (such as tokens) of the limit, for all calls."""
        limit, keys = policy.limit, list(self.sample)
        if limit is None or not limit.units or not keys:
            return {}
        if policy.cache is not None:
            keys = list({repr(key): key for key in keys}.values())
        weighed = [limit.weights(key) for key in keys]
        each = self.calls(policy, None) / len(keys)
        return {unit: each * sum(weights[unit] for weights in weighed) for unit in limit.units}


def estimate_lines(
    estimate: Estimate, policy: PolicySettings, *, concurrency: int, batch: int | None
) -> list[str]:
    """Return the lines of ``--explain`` about the calls, the time, and the load on the service."""
    without = estimate.rows - estimate.with_key
    calls = estimate.calls(policy, batch)
    lists = "" if batch is None else f" of up to {batch} keys each"
    lines = [
        f"  rows: {estimate.rows:,}, of which {without:,} have a null key and make no call",
        f"  different keys: about {estimate.different:,}",
        f"  calls: about {calls:,}{lists}" + _calls_note(estimate, policy, batch, calls),
    ]
    if policy.retry is not None:
        lines.append(f"  attempts: at most {policy.retry.times + 1} for each call")
    if policy.budget is not None:
        units = policy.budget.units.items()
        amounts = ", ".join(f"{amount:,.12g} {unit}" for unit, amount in units)
        where = "" if policy.budget.scope == "job" else " in each process"
        lines.append(f"  budget: at most {amounts}{where}; then calls fail")
    if policy.journal is not None:
        lines.append(
            "  journal: what it has answers for makes no call, and is not counted off here"
        )
    workers = max(1, len(estimate.workers))
    at_once, bounds, least = workers * concurrency, [], 0.0
    if (limit := policy.limit) is not None:
        # With the scope "process" each worker has its own limit.
        times = workers if limit.scope == "process" else 1
        at_once = min(at_once, (limit.concurrency or at_once) * times)
        if limit.numbers.rate is not None:
            rate = limit.numbers.rate * times
            bounds.append(f"{rate:,.12g} calls a second")
            least = calls / rate
        sampled = min(SAMPLE_ROWS, estimate.rows)
        for unit, amount in estimate.units(policy).items():
            quota = (limit.units or {})[unit]
            most = quota.amount * times
            lines.append(f"  {unit}: about {amount:,.0f}, from a sample of {sampled:,} rows")
            bounds.append(f"{most:,.12g} {unit} in {quota.seconds:g} s")
            least = max(least, amount * quota.seconds / most)
    seen = ", ".join([f"{at_once:,} calls at once", *(bounds or ["no bound on calls a second"])])
    lines.append(f"  the service sees at most: {seen}, over all tasks")
    seconds = max(least, calls * CALL_SECONDS / at_once)
    bound = f"; at least {least:,.0f}" if least else ""
    lines.append(f"  seconds: about {seconds:,.0f}, if a call takes {CALL_SECONDS} s{bound}")
    return lines


def _calls_note(estimate: Estimate, policy: PolicySettings, batch: int | None, calls: int) -> str:
    if policy.cache is None:
        fewer = estimate.different
        if batch is None and fewer < calls:
            return f", one for each row; --cache could make it {fewer:,}"
        return ""
    kept = f"{policy.cache.entries:,} results"
    if policy.cache.scope == "executor":
        return f", by workers that share {kept}"
    if len(estimate.workers) == 1:
        return f", by one worker that keeps {kept}"
    return f", by {len(estimate.workers)} workers that keep {kept} each"
