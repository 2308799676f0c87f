"""Makes an HTML page about a Spark job: its main cause of waiting, figures, charts and tables."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from rich.table import Table

from rstreams_fast.spark.report.charts import charts_of
from rstreams_fast.spark.report.html import html_of, html_table
from rstreams_fast.spark.report.samples import Sample, Watch
from rstreams_fast.spark.report.tables import bounds_table, human_bytes, latencies, work_table
from rstreams_fast.spark.report.waits import CAUSES, TaskTime, advise

__all__ = ["ENDED", "FAILED", "RUNNING", "TITLE", "Page", "write_page"]

TITLE: Final = "Spark job"

BOUNDS: Final = "High-water marks and bounds, per task and stage"

MOST_LIVE: Final = 300
"""The maximum number of samples in each chart of a live page. The server sends all of them twice a
second."""

RECENT_TASK_TIME: Final = "the task time of the last ten seconds"
WHOLE_TASK_TIME: Final = "the task time of the whole run"

RUNNING: Final = "Running for"
ENDED: Final = "Ended after"
FAILED: Final = "Failed after"

_SECTION: Final = """\
<section>
<h2>{heading}</h2>
<div class="scroll" id="table-{index}" tabindex="0" role="region" aria-label="{heading}">
{table}
</div>
</section>"""


def write_page(
    path: str | os.PathLike[str],
    watch: Watch,
    *,
    title: str = TITLE,
    tables: Sequence[tuple[str, Table]] | None = None,
) -> Path:
    """Write an HTML page about a job: its main cause of waiting, charts over time, and tables.

    The charts show values under the mouse, and can be zoomed. The file loads no other files.

    Args:
        path: The file to write.
        watch: The ``Watch`` that sampled the metrics of the job.
        title: The heading of the page.
        tables: Tables of rich, each with its heading. Default: the tables of work and of bounds.

    Returns:
        The path of the file.
    """
    target = Path(path)
    target.write_text(Page(watch, title, tables=tables).document(), encoding="utf-8")
    return target


class Page:
    """An HTML page about a job, with the latest metrics. Any thread may call its methods.

    Args:
        watch: The ``Watch`` that samples the metrics of the job. Another thread may call ``look``.
        title: The heading of the page.
        rows: The number of rows of the whole job, if it is known.
        tables: As for ``write_page``.
    """

    def __init__(
        self,
        watch: Watch,
        title: str,
        *,
        rows: int | None = None,
        tables: Sequence[tuple[str, Table]] | None = None,
    ) -> None:
        self._watch = watch
        self._title = title
        self._rows = rows
        self._tables = tables

    def document(self, *, live: bool = False) -> str:
        """Return the whole HTML document.

        Args:
            live: Whether the open document updates itself, with ``news`` from the path ``/events``.
        """
        style, script = _style(), _script()
        policy = [
            "default-src 'none'",
            f"style-src {_hash_of(style)}",
            f"script-src {_hash_of(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *(["connect-src 'self'"] if live else []),
        ]
        samples = self._watch.samples
        charts = charts_of(samples, most=MOST_LIVE if live else None)
        data = json.dumps({"live": live, "charts": charts})
        return Template(_asset("page.html")).substitute(
            self._parts(RUNNING if live else self._outcome()),
            policy="; ".join(policy),
            title=escape(self._title),
            style=style,
            script=script,
            tables="\n".join(
                _SECTION.format(heading=escape(heading), index=index, table=html_table(table))
                for index, (heading, table) in enumerate(self._shown_tables())
            ),
            # Escape ``<``, because a stage's name may contain ``</script>``, which would end the
            # script element.
            data=data.replace("<", r"\u003c"),
        )

    def news(self, outcome: str = RUNNING) -> dict[str, Any]:
        """Return what an open page must update: HTML by the id of its element, and the charts.

        Args:
            outcome: The state of the job: ``RUNNING``, ``ENDED`` or ``FAILED``.
        """
        tables = enumerate(html_table(table) for _, table in self._shown_tables())
        return {
            "parts": self._parts(outcome) | {f"table-{index}": table for index, table in tables},
            "charts": charts_of(self._watch.samples, most=MOST_LIVE),
            "ended": outcome != RUNNING,
        }

    def _outcome(self) -> str:
        states = {stage.state for stage in self._watch.stages.values()}
        return FAILED if "failed" in states else RUNNING if "running" in states else ENDED

    def _shown_tables(self) -> Sequence[tuple[str, Table]]:
        if self._tables is not None:
            return self._tables
        stages = self._watch.stages
        return [("Work", work_table(stages)), (BOUNDS, bounds_table(stages))]

    def _parts(self, outcome: str) -> dict[str, str]:
        samples = self._watch.samples
        latest = samples[-1] if samples else None
        seconds = latest.seconds if latest else 0.0
        return {
            "advice": escape(self._advice(outcome)),
            "status": f"{outcome} {seconds:,.1f} s",
            "figures": "" if latest is None else self._key_numbers(latest, outcome),
            "held": self._stages_table(outcome),
            "held_of": f"Shares of {RECENT_TASK_TIME if outcome == RUNNING else WHOLE_TASK_TIME}.",
        }

    def _advice(self, outcome: str) -> str:
        watch = self._watch
        if outcome == RUNNING:
            return advise(watch.stages, watch.times_of_late(), watch.stalls)
        return advise(watch.stages)

    def _key_numbers(self, latest: Sample, outcome: str) -> str:
        if outcome == RUNNING:
            samples, at_most, when, rate = [latest], "", "of late", self._watch.rate()
        else:
            samples, at_most, when = self._watch.samples, "Most ", "on average"
            rate = latest.rows / latest.seconds if latest.seconds else 0.0
        most = max(samples, key=lambda sample: sum(sample.running.values()))
        held = max(sum(sample.buffered.values()) for sample in samples)
        figures = {
            "rows": ("Rows", f"{latest.rows:,}", f"of {self._rows:,}" if self._rows else ""),
            "rate": ("Rows per second", f"{rate:,.0f}", when),
            "running": (
                f"{at_most}calls in flight".capitalize(),
                f"{sum(most.running.values()):,}",
                f"of at most {sum(most.most_running.values()):,}",
            ),
            "failures": ("Failed calls", f"{sum(latest.failures.values()):,}", ""),
            "buffered": (f"{at_most}input held".capitalize(), human_bytes(held), ""),
        }
        return "".join(
            f'<div><dt>{label}</dt><dd><span id="{name}">{value}</span> <small>{of}</small></dd>'
            "</div>"
            for name, (label, value, of) in figures.items()
        )

    def _stages_table(self, outcome: str) -> str:
        """Return an HTML table with the calls of each stage, and with the causes of its waiting."""
        stages = self._watch.stages
        if outcome == RUNNING:
            times = self._watch.times_of_late()
        else:
            times = {name: TaskTime.of(stage) for name, stage in stages.items()}
        rows = [
            ["failed calls", *(f"{stage.failures:,}" for stage in stages.values())],
            ["seconds of a call: p50, p95, p99", *(latencies(stage) for stage in stages.values())],
        ]
        if outcome == RUNNING:
            in_flight = (
                f"{stage.running:,}, {stage.concurrency * stage.partitions_running:,}"
                for stage in stages.values()
            )
            rows.insert(0, ["calls in flight, bound", *in_flight])
        shares = {name: _shares(times.get(name, TaskTime())) for name in stages}
        rows += [
            [f"time on {words}", *(_share_bar(shares[name][cause]) for name in stages)]
            for cause, words in CAUSES.items()
        ]
        heads = ["", *(escape(name) for name in stages)]
        return html_of(heads, rows, numeric=[False, *(True for _ in stages)])


def _shares(time: TaskTime) -> dict[str, float]:
    parts = time.by_cause()
    total = sum(parts.values())
    return {cause: part / total if total else 0.0 for cause, part in parts.items()}


def _share_bar(share: float) -> str:
    if round(share, 2) == 0:
        return '<span class="dim">0%</span>'
    return (
        f'{share:.0%}<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect width="{100 * share:.1f}" height="1"/></svg>'
    )


# -- the files of the page: template, style and script ---------------------------------------------


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _style() -> str:
    return _asset("uPlot.min.css") + _asset("page.css")


def _script() -> str:
    return _asset("uPlot.min.js") + _asset("page.js")


def _hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
