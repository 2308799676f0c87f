"""Converts the metric samples of a Spark job to data for the charts of the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rstreams_fast.spark.report.samples import Sample, rates
from rstreams_fast.spark.report.waits import CAUSES

__all__ = ["charts_of"]

_MIB: Final = 1 << 20

LEAST_SHARE: Final = 0.01
"""A cause of waiting is in the chart only if it takes this fraction of the time at some moment."""

Values = Sequence[float | None]


@dataclass(frozen=True)
class _Line:
    """A line of a chart. If ``bound`` is true, it bounds the line with the same ``style``."""

    label: str
    style: int
    values: Values
    bound: bool = False


def charts_of(samples: Sequence[Sample], *, most: int | None = None) -> list[dict[str, Any]]:
    """Return the charts: rates, calls in flight, causes of waiting, and bytes of input in memory.

    Args:
        samples: Samples of a ``Watch``.
        most: The maximum number of samples to show. Default: all samples.
    """
    samples = list(samples)  # a copy: ``Watch.look`` may append on another thread
    if most is not None and len(samples) > most:
        samples = samples[:: -(len(samples) // most + 1)][::-1]  # the latest sample is kept
    stages = list(samples[-1].calls) if samples else []
    seconds = [round(sample.seconds, 2) for sample in samples]

    def chart(title: str, unit: str, lines: Sequence[_Line], **words: Any) -> dict[str, Any]:
        return {
            "title": title,
            "unit": unit,
            "series": [
                {"label": line.label, "style": line.style, "bound": line.bound} for line in lines
            ],
            "data": [
                seconds,
                *([None if v is None else round(v, 3) for v in line.values] for line in lines),
            ],
            **words,
        }

    def values_of(name: str, stage: str) -> list[int]:
        return [getattr(sample, name).get(stage, 0) for sample in samples]

    speed = [_Line("rows out", 0, rates(samples, [sample.rows for sample in samples]))]
    running, held = [], []
    for style, stage in enumerate(stages, 1):
        speed.append(_Line(f"calls of {stage}", style, rates(samples, values_of("calls", stage))))
        if any(failures := values_of("failures", stage)):
            label = f"failures of {stage}"
            speed.append(_Line(label, style + len(stages), rates(samples, failures)))
        running.append(_Line(stage, style, values_of("running", stage)))
        bound = values_of("most_running", stage)
        running.append(_Line(f"bound of {stage}", style, bound, bound=True))
        held.append(_Line(stage, style, [size / _MIB for size in values_of("buffered", stage)]))
    return [
        chart("Throughput", "per second", speed),
        chart("Calls in flight", "calls", running),
        chart("What holds the calls back", "% of the task time", _wait_lines(samples), top=100),
        chart("Input held", "MiB", held),
    ]


def _wait_lines(samples: Sequence[Sample]) -> list[_Line]:
    """Return a line for each cause of waiting: its percentage of the task time of all stages.

    Each point is a mean over the second before its sample.
    """
    shares: dict[str, list[float | None]] = {cause: [] for cause in CAUSES}
    first = 0
    for index, sample in enumerate(samples):
        while first < index - 1 and sample.seconds - samples[first].seconds > 1:
            first += 1
        before = samples[first].times
        spent = dict.fromkeys(CAUSES, 0.0)
        for stage, time in sample.times.items():
            recent = time.since(before[stage]) if stage in before else time
            for cause, seconds in recent.by_cause().items():
                spent[cause] += seconds
        total = sum(spent.values())
        for cause, line in shares.items():
            line.append(100 * spent[cause] / total if total else None)
    return [
        _Line(CAUSES[cause], style, line)
        for style, (cause, line) in enumerate(shares.items())
        if max((share or 0.0 for share in line), default=0.0) >= 100 * LEAST_SHARE
    ]
