"""``StageMetrics``: the metrics of a stage, in one partition or summed over several partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import Final

from rstreams_fast.calls.counts import CallCounts

__all__ = [
    "IDENTITY",
    "PER_PARTITION",
    "PRESENT",
    "TABLES",
    "StageMetrics",
    "html_of",
    "number_text",
]


@dataclass
class StageMetrics(CallCounts):
    """The metrics of one stage in one partition, or the sum over several (``Metrics.totals``).

    Fields with the prefix ``max_`` are bounds and high-water marks; the marks are updated at every
    change. A sum adds up the counts and the seconds of the partitions. Bounds and high-water marks
    apply to one partition, so a sum has the largest value of all partitions.

    Attributes:
        stage: The name of the user's function.
        key: The id of the stage: two stages may have the same function.
        spark_stage: Spark's number of the stage.
        partition: Spark's number of the partition.
        attempt: Spark's number of the attempt within the task set.
        task: Spark's id of the attempt. A later attempt has a larger id.
        run: The id of the partition run: one execution of the stage over the partition.
        host: The host of the worker.
        pid: The worker's process id on ``host``.
        process: Identifies the process, because another process may have the same ``pid`` later:
            boot id of the machine, PID namespace and start time of the process. Empty if the system
            has no ``/proc``.
        state: ``running``, ``done``, ``stopped`` (Spark wanted no more rows), ``failed``, or
            ``lost``: the worker was killed. A reader sees a lost worker only on its own host and in
            its own PID namespace. A sum without partitions is ``never ran`` if a DataFrame uses the
            stage (no action has run, or Spark's optimizer has dropped the column, because nothing
            reads it); else it is ``unknown``.
        partitions: How many partitions are in the sum. If one task has several partitions
            (``coalesce``), each of them counts.
        partitions_running: In a sum: how many of the partitions are running now.
        rows_in: Rows of input that were read.
        rows_out: Rows of output that were passed to Spark.
        batches_in: Batches of input that were read.
        batches_out: Batches of output that were passed to Spark.
        calls: Calls of the function. A call with many attempts counts once; with ``batch`` a call
            has a list of rows. A row that a ``cache`` or a ``journal`` answered makes no call.
        attempts: How often the function was called, further attempts included: what the service
            saw.
        shared: Rows that shared the running call of an equal key (``dedupe``).
        repeated_attempts: In a sum: calls of the function by task attempts that do not count:
            killed attempts, failed attempts, and the slower of two speculative copies. The service
            saw these calls, too.
        running: Calls that run now.
        max_running: The largest number of calls that ran at once.
        pending: The pending rows: their call has started, and their result is not in the output
            yet.
        max_pending: The largest number of pending rows.
        cache_hits: Rows that a ``cache`` answered, without a call.
        journal_hits: Rows that a ``journal`` answered, without a call.
        skipped: Rows without a call, because a key was null.
        nulls: Rows whose call returned ``None``.
        retries: Further attempts of failed calls, made by ``Retry``.
        throttled: Attempts that raised ``RetryAfter``, and were made again after a wait.
        refused: Attempts that an open ``Circuit`` prevented.
        timeouts: Attempts that took longer than ``timeout``, and calls that took longer than
            ``deadline``.
        failures: Calls that failed after all their attempts. ``on_failure`` says what follows.
        failure_types: The number of ``failures`` for each type of exception.
        latencies: A histogram of the seconds of attempts, which ``latency`` reads. A key is the
            number of a bucket; bucket *n* ends at ``2 ** ((n + 1) / 8)`` seconds. After five
            hundred attempts, only every 128th attempt is timed, and counts as 128.
        waited_limit: Seconds that calls waited for a ``Limit``. This field, ``waited_service`` and
            ``waited_retry`` add up the waits of all concurrent calls, so they may exceed
            ``seconds``.
        waited_service: Seconds that calls waited because of ``RetryAfter``.
        waited_retry: Seconds that calls waited before a retry.
        circuit_open: Seconds in which the ``Circuit`` was open.
        spent: The amount of each unit that the attempts reported by ``rs.spent``.
        buffered_rows: Rows of input in memory now.
        max_buffered_rows: The largest number of rows of input in memory.
        buffered_bytes: Bytes of input in memory now.
        max_buffered_bytes: The largest number of bytes of input in memory.
        buffered_batches: Batches of input in memory now.
        max_buffered_batches: The largest number of batches of input in memory.
        concurrency: The bound on concurrent calls.
        max_pending_rows: The bound on pending rows.
        max_buffer_bytes: The bound on bytes of input in memory.
        waiting_upstream: Seconds in which calls could have been made, but there was no input.
        waiting_function: Seconds in which the stage waited for calls, or worked on their results.
        waiting_downstream: Seconds in which results were ready, and Spark did not take them.
        blocked: The part of ``waiting_function`` in which an ``async`` function blocked the event
            loop, as ``time.sleep`` does: other calls could not continue. Pauses of less than a
            tenth of a second do not count.
        blocked_at: The seconds of ``blocked`` for each line of code, as ``file.py:12``.
        seconds: Seconds from the start to the last update.
        started: The start, in seconds since the epoch.
        updated: The last update, in seconds since the epoch. If this time is long ago and ``state``
            is ``running``, the worker may have been killed on another host or in another container.
    """

    key: str = ""
    spark_stage: int = -1
    partition: int = -1
    attempt: int = -1
    task: int = -1
    run: str = ""
    host: str = ""
    pid: int = -1
    process: str = ""
    state: str = "running"
    partitions: int = 1
    partitions_running: int = 0
    rows_in: int = 0
    rows_out: int = 0
    batches_in: int = 0
    batches_out: int = 0
    shared: int = 0
    repeated_attempts: int = 0
    running: int = 0
    max_running: int = 0
    pending: int = 0
    max_pending: int = 0
    skipped: int = 0
    nulls: int = 0
    buffered_rows: int = 0
    max_buffered_rows: int = 0
    buffered_bytes: int = 0
    max_buffered_bytes: int = 0
    buffered_batches: int = 0
    max_buffered_batches: int = 0
    max_pending_rows: int = 0
    max_buffer_bytes: int = 0
    waiting_upstream: float = 0.0
    waiting_function: float = 0.0
    waiting_downstream: float = 0.0
    blocked: float = 0.0
    blocked_at: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    started: float = 0.0
    updated: float = 0.0

    def _repr_html_(self) -> str:
        return html_of({self.stage or "all stages": self})


IDENTITY: Final = frozenset(
    [
        "stage",
        "key",
        "spark_stage",
        "partition",
        "attempt",
        "task",
        "run",
        "host",
        "pid",
        "process",
        "state",
        "partitions",
        "partitions_running",
        "repeated_attempts",
        "started",
        "updated",
    ]
)

PER_PARTITION: Final = frozenset(
    {"concurrency"} | {f.name for f in fields(StageMetrics) if f.name.startswith("max_")}
)

PRESENT: Final = frozenset(
    ["running", "pending", "buffered_rows", "buffered_bytes", "buffered_batches"]
)
"""The fields with current values, not totals. A sum adds only the values of running partitions."""

TABLES: Final = frozenset({"blocked_at", "failure_types", "latencies", "spent"})
"""The fields that are dicts from names or buckets to numbers."""


def html_of(stages: Mapping[str, StageMetrics]) -> str:
    """Return an HTML table for notebooks: a column for each stage, and a row for each field.

    Fields that are 0 or empty in all ``stages`` are left out.
    """
    names = ["state", "partitions", *(f.name for f in fields(StageMetrics))]
    rows = {name: [getattr(stage, name) for stage in stages.values()] for name in names}
    for name in IDENTITY - {"state", "partitions", "repeated_attempts"}:
        del rows[name]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    rows["latencies"] = [
        {text: stage.latency(share) for text, share in shares.items() if stage.latencies}
        for stage in stages.values()
    ]
    cells = {name: map(_cell_text, values) for name, values in rows.items() if any(values)}
    return _table([("", stages), *cells.items()])


def _table(rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    lines = []
    for name, cells in rows:
        found = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{found}</tr>')
    return f"<table>{''.join(lines)}</table>"


def number_text(value: float, digits: int) -> str:
    """Return ``value`` with ``digits`` significant digits, but with all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:,.{digits}g}"


def _cell_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell_text(count)}" for key, count in value.items())
    if isinstance(value, float):
        return number_text(value, 4)
    return f"{value:,}" if isinstance(value, int) else str(value)
