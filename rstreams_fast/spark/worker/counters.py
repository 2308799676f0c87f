"""Counts the work of a stage in one partition, and writes the counts to files for the driver."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import uuid
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from rstreams_fast.calls.counts import CallCounts, summed
from rstreams_fast.calls.errors import warn_once
from rstreams_fast.spark.metrics import Metrics, spans_of
from rstreams_fast.spark.runs import ENDED_SUFFIX, FILE_SUFFIX, HOST, fields_of, fold, process_of
from rstreams_fast.spark.stage_metrics import TABLES, StageMetrics
from rstreams_fast.spark.telemetry.spans import CallSpans

__all__ = ["Counters", "MetricsWriter", "task_context"]

ENDED_LINES: Final = 31
"""The most lines in a process's file of ended partition runs. After one more line, ``runs.fold``
adds all counts to sums. A line has the final counts of one partition run: one execution of a stage
over a partition."""

ENDED_FILES: Final = 16
"""If a host has this many files of ended partition runs, a process calls ``runs.fold`` after its
first partition run (one execution of a stage over a partition). ``fold`` adds the counts in the
files to sums, and removes the files. Otherwise many short files would remain if each task has its
own process."""

WRITE_SECONDS: Final = 0.2
"""Minimum seconds between two writes of the metrics file of a running partition."""


def task_context() -> Any:
    """Return Spark's ``TaskContext``; ``None`` outside a Spark task."""
    # Do not import pyspark. If it is not imported yet, this process is no Spark worker.
    module = sys.modules.get("pyspark.taskcontext")
    return None if module is None else module.TaskContext.get()


class Counters(StageMetrics):
    """The metrics of a stage in one partition, while it runs.

    Two threads must not change the same count at the same time.
    """

    def __init__(self, stage: str, key: str) -> None:
        super().__init__(stage=stage, key=key, run=uuid.uuid4().hex, host=HOST, pid=os.getpid())
        self.process = process_of(self.pid)
        self.started = time.time()
        self._begin = time.monotonic()
        self._repeated: BaseException | None = None
        self.policies: list[CallCounts] = []
        """Counts of calls, one element for each function that has a ``Policy`` (the user's rules
        for its calls) and that UDFs call. Only filled in workers of the drop-in daemon
        (``rstreams_fast.spark.daemon``), which makes UDF calls overlap."""
        if (context := task_context()) is not None:
            self.spark_stage = context.stageId()
            self.partition = context.partitionId()
            self.attempt = context.attemptNumber()
            self.task = context.taskAttemptId()

    def count_buffered(self, batches: int, rows: int, size: int) -> None:
        """Count input batches that were read. With negative numbers: count batches as released."""
        if batches > 0:
            self.batches_in += batches
            self.rows_in += rows
        self.buffered_batches += batches
        self.buffered_rows += rows
        self.buffered_bytes += size
        self.max_buffered_batches = max(self.max_buffered_batches, self.buffered_batches)
        self.max_buffered_rows = max(self.max_buffered_rows, self.buffered_rows)
        self.max_buffered_bytes = max(self.max_buffered_bytes, self.buffered_bytes)

    def emit(self, rows: int) -> None:
        self.rows_out += rows
        self.batches_out += 1

    def count_cached_failure(self, error: BaseException) -> None:
        """Record that ``error`` comes from a cache, so that ``count_failure`` does not count it."""
        self._repeated = error

    def count_failure(self, error: BaseException) -> None:
        """Count a call that failed after all retries.

        Do nothing if a cache raises a stored failure again: then no call was made.
        """
        repeated, self._repeated = self._repeated, None
        if error is not repeated:
            super().count_failure(error)

    def snapshot(self) -> StageMetrics:
        """Return a copy of the counts, with the time of the copy."""
        self.updated = time.time()
        self.seconds = time.monotonic() - self._begin
        self.update_waits()
        copy = StageMetrics(**{f.name: getattr(self, f.name) for f in fields(StageMetrics)})
        for name in TABLES:
            setattr(copy, name, dict(getattr(self, name)))
        seen = summed(self.policies)
        if seen.calls or seen.cache_hits or seen.journal_hits:
            for each in fields(CallCounts):
                if each.name not in ("stage", "concurrency"):
                    setattr(copy, each.name, getattr(seen, each.name))
        return copy


