"""Turns the metrics of stages into counters, gauges and a histogram, for other systems."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rstreams_fast.calls.counts import PER_OCTAVE, total_seconds
from rstreams_fast.spark.stage_metrics import StageMetrics

__all__ = ["BOUNDS", "DURATION", "Histogram", "MetricReader", "MetricSpec", "Point", "Reading"]


@dataclass(frozen=True)
class MetricSpec:
    """Describes a metric that each stage has.

    Attributes:
        name: The name, with dots between its words.
        unit: The unit as a UCUM code: ``s``, ``By``, or a counted thing in braces: ``{row}``.
        text: One sentence about the metric.
        values: Returns the values of the metric for a stage, as a dict with label values as keys.
        label: The name of the label that tells these values apart. Empty: there is only one value.
        grows: Whether the metric is a counter, which never decreases while a job runs.
    """

    name: str
    unit: str
    text: str
    values: Callable[[StageMetrics], Mapping[str, float]]
    label: str = ""
    grows: bool = True


def _single(of: Callable[[StageMetrics], float]) -> Callable[[StageMetrics], Mapping[str, float]]:
    return lambda stage: {"": of(stage)}


METRIC_SPECS: Final = (
    MetricSpec("rstreams.rows.in", "{row}", "Rows that were read.", _single(lambda s: s.rows_in)),
    MetricSpec("rstreams.rows.out", "{row}", "Rows that have left.", _single(lambda s: s.rows_out)),
    MetricSpec(
        "rstreams.calls",
        "{call}",
        "Calls of the function, each once, however many attempts it took.",
        _single(lambda s: s.calls),
    ),
    MetricSpec(
        "rstreams.attempts",
        "{attempt}",
        "Attempts of calls that the service saw, also of tasks that do not count.",
        _single(lambda s: s.attempts + s.repeated_attempts),
    ),
    MetricSpec(
        "rstreams.hits",
        "{row}",
        "Rows that were answered without a call of their own.",
        lambda s: {"cache": s.cache_hits, "journal": s.journal_hits, "shared": s.shared},
        "source",
    ),
    MetricSpec(
        "rstreams.retries",
        "{attempt}",
        "Further attempts, after a failure or because the service asked to wait.",
        lambda s: {"failure": s.retries, "service": s.throttled},
        "cause",
    ),
    MetricSpec(
        "rstreams.failures",
        "{call}",
        "Calls that failed in the end, by the type of the exception.",
        lambda s: s.failure_types,
        "type",
    ),
    MetricSpec(
        "rstreams.timeouts",
        "{attempt}",
        "Attempts that exceeded the time-out, and calls that exceeded the deadline.",
        _single(lambda s: s.timeouts),
    ),
    MetricSpec(
        "rstreams.refused",
        "{attempt}",
        "Attempts that an open circuit did not make.",
        _single(lambda s: s.refused),
    ),
    MetricSpec(
        "rstreams.call.waits",
        "s",
        "Seconds that calls waited, of all calls together.",
        lambda s: {
            "limit": s.waited_limit,
            "service": s.waited_service,
            "retry": s.waited_retry,
        },
        "cause",
    ),
    MetricSpec(
        "rstreams.task.waits",
        "s",
        "Seconds that tasks waited, of all tasks together.",
        lambda s: {
            "upstream": s.waiting_upstream,
            "function": s.waiting_function,
            "downstream": s.waiting_downstream,
        },
        "cause",
    ),
    MetricSpec(
        "rstreams.circuit.open",
        "s",
        "Seconds in which the circuit was open.",
        _single(lambda s: s.circuit_open),
    ),
    MetricSpec(
        "rstreams.spent",
        "1",
        "What the attempts have spent, by its unit.",
        lambda s: s.spent,
        "unit",
    ),
    MetricSpec(
        "rstreams.calls.running",
        "{call}",
        "Calls that run now.",
        _single(lambda s: s.running),
        grows=False,
    ),
    MetricSpec(
        "rstreams.rows.pending",
        "{row}",
        "Rows whose call was made, and which have not left.",
        _single(lambda s: s.pending),
        grows=False,
    ),
    MetricSpec(
        "rstreams.buffered",
        "By",
        "Bytes of input held now.",
        _single(lambda s: s.buffered_bytes),
        grows=False,
    ),
    MetricSpec(
        "rstreams.partitions",
        "{partition}",
        "Partitions that have begun.",
        _single(lambda s: s.partitions),
    ),
)

DURATION: Final = MetricSpec(
    "rstreams.attempt.duration",
    "s",
    "Seconds of attempts. Each measured attempt stands for those before it.",
    lambda _: {},
)
"""Describes the histogram of durations. ``values`` is unused: ``Histogram`` has the counts."""

FIRST_OCTAVE: Final = -10

BOUNDS: Final = tuple(2.0**octave for octave in range(FIRST_OCTAVE, 9))
"""The bounds of the histogram's buckets in seconds, from 1 ms to 256 s. Each bound is also a bound
of a bucket of ``StageMetrics.latencies``, so the counts are exact."""


class Point(NamedTuple):
    """A value of a metric: for one stage and, if the metric has a label, for one label value."""

    stage: str
    label_value: str
    """Empty if the metric has no label."""
    value: float


class Histogram(NamedTuple):
    """The number of attempts of a stage by duration.

    ``counts`` has the number of attempts in each bucket. A bucket ends at each of ``BOUNDS``; the
    last bucket has no end. ``seconds`` is the sum of the durations, exact to 5 %.
    """

    stage: str
    counts: tuple[int, ...]
    seconds: float


class Reading(NamedTuple):
    """The metrics of all stages at one time."""

    metrics: list[tuple[MetricSpec, list[Point]]]
    durations: list[Histogram]


class MetricReader:
    """Turns the totals of stages into a ``Reading``, in which counters never decrease. Thread-safe.

    A total of a stage decreases when a new task attempt replaces the attempt of a killed task. A
    system such as Prometheus would then assume that a new process counts from zero. So a counter
    keeps its largest value until the total exceeds this value.
    """

    def __init__(self) -> None:
        self._largest: dict[tuple[str, str], dict[Any, float]] = {}
        """By metric and stage: the largest value so far for each label value or bucket."""
        self._lock = threading.Lock()

    def read(self, stages: Iterable[StageMetrics]) -> Reading:
        """Return the metrics of ``stages``: each element contains the totals of one stage."""
        stages = list(stages)
        with self._lock:
            return Reading(
                [(spec, list(self._points(spec, stages))) for spec in METRIC_SPECS],
                [self._histogram(stage) for stage in stages],
            )

    def _points(self, spec: MetricSpec, stages: list[StageMetrics]) -> Iterator[Point]:
        for stage in stages:
            values = spec.values(stage)
            if spec.grows:
                values = self._never_decreasing(spec, stage, values)
            for label_value, value in sorted(values.items()):
                yield Point(stage.stage, label_value, value)

    def _never_decreasing(
        self, spec: MetricSpec, stage: StageMetrics, values: Mapping[Any, float]
    ) -> dict[Any, float]:
        most = self._largest.setdefault((spec.name, stage.stage), {})
        for label, value in values.items():
            most[label] = max(value, most.get(label, 0))
        return most

    def _histogram(self, stage: StageMetrics) -> Histogram:
        counts = [0] * (len(BOUNDS) + 1)
        grown = self._never_decreasing(DURATION, stage, stage.latencies)
        for bucket, count in grown.items():
            past = bucket - PER_OCTAVE * FIRST_OCTAVE
            counts[min(max(past // PER_OCTAVE + 1, 0), len(BOUNDS))] += int(count)
        return Histogram(stage.stage, tuple(counts), total_seconds(grown))
