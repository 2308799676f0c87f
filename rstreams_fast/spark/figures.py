"""Live figures of stages, through a directory of small files.

Accumulators say nothing about a task that was stopped early; a file does. Each partition of a
stage writes its own, a few times a second and at its end, always as a whole (written aside, then
renamed).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["Counters", "Figures", "FiguresWriter", "StageFigures"]

WRITE_SECONDS: Final = 0.2
"""How long a file may be behind."""

_SUFFIX: Final = ".figures.json"
_ASIDE: Final = "*.figures.*.tmp"


@dataclass
class StageFigures:
    """What one stage did in one partition, or the sum of several (``Figures.totals``).

    Rows, calls and bytes are counts; ``waiting_*`` and ``seconds`` are seconds; ``max_*`` are
    high-water marks, counted at every change, and bounds. A sum adds up counts and seconds of the
    partitions; of marks and bounds, which hold for each partition, it gives the largest.
    """

    stage: str = ""
    """The name of the user's function."""
    key: str = ""
    """Tells two stages with the same function apart."""
    spark_stage: int = -1
    partition: int = -1
    attempt: int = -1
    task: int = -1
    """Spark's own number of the attempt: of two, the later one has the larger."""
    state: str = "running"
    """``running``, ``done``, ``stopped`` (nobody wanted the rest) or ``failed``; of a sum of
    nothing ``unknown``.
    """
    partitions: int = 1
    """How many partitions are summed up here: those that the stage ran over, also where one task
    had several (``coalesce``).
    """
    rows_in: int = 0
    rows_out: int = 0
    batches_in: int = 0
    batches_out: int = 0
    calls: int = 0
    running: int = 0
    max_running: int = 0
    pending: int = 0
    max_pending: int = 0
    skipped: int = 0
    """Rows without a call, because a key was null."""
    nulls: int = 0
    """Rows whose call gave ``None``."""
    retries: int = 0
    timeouts: int = 0
    failures: int = 0
    """Calls that failed and were turned into null by ``on_failure="null"``."""
    buffered_rows: int = 0
    max_buffered_rows: int = 0
    buffered_bytes: int = 0
    max_buffered_bytes: int = 0
    buffered_batches: int = 0
    max_buffered_batches: int = 0
    concurrency: int = 0
    max_pending_rows: int = 0
    max_buffer_bytes: int = 0
    waiting_upstream: float = 0.0
    """Seconds in which calls could have been made, but there was no input."""
    waiting_function: float = 0.0
    """Seconds in which there was nothing to do but calls, and work on their results."""
    waiting_downstream: float = 0.0
    """Seconds in which results were ready and nobody took them."""
    seconds: float = 0.0
    started: float = 0.0
    """Seconds since the epoch."""
    updated: float = 0.0
    """Seconds since the epoch; old, with ``state="running"``: a task that was killed."""


_IDENTITY: Final = frozenset(
    {"stage", "key", "spark_stage", "partition", "attempt", "task", "state", "started", "updated"}
)

_PER_PARTITION: Final = frozenset(
    {"concurrency"} | {f.name for f in fields(StageFigures) if f.name.startswith("max_")}
)