class MetricsWriter:
    """Writes a partition's counters to a file; writes nothing if the user gave no ``metrics``."""

    def __init__(self, metrics: Metrics | None, counters: Counters) -> None:
        self.counters = counters
        self._file: Path | None = None
        self._written = False
        self._due = 0.0
        self.spans: CallSpans | None = None
        """Makes trace spans for calls of the partition; ``None`` if the user wants no spans."""
        if metrics is not None:
            # The file name contains ``counters.run``, a random id. The id of the task is not
            # enough: coalesce gives a task several partitions, and a plan may repeat a stage.
            self._file = Path(metrics.path) / f"{counters.key}-{counters.run}{FILE_SUFFIX}"
            if (spans := spans_of(metrics)) is not None:
                self.spans = CallSpans(spans, counters)

    @property
    def is_enabled(self) -> bool:
        """Whether the user asked for metrics."""
        return self._file is not None

    def write_if_due(self) -> None:
        if self._file is not None and time.monotonic() >= self._due:
            self.write()

    def write(self, *, last: bool = False) -> None:
        """Write the counts to the file now; on the ``last`` write, also all trace spans of calls.

        Other writes include the spans only from time to time. An ``OSError`` does not fail the job:
        it is logged once for each folder.
        """
        if self._file is None:
            return
        self._due = time.monotonic() + WRITE_SECONDS
        aside = self._file.with_suffix(f".{os.getpid()}.tmp")
        try:
            aside.write_text(self._snapshot(), encoding="utf-8")
            aside.replace(self._file)
            if self.spans is not None:
                self.spans.write(self._file, last=last)
        except OSError as refused:
            gone = self._written and isinstance(refused, FileNotFoundError)
            # If an earlier write succeeded, do not warn of a FileNotFoundError: the driver may have
            # removed the folder by ``Metrics.cleanup``.
            if not gone:
                _warn_once(self._file.parent, refused)
        else:
            self._written = True

    def end(self) -> None:
        """Move the final counts from the partition's own file to a file for the whole process.

        Only this process writes to that file, and it appends each line by one ``write``. So a line
        never contains a part of another line. ``runs.fold`` adds up the lines of a long file.
        """
        if self._file is None:
            return
        # Write the final counts to the partition's own file, too. That file is kept if the counts
        # cannot be appended to the process's file, for example because the disk is full.
        self.write(last=True)
        with contextlib.suppress(OSError), _ended_lock:
            folder = self._file.parent
            lines, number = _ended.get(folder, (-1, 0))
            if lines < 0:  # -1: no partition has ended in this process before
                many = len(list(folder.glob(f"{HOST}-*{ENDED_SUFFIX}"))) >= ENDED_FILES
                lines = ENDED_LINES if many else 0
            # Two containers may have the same host name and the same pid. So the file name also
            # contains a digest that differs for each process.
            own = f"{crc32(self.counters.process.encode()):08x}"
            ended = folder / f"{HOST}-{os.getpid()}-{own}-{number}{ENDED_SUFFIX}"
            # Begin with a line break: the previous line is incomplete if the disk was full.
            line = f"\n{self._snapshot()}\n".encode()
            with ended.open("ab", buffering=0) as file:
                whole = file.write(line) == len(line)
            if whole:
                self._file.unlink()
            _ended[folder] = lines + 1, number
            if lines >= ENDED_LINES:
                # ``fold`` adds this file to the sums and removes it: from now on, use a new file.
                _ended[folder] = 0, number + 1
                fold(folder, self.counters.task)

    def _snapshot(self) -> str:
        return json.dumps(fields_of(self.counters.snapshot()))


_ended_lock: Final = threading.Lock()
_ended: Final[dict[Path, tuple[int, int]]] = {}
"""For each metrics folder: the number of lines in this process's file, and the number in its name.
A line has the counts of an ended partition run (one execution of a stage over a partition). After a
file with enough lines, the process begins a file with the next number."""


def _warn_once(folder: Path, refused: OSError) -> None:
    warn_once(
        folder, "metrics: %s cannot be written, and figures are missing (%s)", folder, refused
    )
