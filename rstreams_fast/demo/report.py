"""The end of a run, for people: tables on the terminal, a picture, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from rstreams_fast.demo import answers, job
from rstreams_fast.demo.progress import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rstreams_fast.demo.run import Options, Outcome
    from rstreams_fast.demo.watch import Sample

__all__ = ["draw", "print_report", "write_json"]

PICTURE_NAME: Final = "report.png"
JSON_NAME: Final = "report.json"

NAMES: Final = dict(zip(job.STAGES, ("weather", "plane"), strict=True))
"""What the stages are called in the report."""


def write_json(options: Options, outcome: Outcome, samples: Sequence[Sample]) -> Path:
    """Write all that is known to ``report.json``, for programs."""
    path = options.output / JSON_NAME
    everything = {
        "options": asdict(options),
        **asdict(outcome),
        "agree": outcome.proof.agree,
        "samples": [asdict(sample) for sample in samples],
    }
    path.write_text(json.dumps(everything, indent=1, default=str), encoding="utf-8")
    return path


# -- tables ----------------------------------------------------------------------------------------


def print_report(console: Console, options: Options, outcome: Outcome) -> None:
    """Print the tables: the run, the bounds, the answers, the proof."""
    _print_table(
        console,
        f"{outcome.rows:,} flights enriched in {outcome.seconds:.1f} s "
        f"({outcome.rows / outcome.seconds:,.0f} rows/s)",
        _run_table(outcome),
    )
    _print_table(
        console,
        f"High-water marks and bounds, per task and stage; {outcome.tasks} tasks at once",
        _bounds_table(options, outcome),
    )
    stages, tasks, each = len(job.STAGES), outcome.tasks, options.bounds.concurrency
    console.print(
        f"Limits are per stage and task: for the service that is {stages} stages × {tasks} tasks × "
        f"{each} look-ups = {stages * tasks * each:,}.",
        highlight=False,
        style="dim",
    )
    delay = "Mean departure delay in minutes (flights)"
    _print_table(
        console, f"{delay}, by wind and visibility", _weather_table(outcome.answers.weather)
    )
    _print_table(console, f"{delay}, by the age of the plane", _age_table(outcome.answers.age))
    console.print()
    for line in _proof_lines(outcome):
        console.print(line, highlight=False)


def _print_table(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(title, style="bold", highlight=False)
    console.print(table)


def _run_table(outcome: Outcome) -> Table:
    stages = [outcome.stages[name] for name in job.STAGES]
    table = Table()
    table.add_column("", no_wrap=True)
    for name in job.STAGES:
        table.add_column(NAMES[name], justify="right")
    rows: list[tuple[str, list[str]]] = [
        ("rows", [f"{s.rows_out:,}" for s in stages]),
        ("look-ups made", [f"{s.calls:,}" for s in stages]),
        ("shared one in flight", [f"{s.rows_in - s.skipped - s.calls:,}" for s in stages]),
        ("no key, no look-up", [f"{s.skipped:,}" for s in stages]),
        ("misses (rows)", [f"{s.nulls:,}" for s in stages]),
        ("task seconds", [f"{s.seconds:.1f}" for s in stages]),
        ("  waiting on upstream", [f"{s.waiting_upstream:.1f}" for s in stages]),
        ("  waiting on look-ups", [f"{s.waiting_function:.1f}" for s in stages]),
        ("  waiting on downstream", [f"{s.waiting_downstream:.1f}" for s in stages]),
    ]
    for label, values in rows:
        table.add_row(label, *values)
    return table


def _bounds_table(options: Options, outcome: Outcome) -> Table:
    tasks, concurrency = outcome.tasks, options.bounds.concurrency
    table = Table()
    table.add_column("", no_wrap=True)
    table.add_column("most", justify="right")
    table.add_column("bound", justify="right")
    for name in job.STAGES:
        stage = outcome.stages[name]
        label = NAMES[name]
        table.add_row(
            f"{label}: look-ups in flight", f"{stage.max_running:,}", f"{stage.concurrency:,}"
        )
        table.add_row(
            f"{label}: rows in the window", f"{stage.max_pending:,}", f"{stage.max_pending_rows:,}"
        )
        table.add_row(
            f"{label}: bytes of input held",
            human_bytes(stage.max_buffered_bytes),
            human_bytes(stage.max_buffer_bytes),
        )
    table.add_section()
    table.add_row(
        "requests held at once, counted by the service",
        f"{outcome.service['max_held']:,}",
        f"{len(job.STAGES) * tasks * concurrency:,}",
    )
    return table


def _weather_table(cells: list[answers.Cell]) -> Table:
    table = Table()
    wind, visibility = answers.WIND, answers.VISIBILITY
    table.add_column(f"wind, {wind.unit}", no_wrap=True)
    shown = {cell.place: cell for cell in cells}
    for label in visibility.labels:
        table.add_column(
            f"{label} {'' if label == answers.UNKNOWN else visibility.unit}", justify="right"
        )
    for row, label in enumerate(wind.labels):
        table.add_row(
            label, *(_cell(shown.get((row, column))) for column in range(len(visibility.labels)))
        )
    return table


def _age_table(cells: list[answers.Cell]) -> Table:
    table = Table()
    shown = {cell.place: cell for cell in cells}
    for label in answers.AGE.labels:
        table.add_column(
            label if label == answers.UNKNOWN else f"{label} {answers.AGE.unit}", justify="right"
        )
    table.add_row(*(_cell(shown.get((place,))) for place in range(len(answers.AGE.labels))))
    return table


def _cell(cell: answers.Cell | None) -> str:
    if cell is None:
        return ""
    minutes = "-" if cell.minutes is None else f"{cell.minutes:.1f}"
    return f"{minutes} ({cell.flights:,})"


def _proof_lines(outcome: Outcome) -> list[str]:
    found = outcome.proof
    mark = {True: "[green]✓[/]", False: "[bold red]✗[/]"}
    same = not found.missing and not found.surplus
    return [
        f"{mark[same]} {found.agree:,} of {found.expected:,} rows agree with the plain SQL join"
        + ("" if same else f"; missing {found.missing:,}, surplus {found.surplus:,}"),
        f"{mark[found.in_order]} the rows are "
        + ("" if found.in_order else "NOT ")
        + "in the order of the input",
    ]


# -- the picture -----------------------------------------------------------------------------------

_COLOURS: Final = dict(zip(job.STAGES, ("#1f77b4", "#e07b39"), strict=True))
_ROWS_COLOUR: Final = "#2a9d8f"
_MIB: Final = 1 << 20


def draw(options: Options, outcome: Outcome, samples: Sequence[Sample]) -> Path:
    """Draw ``report.png``: throughput, look-ups in flight and bytes held, over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    path = options.output / PICTURE_NAME
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "axes.grid": True}):
        figure, axes = plt.subplots(
            3, 1, figsize=(10, 9), sharex=True, height_ratios=(1.25, 1, 1), layout="constrained"
        )
        figure.suptitle(
            f"{outcome.rows:,} flights, {outcome.service['requests']:,} HTTP look-ups, "
            f"{outcome.seconds:.1f} s",
            fontsize=14,
            fontweight="bold",
        )
        _draw_throughput(axes[0], samples)
        _draw_in_flight(axes[1], options, outcome, samples)
        _draw_bytes(axes[2], options, outcome, samples)
        axes[2].set_xlabel("seconds since the job began")
        for axis in axes:
            axis.set_ylim(bottom=0)
            axis.margins(x=0)
            axis.grid(color="#e6e6e6", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


def _rates(samples: Sequence[Sample], counts: Sequence[int]) -> tuple[list[float], list[float]]:
    """Per-second rates, each over the samples of about a second before it."""
    times, rates = [], []
    first = 0
    for index, sample in enumerate(samples):
        while first < index - 1 and sample.seconds - samples[first].seconds > 1:
            first += 1
        elapsed = sample.seconds - samples[first].seconds
        if elapsed > 0:
            times.append(sample.seconds)
            rates.append((counts[index] - counts[first]) / elapsed)
    return times, rates


def _draw_throughput(axis: Axes, samples: Sequence[Sample]) -> None:
    axis.set_title("Throughput", loc="left")
    axis.set_ylabel("per second")
    times, rates = _rates(samples, [sample.rows for sample in samples])
    axis.fill_between(times, rates, color=_ROWS_COLOUR, alpha=0.18, linewidth=0)
    axis.plot(times, rates, color=_ROWS_COLOUR, linewidth=1.8, label="rows out")
    for name in job.STAGES:
        times, rates = _rates(samples, [sample.calls[name] for sample in samples])
        axis.plot(
            times, rates, color=_COLOURS[name], linewidth=1.1, label=f"{NAMES[name]} look-ups"
        )


def _draw_in_flight(
    axis: Axes, options: Options, outcome: Outcome, samples: Sequence[Sample]
) -> None:
    axis.set_title("Look-ups in flight", loc="left")
    axis.set_ylabel("look-ups")
    times = [sample.seconds for sample in samples]
    for name in job.STAGES:
        running = [sample.running[name] for sample in samples]
        axis.plot(times, running, color=_COLOURS[name], linewidth=1.3, label=NAMES[name])
    bound = outcome.tasks * options.bounds.concurrency
    axis.axhline(bound, color="#555555", linestyle="--", linewidth=1)
    axis.plot([], [], color="#555555", linestyle="--", label=f"bound of each\n({bound})")


def _draw_bytes(axis: Axes, options: Options, outcome: Outcome, samples: Sequence[Sample]) -> None:
    axis.set_title("Input held by the stages", loc="left")
    axis.set_ylabel("MiB")
    times = [sample.seconds for sample in samples]
    for name in job.STAGES:
        held = [sample.buffered[name] / _MIB for sample in samples]
        axis.fill_between(times, held, color=_COLOURS[name], alpha=0.15, linewidth=0)
        axis.plot(times, held, color=_COLOURS[name], linewidth=1.3, label=NAMES[name])
    bound = outcome.tasks * options.bounds.max_buffer_bytes / _MIB
    axis.axhline(bound, color="#555555", linestyle="--", linewidth=1)
    axis.plot([], [], color="#555555", linestyle="--", label=f"bound of each\n({bound:g} MiB)")
