"""Formats metrics as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from rstreams_fast.spark.telemetry.metric_reader import (
    BOUNDS,
    DURATION,
    Histogram,
    MetricSpec,
    Reading,
)

__all__ = ["prometheus_text"]

_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


def prometheus_text(reading: Reading) -> str:
    """Return the metrics of ``reading`` in Prometheus' text exposition format, version 0.0.4."""
    lines: list[str] = []
    for spec, points in reading.metrics:
        name = _name_of(spec)
        samples = [
            f"{name}{_labels(stage=stage, **{spec.label or 'type': label_value})} {value}"
            for stage, label_value, value in points
        ]
        if samples:
            lines += [*_header_lines(name, spec, "counter" if spec.grows else "gauge"), *samples]
    if reading.durations:
        name = _name_of(DURATION).removesuffix("_total")
        lines += _header_lines(name, DURATION, "histogram")
        for histogram in reading.durations:
            lines += _buckets(name, histogram)
    return "".join(f"{line}\n" for line in lines)


def _name_of(spec: MetricSpec) -> str:
    suffix = _SUFFIXES.get(spec.unit, "") + ("_total" if spec.grows else "")
    return spec.name.replace(".", "_") + suffix


def _header_lines(name: str, spec: MetricSpec, kind: str) -> list[str]:
    return [f"# HELP {name} {spec.text}", f"# TYPE {name} {kind}"]


def _buckets(name: str, histogram: Histogram) -> Iterator[str]:
    bounds = [*map(str, BOUNDS), "+Inf"]
    up_to = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, up_to, strict=True):
        yield f"{name}_bucket{_labels(stage=histogram.stage, le=bound)} {count}"
    labels = _labels(stage=histogram.stage)
    yield f"{name}_sum{labels} {histogram.seconds}"
    yield f"{name}_count{labels} {up_to[-1]}"


def _labels(**labels: str) -> str:
    pairs = [f'{name}="{_escape(value)}"' for name, value in labels.items() if value]
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
