"""Draws a picture of a job: throughput, calls in flight and bytes of input over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rstreams_fast._third_parties import importing
from rstreams_fast.spark.report.samples import Sample, rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_COLOURS: Final = ("#1f77b4", "#e07b39", "#7b5ea7", "#b03a5b", "#5a7d2b")
_ROWS_COLOUR: Final = "#2a9d8f"
_MIB: Final = 1 << 20


def draw(
    samples: Sequence[Sample],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    most_running: int | None = None,
    most_bytes: int | None = None,
) -> Path:
    """Draw rows per second, calls in flight and bytes of input over time, and save the picture.

    Args:
        samples: The ``samples`` of a ``Watch``.
        path: The file to write. Its suffix decides the format: PNG, SVG or PDF.
        title: The heading of the picture.
        most_running: The bound on the calls of each stage, summed over all tasks; drawn as a line.
        most_bytes: The bound on the bytes of each stage, summed over all tasks; drawn as a line.

    Returns:
        The path of the file.
    """
    with importing("matplotlib", "draw", "'rstreams_fast[report]'"):
        import matplotlib as mpl
        import numpy as np

        # Do not use pyplot: it changes the backend of the whole process, which a notebook uses to
        # show its own plots.
        from matplotlib.figure import Figure

    stages = list(samples[-1].calls if samples else ())
    colours = {stage: _COLOURS[i % len(_COLOURS)] for i, stage in enumerate(stages)}
    times = [sample.seconds for sample in samples]

    def bound(axis: Axes, value: float | None, label: str) -> None:
        if value is not None:
            axis.axhline(value, color="#555555", linestyle="--", linewidth=1)
            axis.plot([], [], color="#555555", linestyle="--", label=f"bound of each\n({label})")

    with mpl.rc_context(
        {
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "axes.grid": True,
            "text.parse_math": False,  # show "$" as a dollar sign, not as a formula
        }
    ):
        figure = Figure(figsize=(10, 9), layout="constrained")
        speed, running, held = figure.subplots(3, 1, sharex=True, height_ratios=(1.25, 1, 1))
        figure.suptitle(title, fontsize=14, fontweight="bold")

        speed.set_title("Throughput", loc="left")
        speed.set_ylabel("per second")
        per_second = np.array(rates(samples, [sample.rows for sample in samples]), float)
        speed.fill_between(times, per_second, color=_ROWS_COLOUR, alpha=0.18, linewidth=0)
        speed.plot(times, per_second, color=_ROWS_COLOUR, linewidth=1.8, label="rows out")
        running.set_title("Calls in flight", loc="left")
        running.set_ylabel("calls")
        held.set_title("Input held by the stages", loc="left")
        held.set_ylabel("MiB")
        for stage, colour in colours.items():
            # matplotlib omits labels with a leading underscore from the legend, so put a space
            # before.
            label = f" {stage}" if stage.startswith("_") else stage
            calls = [sample.calls.get(stage, 0) for sample in samples]
            per_second = np.array(rates(samples, calls), float)
            speed.plot(times, per_second, color=colour, linewidth=1.1, label=f"{label} calls")
            in_flight = [sample.running.get(stage, 0) for sample in samples]
            running.plot(times, in_flight, color=colour, linewidth=1.3, label=label)
            mib = [sample.buffered.get(stage, 0) / _MIB for sample in samples]
            held.fill_between(times, mib, color=colour, alpha=0.15, linewidth=0)
            held.plot(times, mib, color=colour, linewidth=1.3, label=label)
        bound(running, most_running, f"{most_running}")
        if most_bytes is not None:
            bound(held, most_bytes / _MIB, f"{most_bytes / _MIB:g} MiB")
        held.set_xlabel("seconds since the job began")
        for axis in (speed, running, held):
            axis.set_ylim(bottom=0)
            axis.margins(x=0)
            axis.grid(color="#e6e6e6", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        figure.savefig(path, dpi=130)
    return Path(path)
