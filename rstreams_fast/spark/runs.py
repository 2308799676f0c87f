"""The files in which partitions report their metrics, and the sums of ended partitions.

A *partition run* is one execution of a stage over one partition, in one task attempt. While it is
running, it has its own file. When it ends, its metrics become a line in the file of its process.
When this file has many lines, the process adds them to sums: each host has one file with a sum for
each stage. So the number of files does not grow with the number of partitions.

If a partition has several task attempts, only one attempt counts. The sums list the partitions that
they cover, so that a later attempt of the same partition is not added, too.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from zlib import crc32

if sys.platform != "win32":
    import fcntl

from rstreams_fast.calls.counts import added
from rstreams_fast.spark.stage_metrics import IDENTITY, PER_PARTITION, PRESENT, TABLES, StageMetrics
from rstreams_fast.spark.telemetry.spans import SPANS_SUFFIX

__all__ = [
    "ENDED_SUFFIX",
    "FILE_SUFFIX",
    "HOST",
    "NEVER_RAN",
    "Runs",
    "declare",
    "fields_of",
    "fold",
    "process_of",
    "read_runs",
    "sum_of",
    "totals_by_stage",
]

FILE_SUFFIX: Final = ".metrics.json"
ENDED_SUFFIX: Final = ".metrics.jsonl"
SUMS_SUFFIX: Final = ".metrics.sums.json"
LOCK_SUFFIX: Final = ".metrics.lock"
STAGE_SUFFIX: Final = ".metrics.stage"
ASIDE_SUFFIX: Final = ".tmp"
PATTERNS: Final = (
    *(f"*{FILE_SUFFIX}", f"*{ENDED_SUFFIX}", f"*{SUMS_SUFFIX}", f"*{LOCK_SUFFIX}"),
    *(f"*{STAGE_SUFFIX}", f"*{SPANS_SUFFIX}", f"*.metrics.*{ASIDE_SUFFIX}"),
)

HOST: Final = socket.gethostname()

SPARK_STAGES: Final = 256
"""For this number of the latest Spark stages, ``Sums`` stores which partitions are in the sums, and
the metrics of partitions that are not done. Both are needed if Spark makes another attempt."""

MOST_KEPT: Final = 256
"""If ``Sums.kept`` is longer than this, the partition runs of each task attempt become one element.
If it is still longer, its earliest elements are passed to ``Sums.add``, except those whose task may
still run. Of these, only runs with the state ``stopped`` count for their partition."""

Place = tuple[str, int, int]
"""Identifies a partition: the key of the stage, the number of its Spark stage, the partition's
number."""


def _place_of(run: StageMetrics) -> Place:
    return run.key, run.spark_stage, run.partition


@dataclass
class Sums:
    """Sums of the metrics of ended partition runs on one host.

    A partition run is one execution of a stage over one partition, in one task attempt.

    Attributes:
        stages: A sum for each stage.
        covered: The partitions in the sums, by the stage's key and Spark's number of the stage. The
            latest stages are last.
        kept: Ended partition runs that are not in the sums yet, because their task may still run,
            or their partition is not done. An element may be the sum of several runs of one
            attempt.
        absorbed: The names of files whose partition runs are in this object. The files may still
            exist.
    """

    stages: dict[str, StageMetrics] = field(default_factory=dict)
    covered: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    kept: list[StageMetrics] = field(default_factory=list)
    absorbed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Sums:
        """Read sums from ``file``; they are empty if it is missing or has an unknown format."""
        sums = cls()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            covered = {(key, stage): _numbers(text) for key, stage, text in content["covered"]}
            kept = [StageMetrics(**_known_fields(run)) for run in content["kept"]]
            stages = [StageMetrics(**_known_fields(total)) for total in content["stages"]]
            sums = cls({total.stage: total for total in stages}, covered, kept, content["absorbed"])
        return sums

    def write(self, file: Path) -> None:
        """Replace ``file`` atomically, so that readers never see an incomplete file."""
        content = {
            "stages": [_non_default_fields(total) for total in self.stages.values()],
            "covered": [[*place, _ranges(numbers)] for place, numbers in self.covered.items()],
            "kept": [_non_default_fields(run) for run in self.kept],
            "absorbed": self.absorbed,
        }
        aside = file.with_suffix(f".{os.getpid()}{ASIDE_SUFFIX}")
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(file)

    def add(self, run: StageMetrics, *, counts: bool) -> None:
        """Add the metrics of a partition run to the sums.

        If ``counts`` is false, because another attempt of the partition counts, only the calls of
        this attempt are added, to ``repeated_attempts``.
        """
        total = self.stages.get(run.stage)
        if total is None:
            total = StageMetrics(run.stage, state="", partitions=0, host=HOST)
            self.stages[run.stage] = total
        if not counts:
            total.repeated_attempts += run.attempts
            return
        _sum_into(total, [total, run] if total.partitions else [run])
        total.partitions += run.partitions
        if run.spark_stage >= 0:
            place = run.key, run.spark_stage
            # Remove and insert the entry, so that the latest Spark stage is last.
            partitions = self.covered[place] = self.covered.pop(place, set())
            partitions.add(run.partition)


def declare(folder: Path, stage: str) -> None:
    """Write a file with the name of a ``stage``, so that metrics show it even if it never runs."""
    with contextlib.suppress(OSError):
        file = folder / f"{crc32(stage.encode()):08x}{STAGE_SUFFIX}"
        if not _declared_in(file):
            file.write_text(f"{stage}\n", encoding="utf-8")


def _declared_in(file: Path) -> list[str]:
    """Return the stage name in a file that ``declare`` wrote; nothing if the file is incomplete."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name, end, _ = file.read_text(encoding="utf-8").rpartition("\n")
        return [name] if end else []
    return []


