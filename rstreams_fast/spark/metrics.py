"""Live metrics of stages, through a directory of small files.

Accumulators say nothing about a task that was stopped early; a file does. Each partition of a
stage writes its own, a few times a second, always as a whole (written aside, then renamed). At its
end that becomes a line in the file of its process: files are as many as workers, not as tasks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from rstreams_fast.calls.counts import CallCounts, added
from rstreams_fast.calls.journal.uris import SCHEME

__all__ = ["ENDED_SUFFIX", "FILE_SUFFIX", "HOST", "Metrics", "StageMetrics", "process_of"]

FILE_SUFFIX: Final = ".metrics.json"
ENDED_SUFFIX: Final = ".metrics.jsonl"
_ASIDE_PATTERN: Final = "*.metrics.*.tmp"
HOST: Final = socket.gethostname()


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
            its worker was killed, on this host and where its process could be seen from here; of a
            sum of nothing ``unknown``.
        partitions: How many partitions are summed up here: those that the stage ran over, also
            where one task had several (``coalesce``).
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
            bucket; bucket *n* ends at ``2 ** ((n + 1) / 8)`` seconds. After a thousand attempts
            some are timed, and each counts for those before it.
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
            loop, as with ``time.sleep``: no other call moved. Pauses shorter than some tenths of a
            second do not count.
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
    seconds: float = 0.0
    started: float = 0.0
    updated: float = 0.0


_IDENTITY: Final = frozenset(
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
        "repeated_attempts",
        "started",
        "updated",
    ]
)

_PER_PARTITION: Final = frozenset(
    {"concurrency"} | {f.name for f in fields(StageMetrics) if f.name.startswith("max_")}
)


class Metrics:
    """Where stages leave their metrics: ``metrics=rs.Metrics()`` in any stage.

    The object may be pickled. ``cleanup``, or leaving a ``with`` block, removes the files.

    Args:
        path: A directory that the driver and the executors share. Default: a new temporary
            directory on the driver, for executors on the same machine.

    Raises:
        TypeError: ``path`` is no path.
        ValueError: ``path`` is empty, or a URI.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._made = True
        if path is None:
            path = tempfile.mkdtemp(prefix="rstreams-metrics-")
        elif not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a directory's path, got {type(path).__name__}")
        elif not os.fspath(path):
            raise ValueError("path is empty; it must be a directory's path")
        elif SCHEME.match(os.fspath(path)):
            raise ValueError("path must be a directory's path, and not a URI")  # it may hold a key
        else:
            try:
                Path(path).mkdir(parents=True)
            except FileExistsError:
                if not Path(path).is_dir():
                    raise
                self._made = False
        self.path = str(Path(path).absolute())

    def read(self) -> list[StageMetrics]:
        """Return the metrics of every partition and attempt so far, in order of their start."""
        found = {}
        # Those at work first: one that ends meanwhile is found among the others.
        for pattern in (f"*{FILE_SUFFIX}", f"*{ENDED_SUFFIX}"):
            for file in Path(self.path).glob(pattern):
                for metrics in _read(file):
                    found[metrics.run or file.name] = metrics
        for metrics in found.values():
            if metrics.state == "running" and metrics.host == HOST and _is_lost(metrics):
                metrics.state = "lost"
        return sorted(found.values(), key=lambda metrics: (metrics.started, metrics.partition))

    def totals(self, stage: str | None = None) -> StageMetrics:
        """Sum up one attempt of every partition: the attempt that is done, else the latest.

        The sum covers the ``partitions`` that have begun so far, of every action: a second action
        on the same frame adds its own. Calls of the other attempts are its ``repeated_attempts``.
        ``state`` is ``failed`` if one of them failed, else ``running`` if one runs, else ``lost``
        or ``stopped`` if one was, else ``done``; ``unknown`` if there are none. With another value
        than ``done`` the sum is a partial one; with ``done`` it lacks the partitions that have not
        begun.

        Args:
            stage: The name of a stage. Default: all stages.
        """
        found = self.read()
        if stage is not None:
            found = [metrics for metrics in found if metrics.stage == stage]
        total = _sum(found)
        total.stage = stage or ", ".join(dict.fromkeys(metrics.stage for metrics in found))
        return total

    def by_stage(self) -> dict[str, StageMetrics]:
        """Return the totals of every stage seen so far, by name, in order of their first start."""
        found: dict[str, list[StageMetrics]] = {}
        for metrics in self.read():
            found.setdefault(metrics.stage, []).append(metrics)
        totals = {stage: _sum(parts) for stage, parts in found.items()}
        for stage, total in totals.items():
            total.stage = stage
        return totals

    def stages(self) -> list[str]:
        """Return the names of the stages seen so far, in order of their first start."""
        return list(dict.fromkeys(metrics.stage for metrics in self.read()))

    def cleanup(self) -> None:
        """Remove the files of metrics, and the directory if it was made here and is empty then."""
        for pattern in (f"*{FILE_SUFFIX}", f"*{ENDED_SUFFIX}", _ASIDE_PATTERN):
            for file in Path(self.path).glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()
        if self._made:
            with contextlib.suppress(OSError):
                Path(self.path).rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def __repr__(self) -> str:
        return f"Metrics({self.path!r})"


