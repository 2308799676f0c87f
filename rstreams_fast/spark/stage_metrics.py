"""``StageMetrics``: what a stage has done in one partition, or in several."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from rstreams_fast.calls.counts import CallCounts

__all__ = ["IDENTITY", "PER_PARTITION", "TABLES", "StageMetrics"]


@dataclass
class StageMetrics(CallCounts):
    """The work of one stage in one partition, or the sum of several (``Metrics.totals``).

    ``max_*`` are bounds and high-water marks, counted at every change. A sum adds up the counts and
    seconds of the partitions; of marks and bounds, which hold for each partition, it has the
    largest.

    Attributes:
        stage: The name of the user's function.
        key: Tells two stages with the same function apart.
        spark_stage: Spark's number of the stage.
        partition: Spark's number of the partition.
        attempt: Spark's number of the attempt within the task set.
        task: Spark's own number of the attempt: of two, the later one has the larger.
        run: Tells the runs of a stage over partitions apart.
        host: The host of the worker.
        pid: The worker's process, on ``host``.
        process: Tells the process from others with its ``pid``: the boot of the machine, the PID
            namespace and the start. Empty where the system has no ``/proc``.
        state: ``running``, ``done``, ``stopped`` (nobody wanted the rest), ``failed``, or ``lost``:
            its worker was killed, on this host and where its process could be seen from here. Of a
            sum of nothing ``never ran``, if a frame has the stage: no action has run, or Spark's
            optimizer has dropped its column, which nothing reads; else ``unknown``.
        partitions: How many partitions are summed up here: those that the stage ran over, also
            where one task had several (``coalesce``).
        partitions_running: Of a sum: how many of the partitions run now.
        rows_in: Rows of input that were read.
        rows_out: Rows of output that left.
        batches_in: Batches of input that were read.
        batches_out: Batches of output that left.
        calls: Calls of the function, each once however many attempts it took; with ``batch`` calls
            of lists. A row that a ``cache`` or a ``journal`` answered makes no call.
        attempts: How often the function was called, further attempts included: what the service
            saw.
        shared: Rows that shared a call in flight of an equal key (``dedupe``).
        repeated_attempts: Of a sum: calls of the function besides, by Spark's attempts of tasks
            that do not count: killed ones, failed ones, the slower of two copies. The service saw
            them, too.
        running: Calls that run now.
        max_running: The most calls that ran at once.
        pending: Rows in the window now: called, and not handed on.
        max_pending: The most rows in the window at once.
        cache_hits: Rows that a ``cache`` answered, without a call.
        journal_hits: Rows that a ``journal`` answered, without a call.
        skipped: Rows without a call, because a key was null.
        nulls: Rows whose call gave ``None``.
        retries: Further attempts of calls that had failed, as ``Retry`` says.
        throttled: Attempts that raised ``RetryAfter``, and were made again when they had waited.
        refused: Attempts that an open ``Circuit`` did not make.
        timeouts: Attempts that took longer than ``timeout``, and calls that took longer than
            ``deadline``.
        failures: Calls that failed in the end: what ``on_failure`` is about.
        failure_types: How many of the ``failures`` there were of each type of exception.
        latencies: How many attempts took how long: ``latency`` reads it. A key is the number of a
            bucket; bucket *n* ends at ``2 ** ((n + 1) / 8)`` seconds. After some hundred
            attempts some are timed, and each counts for those before it.
        waited_limit: Seconds that calls waited for a ``Limit``; of all calls together, and so may
            be more than ``seconds``. The next two, too.
        waited_service: Seconds that calls waited because of ``RetryAfter``.
        waited_retry: Seconds that calls waited before a retry.
        circuit_open: Seconds in which the ``Circuit`` was open.
        spent: What ``rs.spent`` said that the attempts have spent, by unit.
        buffered_rows: Rows of input held now.
        max_buffered_rows: The most rows of input held at once.
        buffered_bytes: Bytes of input held now.
        max_buffered_bytes: The most bytes of input held at once.
        buffered_batches: Batches of input held now.
        max_buffered_batches: The most batches of input held at once.
        concurrency: The bound on calls at once.
        max_pending_rows: The bound on rows in the window.
        max_buffer_bytes: The bound on bytes of input.
        waiting_upstream: Seconds in which calls could have been made, but there was no input.
        waiting_function: Seconds in which there was nothing to do but calls, and work on their
            results.
        waiting_downstream: Seconds in which results were ready and nobody took them.
        blocked: Of ``waiting_function``, seconds in which an ``async`` function kept the event
            loop, as with ``time.sleep``: no other call moved. Pauses of less than a tenth of a
            second do not count.
        blocked_at: The seconds of ``blocked`` for each line of code, as ``file.py:12``.
        seconds: Seconds from the start to the last update.
        started: The start, in seconds since the epoch.
        updated: The last update, in seconds since the epoch; an old one with ``state="running"``
            means: perhaps killed, on another host, or in another container.
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

TABLES: Final = frozenset({"blocked_at", "failure_types", "latencies", "spent"})
"""The fields that are dicts of counts."""
