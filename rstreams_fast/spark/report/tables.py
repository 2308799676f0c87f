"""Tables of the metrics of stages: work and waiting times, and high-water marks beside bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rstreams_fast.spark.report.notebook import ShownTable, say, show
from rstreams_fast.spark.report.waits import advise
from rstreams_fast.spark.runs import NEVER_RAN
from rstreams_fast.spark.stage_metrics import StageMetrics, number_text

__all__ = [
    "bounds_table",
    "human_bytes",
    "latencies",
    "print_table",
    "print_tables",
    "print_tables_of",
    "work_table",
]

_KIB: Final = 1024

MOST_TYPES: Final = 3
"""The table shows the counts of at most this many types of exceptions."""

SHARES: Final = (0.5, 0.95, 0.99)
"""The quantiles of the latency of attempts that the table shows."""


def _failures_text(stage: StageMetrics) -> str:
    kinds = sorted(stage.failure_types.items(), key=lambda kind: -kind[1])
    types = ", ".join(f"{kind} {count:,}" for kind, count in kinds[:MOST_TYPES])
    return f"{stage.failures:,}" + (f" ({types})" if types else "")


def _blocked_text(stage: StageMetrics) -> str:
    places = sorted(stage.blocked_at, key=lambda place: -stage.blocked_at[place])
    return f"{stage.blocked:.1f}" + (f" ({places[0]})" if places else "")


def _spent_text(stage: StageMetrics) -> str:
    units = sorted(stage.spent.items())
    made = max(stage.attempts, 1)
    return (
        ", ".join(
            f"{number_text(of, 6)} {unit} ({number_text(of / made, 3)} each)" for unit, of in units
        )
        or "0"
    )


def latencies(stage: StageMetrics) -> str:
    """Return the 50th, 95th and 99th percentile of the seconds of an attempt, as a text.

    Args:
        stage: The metrics of the stage.
    """
    return ", ".join(f"{stage.latency(share):.3g}" for share in SHARES)


_WORK: Final[dict[str, Callable[[StageMetrics], str]]] = {
    "rows": lambda s: NEVER_RAN if s.state == NEVER_RAN else f"{s.rows_out:,}",
    "  answered by cache, journal": lambda s: f"{s.cache_hits:,}, {s.journal_hits:,}",
    "  shared one in flight": lambda s: f"{s.shared:,}",
    "  no key, no call": lambda s: f"{s.skipped:,}",
    "  nulls": lambda s: f"{s.nulls:,}",
    "calls": lambda s: f"{s.calls:,}",
    "  failed": _failures_text,
    "attempts (the service saw them)": lambda s: f"{s.attempts:,}",
    "  of tasks that do not count": lambda s: f"{s.repeated_attempts:,}",
    "  retries, told to wait": lambda s: f"{s.retries:,}, {s.throttled:,}",
    "  time-outs, refused by circuit": lambda s: f"{s.timeouts:,}, {s.refused:,}",
    "  seconds: p50, p95, p99": latencies,
    "  spent": _spent_text,
    "call seconds waiting for limit": lambda s: f"{s.waited_limit:.1f}",
    "  for service (RetryAfter)": lambda s: f"{s.waited_service:.1f}",
    "  for retry": lambda s: f"{s.waited_retry:.1f}",
    "seconds with an open circuit": lambda s: f"{s.circuit_open:.1f}",
    "task seconds": lambda s: f"{s.seconds:.1f}",
    "  waiting on upstream": lambda s: f"{s.waiting_upstream:.1f}",
    "  waiting on calls": lambda s: f"{s.waiting_function:.1f}",
    "    the function kept the loop": _blocked_text,
    "  waiting on downstream": lambda s: f"{s.waiting_downstream:.1f}",
}


def human_bytes(count: float) -> str:
    """Return a number of bytes as a text with a unit, such as ``3.1 MiB``.

    Args:
        count: The number of bytes.
    """
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KIB
    return f"{count:.1f} GiB"


def print_table(console: Console, title: str, table: Table) -> None:
    """Print a title and a table; in a notebook, show them as HTML.

    Args:
        console: A console of rich.
        title: The title.
        table: A table of rich.
    """
    if console.is_jupyter and not console.quiet:
        show(title, table)
        return
    console.print()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)


def print_tables(console: Console, stages: Mapping[str, StageMetrics], seconds: float) -> None:
    """Print the main cause of waiting, then the tables of work and of bounds.

    Args:
        console: A console of rich.
        stages: The metrics of the stages, by the names to show.
        seconds: How long the action took.
    """
    rows = list(stages.values())[-1].rows_out if stages else 0
    print_tables_of(console, stages, rows, seconds)


def print_tables_of(
    console: Console, stages: Mapping[str, StageMetrics], rows: int, seconds: float
) -> None:
    """Print the tables of ``print_tables`` for an action that passed on this number of ``rows``."""
    if console.is_jupyter and not console.quiet:
        say(advise(stages))
    else:
        console.print()
        console.print(advise(stages), markup=False, highlight=False)
    print_table(
        console,
        f"{rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 1e-9):,.0f} rows/s)",
        work_table(stages),
    )
    print_table(console, "High-water marks and bounds, per task and stage", bounds_table(stages))


def work_table(stages: Mapping[str, StageMetrics]) -> Table:
    """Return a table of the counts and the waiting times of each stage.

    Args:
        stages: The metrics of the stages, by the names to show.
    """
    table = ShownTable()
    table.add_column("", no_wrap=True)
    for name in stages:
        table.add_column(Text(name), justify="right")
    for label, text in _WORK.items():
        table.add_row(label, *(Text(text(stage)) for stage in stages.values()))
    return table


def bounds_table(stages: Mapping[str, StageMetrics]) -> Table:
    """Return a table of the highest values that a stage had in one task, beside their bounds.

    Args:
        stages: The metrics of the stages, by the names to show.
    """
    table = ShownTable()
    table.add_column("", no_wrap=True)
    table.add_column("most", justify="right")
    table.add_column("bound", justify="right")
    for name, s in stages.items():
        table.add_row(Text(f"{name}: calls in flight"), f"{s.max_running:,}", f"{s.concurrency:,}")
        if s.max_pending_rows:
            table.add_row(
                Text(f"{name}: rows in the window"), f"{s.max_pending:,}", f"{s.max_pending_rows:,}"
            )
        table.add_row(
            Text(f"{name}: bytes of input held"),
            human_bytes(s.max_buffered_bytes),
            human_bytes(s.max_buffer_bytes),
        )
    return table
