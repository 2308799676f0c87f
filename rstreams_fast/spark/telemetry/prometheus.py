"""Writes figures in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from rstreams_fast.spark.telemetry.figures import BOUNDS, DURATION, Figure, Histogram, Reading

__all__ = ["text_of"]

_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


def text_of(reading: Reading) -> str:
    """Return the figures in Prometheus' text exposition format, version 0.0.4."""
    lines: list[str] = []
    for figure, points in reading.figures:
        name = _name_of(figure)
        samples = [
            f"{name}{_labels(stage=stage, **{figure.label or 'type': label})} {value}"
            for stage, label, value in points
        ]
        if samples:
            lines += [*_head(name, figure, "counter" if figure.grows else "gauge"), *samples]
    if reading.durations:
        name = _name_of(DURATION).removesuffix("_total")
        lines += _head(name, DURATION, "histogram")
        for histogram in reading.durations:
            lines += _buckets(name, histogram)
    return "".join(f"{line}\n" for line in lines)


def _name_of(figure: Figure) -> str:
    suffix = _SUFFIXES.get(figure.unit, "") + ("_total" if figure.grows else "")
    return figure.name.replace(".", "_") + suffix


def _head(name: str, figure: Figure, kind: str) -> list[str]:
    return [f"# HELP {name} {figure.text}", f"# TYPE {name} {kind}"]


def _buckets(name: str, histogram: Histogram) -> Iterator[str]:
    bounds = [*map(str, BOUNDS), "+Inf"]
    up_to = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, up_to, strict=True):
        yield f"{name}_bucket{_labels(stage=histogram.stage, le=bound)} {count}"
    labels = _labels(stage=histogram.stage)
    yield f"{name}_sum{labels} {histogram.seconds}"
    yield f"{name}_count{labels} {up_to[-1]}"


def _labels(**labels: str) -> str:
    given = [f'{name}="{_escaped(value)}"' for name, value in labels.items() if value]
    return "{" + ",".join(given) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