def _chosen(found: list[StageMetrics]) -> list[StageMetrics]:
    """Return, of each partition, the runs of the attempt that counts: a task may have several."""
    places: dict[tuple[str, int, int], dict[tuple[int, int], list[StageMetrics]]] = {}
    for run in found:
        attempts = places.setdefault((run.key, run.spark_stage, run.partition), {})
        attempts.setdefault((run.task, run.attempt), []).append(run)

    def weight(attempt: tuple[tuple[int, int], list[StageMetrics]]) -> tuple[bool, tuple[int, int]]:
        # Of a speculative copy and its original one is done; the other, killed, stays "running".
        number, runs = attempt
        return all(run.state == "done" for run in runs), number

    return [run for attempts in places.values() for run in max(attempts.items(), key=weight)[1]]


_refused: Final[set[Path]] = set()


def _read(file: Path) -> Iterator[StageMetrics]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # its run has ended meanwhile
        return
    except OSError as refused:
        if file not in _refused:
            _refused.add(file)
            log = logging.getLogger("rstreams_fast")
            log.warning("metrics: %s is left out (%s)", file, refused)
        return
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # cut: the disk was full
            content = json.loads(line)
            if isinstance(content, dict):
                yield StageMetrics(**_known(content))


def _known(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of this version: another one may have others, of other types."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        kind = _KINDS.get(name)
        if kind is not None and isinstance(value, (int, float) if kind is float else kind):
            found[name] = value
    if (buckets := found.pop("latencies", None)) is not None:  # JSON's keys are texts
        with contextlib.suppress(ValueError):
            found["latencies"] = {int(bucket): count for bucket, count in buckets.items()}
    return found


_TABLES: Final = frozenset({"failure_types", "latencies", "spent"})

_KINDS: Final = {
    f.name: dict if f.name in _TABLES else type(f.default) for f in fields(StageMetrics)
}


def process_of(pid: int) -> str:
    """Return the boot, the PID namespace and the start of a process, or an empty string."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {_start_of(pid)}"
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    # After the name, which may hold anything, the 20th.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def _is_lost(metrics: StageMetrics) -> bool:
    """Whether the process is gone; ``False`` if that cannot be known."""
    own = process_of(os.getpid()).split(" ")
    theirs = metrics.process.split(" ")
    if len(own) != len(theirs) or len(own) == 1:
        return not _lives(metrics.pid)
    if theirs[0] != own[0]:  # before a restart of this machine, or one of the same name
        return metrics.updated < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if theirs[1] != own[1]:
        return False
    if not _lives(metrics.pid):
        return True
    with contextlib.suppress(OSError):  # hidden from this user
        return _start_of(metrics.pid) != theirs[2]
    return False


def _lives(pid: int) -> bool:
    if os.name != "posix":  # where 0 is a signal like any other
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _sum(found: list[StageMetrics]) -> StageMetrics:
    parts = _chosen(found)
    total = StageMetrics(state="unknown", partitions=len(parts))
    if not parts:
        return total
    for name in (f.name for f in fields(StageMetrics) if f.name not in _IDENTITY):
        together = max if name in _PER_PARTITION else added if name in _TABLES else sum
        setattr(total, name, together(getattr(part, name) for part in parts))
    total.repeated_attempts = sum(metrics.attempts for metrics in found) - total.attempts
    states = {part.state for part in parts}
    total.state = next(s for s in ("failed", "running", "lost", "stopped", "done") if s in states)
    total.started = min(part.started for part in parts)
    total.updated = max(part.updated for part in parts)
    return total