@dataclass
class Runs:
    """The metrics in all files of a directory.

    Attributes:
        runs: The metrics of each partition that is not in the sums.
        sums: A sum for each host and stage.
        covered: The partitions in the sums.
        declared: The names of all stages that are used, even if they never ran.
    """

    runs: list[StageMetrics]
    sums: list[StageMetrics]
    covered: dict[tuple[str, int], set[int]]
    declared: list[str]

    @property
    def stages(self) -> list[str]:
        """The names of the stages: first those that never ran, then the others by their start."""
        started = dict.fromkeys(metrics.stage for metrics in self.all())
        return [*sorted(set(self.declared) - started.keys()), *started]

    def all(self) -> list[StageMetrics]:
        """Return the sums and the metrics of the other partitions, in the order of their start."""
        found = [*self.sums, *self.runs]
        return sorted(found, key=lambda metrics: (metrics.started, metrics.partition))

    def covers(self, run: StageMetrics) -> bool:
        """Whether the sums already have an attempt of the run's partition."""
        return run.partition in self.covered.get((run.key, run.spark_stage), ())

    def of(self, stage: str) -> Runs:
        """Return the metrics and the sums of one stage."""
        return Runs(
            [run for run in self.runs if run.stage == stage],
            [total for total in self.sums if total.stage == stage],
            self.covered,
            [name for name in self.declared if name == stage],
        )


def read_runs(folder: Path) -> Runs:
    """Return the metrics in the files of ``folder``."""
    by_file: dict[str, list[StageMetrics]] = {}
    # Read the files of running partitions first. If a partition ends meanwhile, its metrics move to
    # a file of ended partitions, which is read later.
    for suffix in (FILE_SUFFIX, ENDED_SUFFIX):
        for file in folder.glob(f"*{suffix}"):
            by_file[file.name] = list(_read_lines(file))
    sums = [Sums.read(file) for file in folder.glob(f"*{SUMS_SUFFIX}")]
    for each in sums:
        for name in each.absorbed:
            by_file.pop(name, None)
    found = {}
    for name, runs in by_file.items():
        for run in runs:
            found[run.run or name] = run
    for run in (run for each in sums for run in each.kept):
        found[run.run] = run
    for run in found.values():
        if run.state == "running" and run.host == HOST and is_lost(run):
            run.state = "lost"
    covered: dict[tuple[str, int], set[int]] = {}
    for each in sums:
        for place, partitions in each.covered.items():
            covered.setdefault(place, set()).update(partitions)
    declared = [name for file in folder.glob(f"*{STAGE_SUFFIX}") for name in _declared_in(file)]
    totals = [total for each in sums for total in each.stages.values()]
    return Runs(list(found.values()), totals, covered, declared)


def totals_by_stage(found: Runs) -> dict[str, StageMetrics]:
    """Return the sum of each stage's metrics, by the name of the stage."""
    totals = {}
    for stage in found.stages:
        totals[stage] = sum_of(found.of(stage))
        totals[stage].stage = stage
    return totals


def _counting_runs(runs: Iterable[StageMetrics]) -> dict[Place, list[StageMetrics]]:
    """Return for each partition the metrics of the one attempt that counts.

    With ``coalesce`` an attempt processes several input partitions, and has metrics for each.
    """
    places: dict[Place, dict[tuple[int, int], list[StageMetrics]]] = {}
    for run in runs:
        attempts = places.setdefault(_place_of(run), {})
        attempts.setdefault((run.task, run.attempt), []).append(run)

    def weight(attempt: tuple[tuple[int, int], list[StageMetrics]]) -> tuple[bool, tuple[int, int]]:
        # Prefer an attempt that is done. Without this, a killed speculative copy could win: its
        # file still says "running".
        number, runs = attempt
        return all(run.state == "done" for run in runs), number

    return {place: max(attempts.items(), key=weight)[1] for place, attempts in places.items()}