class Figures:
    """Where stages leave their figures: ``figures=rs.Figures()`` in any stage.

    Makes a temporary directory on the driver; on a cluster, give the ``path`` of a directory that
    the driver and the executors share. ``cleanup`` (or leaving a ``with`` block) removes the
    files, and the directory if it was made here and holds nothing else. May be pickled.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._made = True
        if path is None:
            path = tempfile.mkdtemp(prefix="rstreams-figures-")
        elif not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a directory's path, got {type(path).__name__}")
        elif not os.fspath(path):
            raise ValueError("path is empty; it must be a directory's path")
        else:
            try:
                Path(path).mkdir(parents=True)
            except FileExistsError:
                if not Path(path).is_dir():
                    raise
                self._made = False
        self.path = str(Path(path).absolute())

    def read(self) -> list[StageFigures]:
        """Return the figures of every partition and attempt so far, in order of their start."""
        found = []
        for file in Path(self.path).glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found.append(StageFigures(**json.loads(file.read_text(encoding="utf-8"))))
        return sorted(found, key=lambda figures: (figures.started, figures.partition))

    def totals(self, stage: str | None = None) -> StageFigures:
        """Sum up one attempt of every partition, of one ``stage`` (its name) or of all: the one
        that is done, else the latest.

        Summed up are the ``partitions`` that have begun so far, of every action: a second action
        on the same frame adds its own. ``state`` is ``failed`` if one of them failed, else
        ``running`` if one does, else ``stopped`` if one was, else ``done``; ``unknown`` if there
        are none, of a stage that has not begun or that nobody has. With another value than
        ``done`` the sum is a partial one; with ``done`` it lacks what has not begun.
        """
        places: dict[tuple[str, int, int], dict[tuple[int, int], list[StageFigures]]] = {}
        for figures in self.read():
            if stage is not None and figures.stage != stage:
                continue
            attempts = places.setdefault((figures.key, figures.spark_stage, figures.partition), {})
            attempts.setdefault((figures.task, figures.attempt), []).append(figures)
        return _sum([part for attempts in places.values() for part in _chosen(attempts)], stage)

    def stages(self) -> list[str]:
        """Return the names of the stages seen so far, in order of their first start."""
        return list(dict.fromkeys(figures.stage for figures in self.read()))

    def cleanup(self) -> None:
        """Remove the files of figures, and the directory if it was made here and is empty then."""
        for pattern in (f"*{_SUFFIX}", _ASIDE):
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
        return f"Figures({self.path!r})"


def _chosen(attempts: dict[tuple[int, int], list[StageFigures]]) -> list[StageFigures]:
    """Return the runs of the attempt that counts: one task may run a stage several times."""

    def weight(attempt: tuple[int, int]) -> tuple[bool, tuple[int, int]]:
        # Of a speculative copy and its original one is done; the other, killed, stays "running".
        return all(part.state == "done" for part in attempts[attempt]), attempt

    return attempts[max(attempts, key=weight)]


def _sum(parts: list[StageFigures], stage: str | None) -> StageFigures:
    total = StageFigures(stage=stage or "", state="unknown", partitions=len(parts))
    if not parts:
        return total
    for name in (f.name for f in fields(StageFigures) if f.name not in _IDENTITY):
        if name != "partitions":
            together = max if name in _PER_PARTITION else sum
            setattr(total, name, together(getattr(part, name) for part in parts))
    states = {part.state for part in parts}
    total.state = next(s for s in ("failed", "running", "stopped", "done") if s in states)
    if stage is None:
        total.stage = ", ".join(dict.fromkeys(part.stage for part in parts))
    total.started = min(part.started for part in parts)
    total.updated = max(part.updated for part in parts)
    return total


class Counters(StageFigures):
    """The figures of the partition at work. Each count has one thread that writes it."""

    def __init__(self, stage: str, key: str) -> None:
        super().__init__(stage=stage, key=key)
        self.started = time.time()
        self._begin = time.monotonic()
        context = _task_context()
        if context is not None:
            self.spark_stage = context.stageId()
            self.partition = context.partitionId()
            self.attempt = context.attemptNumber()
            self.task = context.taskAttemptId()

    def snapshot(self) -> StageFigures:
        """Return a copy as of now."""
        self.updated = time.time()
        self.seconds = time.monotonic() - self._begin
        return StageFigures(**{f.name: getattr(self, f.name) for f in fields(StageFigures)})


class FiguresWriter:
    """Writes a partition's counters; nothing when no figures were asked for."""

    def __init__(self, figures: Figures | None, counters: Counters) -> None:
        self.counters = counters
        self._file: Path | None = None
        self._due = 0.0
        if figures is not None:
            # Nothing else tells two runs in one task apart: coalesce gives it several partitions,
            # and a plan may have the same stage twice.
            self._file = Path(figures.path) / f"{counters.key}-{uuid.uuid4().hex}{_SUFFIX}"

    @property
    def wanted(self) -> bool:
        """Whether figures were asked for."""
        return self._file is not None

    def write_if_due(self) -> None:
        """Write if the file is behind by more than ``WRITE_SECONDS``."""
        if self._file is not None and time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write now. A directory that is gone is no error: figures never fail a job."""
        if self._file is None:
            return
        self._due = time.monotonic() + WRITE_SECONDS
        aside = self._file.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(asdict(self.counters.snapshot())), encoding="utf-8")
            aside.replace(self._file)


def _task_context() -> Any:
    # Only a worker has one, and there pyspark is imported already.
    import sys

    module = sys.modules.get("pyspark.taskcontext")
    return None if module is None else module.TaskContext.get()
