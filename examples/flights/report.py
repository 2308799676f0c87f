"""The end of a run, for people: tables, a picture, a page, and the same as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from examples.flights import answers
from examples.flights.run import Options, Outcome
from rstreams_fast.spark.report import (
    Watch,
    bounds_table,
    draw,
    print_table,
    work_table,
    write_page,
)

__all__ = ["report"]


def report(console: Console, options: Options, outcome: Outcome, watch: Watch) -> None:
    """Print the run, the bounds, the answers, the proof; write them to the output directory."""
    stages = outcome.stages
    each, tasks = options.bounds, outcome.tasks
    most = len(stages) * tasks * each.concurrency
    bounds = bounds_table(stages)
    bounds.add_section()
    bounds.add_row(
        "requests held at once, counted by the service",
        f"{outcome.service['max_held']:,}",
        f"{most:,}",
    )
    title = (
        f"{outcome.rows:,} flights enriched in {outcome.seconds:.1f} s "
        f"({outcome.rows / outcome.seconds:,.0f} rows/s)"
    )
    delay = "Mean departure delay in minutes (flights)"
    tables = [
        (title, work_table(stages)),
        (f"High-water marks and bounds, per task and stage; {tasks} tasks at once", bounds),
        (f"{delay}, by wind and visibility", _weather_table(outcome.answers.weather)),
        (f"{delay}, by the age of the plane", _age_table(outcome.answers.age)),
    ]
    for heading, table in tables:
        print_table(console, heading, table)
        if table is bounds:
            console.print(
                f"Limits are per stage and task: for the service that is {len(stages)} stages × "
                f"{tasks} tasks × {each.concurrency} look-ups = {most:,}.",
                highlight=False,
                style="dim",
            )
    console.print()
    for line in _proof_lines(outcome):
        console.print(line, highlight=False)

    output = options.output
    picture = draw(
        watch.samples,
        output / "report.png",
        title=f"{outcome.rows:,} flights, {outcome.service['requests']:,} HTTP look-ups, "
        f"{outcome.seconds:.1f} s",
        most_running=tasks * each.concurrency,
        most_bytes=tasks * each.max_buffer_bytes,
    )
    page = write_page(output / "report.html", watch, title=title, tables=tables)
    summary = output / "report.json"
    everything = {
        "options": asdict(options),
        **asdict(outcome),
        "agree": outcome.proof.agree,
        "samples": [asdict(sample) for sample in watch.samples],
    }
    summary.write_text(json.dumps(everything, indent=1, default=str), encoding="utf-8")
    console.print()
    for label, path in (
        ("Enriched flights", outcome.output),
        ("Picture", picture),
        ("Report", page),
        ("All figures", summary),
    ):
        console.print(f"{label}: {path}", soft_wrap=True, highlight=False)


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