def sum_of(found: Runs) -> StageMetrics:
    """Return the sum of the metrics in ``found``, counting only one attempt of each partition."""
    counting = _counting_runs(run for run in found.runs if not found.covers(run))
    parts = [run for runs in counting.values() for run in runs]
    parts += [total for total in found.sums if total.partitions]
    unseen = NEVER_RAN if found.declared else "unknown"
    total = StageMetrics(state=unseen, partitions=sum(part.partitions for part in parts))
    if parts:
        _sum_into(total, parts)
    total.repeated_attempts = sum(each.repeated_attempts for each in found.sums)
    total.repeated_attempts += sum(run.attempts for run in found.runs)
    total.repeated_attempts -= sum(run.attempts for runs in counting.values() for run in runs)
    return total


def _sum_into(total: StageMetrics, parts: list[StageMetrics]) -> None:
    """Set the fields of ``total`` to the sums of ``parts``."""
    running = [part for part in parts if part.state == "running"]
    for name in _ADDED:
        combine: Any = max if name in PER_PARTITION else added if name in TABLES else sum
        some = running if name in PRESENT else parts
        setattr(total, name, combine([getattr(part, name) for part in some]))
    states = {part.state for part in parts}
    total.partitions_running = sum(part.state == "running" for part in parts)
    total.state = next(state for state in STATES if state in states)
    total.started = min(part.started for part in parts)
    total.updated = max(part.updated for part in parts)


NEVER_RAN: Final = "never ran"
"""The state of a stage that is used in a DataFrame and has not run."""

STATES: Final = ("failed", "running", "lost", "stopped", "done", "")
"""The states by priority: a sum has the first of these states that any of its parts has."""

_ADDED: Final = [f.name for f in fields(StageMetrics) if f.name not in IDENTITY]


# -- adding ended partitions to the sums -----------------------------------------------------------


def fold(folder: Path, present: int) -> None:
    """Add the partitions that ended in this process or in a dead process of this host to the sums.

    The caller must prevent other threads from writing the file of this process. ``present`` is the
    id of the task that runs in this process. Its partitions are not added yet, because the task may
    begin further ones.
    """
    own = process_of(os.getpid()).rpartition(" ")[0]
    name = f"{HOST}-{crc32(own.encode()):08x}"
    with contextlib.suppress(BlockingIOError), (folder / f"{name}{LOCK_SUFFIX}").open("w") as lock:
        # ``suppress``: if another process holds the lock, that process updates the sums now.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _fold_into(folder, folder / f"{name}{SUMS_SUFFIX}", own, present)


def _fold_into(folder: Path, file: Path, own: str, present: int) -> None:
    sums = Sums.read(file)
    for gone in sums.absorbed:
        (folder / gone).unlink(missing_ok=True)
    ended_runs: dict[str, StageMetrics] = {run.run: run for run in sums.kept}
    absorbed = []
    for suffix in (FILE_SUFFIX, ENDED_SUFFIX):
        for source in folder.glob(f"*{suffix}"):
            runs = list(_read_lines(source))
            if runs and all(_has_ended(run, own) for run in runs):
                ended_runs.update((run.run, run) for run in runs if run.run)
                absorbed.append(source.name)
    found = read_runs(folder)
    running_tasks = {run.task for run in found.runs if run.state == "running"} | {present}
    counting = _counting_runs(run for run in found.runs if not found.covers(run))
    sums.kept = []
    ended = sorted(ended_runs.values(), key=lambda run: run.started)
    places = [*sums.covered, *((run.key, run.spark_stage) for run in ended)]
    latest = set(list(dict.fromkeys(reversed(places)))[:SPARK_STAGES])
    for run in ended:
        if run.state == "running":
            run.state = "lost"
        chosen = [] if found.covers(run) else counting.get(_place_of(run), [])
        counts = any(one.run == run.run for one in chosen)
        settled = run.spark_stage < 0 or all(one.state == "done" for one in chosen)
        if (counts and run.task >= 0 and _may_continue(run, running_tasks)) or (
            chosen and not settled and (run.key, run.spark_stage) in latest
        ):
            sums.kept.append(run)
        else:
            sums.add(run, counts=counts)
    if len(sums.kept) > MOST_KEPT:
        kept, sums.kept = _merged_attempts(sums.kept), []
        surplus = len(kept) - MOST_KEPT
        for run in kept:
            # Keep a run whose task may still run: if the sums covered its partition, the later runs
            # of the same attempt would not count.
            if surplus > 0 and not _may_continue(run, running_tasks):
                sums.add(run, counts=run.state == "stopped")
                surplus -= 1
            else:
                sums.kept.append(run)
    sums.covered = {place: some for place, some in sums.covered.items() if place in latest}
    sums.absorbed = absorbed
    sums.write(file)
    for name in absorbed:
        (folder / name).unlink(missing_ok=True)


def _may_continue(run: StageMetrics, running_tasks: set[int]) -> bool:
    """Whether the task of an ended partition ``run`` may begin further partition runs.

    Another process that is alive may be between two partition runs of its task.
    """
    return run.task in running_tasks or (run.pid != os.getpid() and not is_lost(run))


def _merged_attempts(runs: list[StageMetrics]) -> list[StageMetrics]:
    """Return ``runs`` with one element for each task attempt of a partition, in the same order."""
    attempts: dict[tuple[Place, int, int], list[StageMetrics]] = {}
    for run in runs:
        attempts.setdefault((_place_of(run), run.task, run.attempt), []).append(run)
    for first, *others in attempts.values():
        _sum_into(first, [first, *others])
        first.partitions += sum(run.partitions for run in others)
    return [first for first, *_ in attempts.values()]


def _has_ended(run: StageMetrics, own: str) -> bool:
    """Whether a partition run on this host and in the PID namespace ``own`` has ended."""
    if run.host != HOST or run.process.rpartition(" ")[0] != own:
        return False
    if run.pid == os.getpid():
        return run.state != "running"
    return is_lost(run)


def _ranges(numbers: set[int]) -> str:
    """Return ``numbers`` as a text such as ``0-4,7``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in found)


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def fields_of(metrics: StageMetrics) -> dict[str, Any]:
    """Return the fields by name, for JSON. ``dataclasses.asdict`` would take ten times as long."""
    return {name: getattr(metrics, name) for name in _KINDS}


def _non_default_fields(metrics: StageMetrics) -> dict[str, Any]:
    found = fields_of(metrics)
    return {name: value for name, value in found.items() if value != _DEFAULTS.get(name)}


# -- reading files, identifying processes ----------------------------------------------------------


_unreadable: Final[set[Path]] = set()


def _read_lines(file: Path) -> Iterator[StageMetrics]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:  # the partition has ended meanwhile
        return
    except OSError as refused:
        if file not in _unreadable:
            _unreadable.add(file)
            log = logging.getLogger("rstreams_fast")
            log.warning("metrics: %s is left out (%s)", file, refused)
        return
    for line in lines:
        # Skip incomplete lines: a process may have been unable to write the whole line to a full
        # disk.
        with contextlib.suppress(json.JSONDecodeError):
            content = json.loads(line)
            if isinstance(content, dict):
                yield StageMetrics(**_known_fields(content))


def _known_fields(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``content`` that this version knows; another version may have more."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        kind = _KINDS.get(name)
        if kind is not None and isinstance(value, (int, float) if kind is float else kind):
            found[name] = value
    if (buckets := found.pop("latencies", None)) is not None:  # in JSON, keys are strings
        with contextlib.suppress(ValueError):
            found["latencies"] = {int(bucket): count for bucket, count in buckets.items()}
    return found


_DEFAULTS: Final = {
    f.name: f.default for f in fields(StageMetrics) if f.name not in ("state", "partitions")
}

_KINDS: Final = {
    f.name: dict if f.name in TABLES else type(f.default) for f in fields(StageMetrics)
}


@functools.lru_cache(maxsize=1)
def process_of(pid: int) -> str:
    """Return a text that identifies a process: boot id, PID namespace and start time.

    The text is empty if the system has no ``/proc``.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {_start_time_of(pid)}"
    except OSError:
        return ""


def _start_time_of(pid: int) -> str:
    # The start time is the 20th field after the process name. The name is in brackets, and may
    # itself contain spaces and brackets.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]


def is_lost(metrics: StageMetrics) -> bool:
    """Whether the process that ran a partition is gone; ``False`` if this cannot be known."""
    own = process_of(os.getpid()).split(" ")
    theirs = metrics.process.split(" ")
    if len(own) != len(theirs) or len(own) == 1:
        return not _is_alive(metrics.pid)
    # A different boot id: the file is from an earlier boot of this machine, or from another machine
    # with the same host name. If the last update was before this boot, the process is gone.
    if theirs[0] != own[0]:
        return metrics.updated < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if theirs[1] != own[1]:
        return False
    if not _is_alive(metrics.pid):
        return True
    # If /proc hides the process from this user, assume that it is alive.
    with contextlib.suppress(OSError):
        return _start_time_of(metrics.pid) != theirs[2]
    return False


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # on Windows, os.kill(pid, 0) would send a signal
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
