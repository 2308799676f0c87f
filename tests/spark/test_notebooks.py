"""A notebook that runs a job: its outputs are HTML tables and a bar."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.spark.conftest import ROOT, worker_environment

SETUP = """
import asyncio
import rstreams_fast.spark as rs
from rstreams_fast.spark import report
from tests.spark.conftest import session

spark = session()

async def doubled(k):
    await asyncio.sleep(0.001)
    if k == 7:
        raise KeyError(k)
    return 2 * k

metrics = rs.Metrics()
double = rs.lookup(doubled, "long", on_failure="null", concurrency=4, metrics=metrics)
"""

WATCHED = """
with report.watch(metrics, rows=2000) as watch:
    spark.range(2000).select(double("id").alias("v")).agg({"v": "sum"}).collect()
"""

FAILS = """
def boom(k):
    raise ValueError("<boom>")

try:
    with report.watch(metrics, rows=10):
        spark.range(10).select(rs.lookup(boom, "long", metrics=metrics)("id").alias("v")).collect()
except Exception as error:
    print(type(error).__name__)
"""

CELLS = [
    SETUP,
    WATCHED,
    "metrics",
    "metrics.totals()",
    "report.work_table(metrics.by_stage())",
    "double.describe()",
    "rs.WriteReport(rows=12345, dead=2)",
    FAILS,
    "spark.stop()",
]


def bundles(cell: Any) -> list[dict[str, str]]:
    return [output["data"] for output in cell.outputs if "data" in output]


@pytest.mark.slow
@pytest.mark.spark
def test_a_notebook_shows_bars_and_tables_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**worker_environment(), "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(ROOT)}}).execute()
    _, watched, whole, total, table, described, written, failed, _ = notebook.cells
    shown = str([cell.outputs for cell in notebook.cells])
    assert "\\x1b" not in shown, shown
    assert not re.search("[┏┃│└━]", str([b["text/html"] for b in bundles(watched)]))

    bar, _, work, bounds = bundles(watched)
    assert "✓ Running" in bar["text/html"]
    assert "<progress" not in bar["text/html"]  # it was removed at the end
    assert "2,000 rows in" in work["text/html"]
    for found in (work, bounds, *bundles(whole), *bundles(total), *bundles(table)):
        assert re.search(r"<table>.*doubled.*</table>", found["text/html"], re.DOTALL)
    assert "1 (KeyError 1)" in work["text/html"]
    (text,) = bundles(described)
    assert text["text/html"].startswith("<pre>lookup doubled, in each partition")
    (report,) = bundles(written)
    assert "<td>12,345</td>" in report["text/html"]

    assert "✗ Running" in bundles(failed)[0]["text/html"]
    assert "Exception" in "".join(o.get("text", "") for o in failed.outputs)


def test_the_bar_shows_its_place_until_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display
    from rich.console import Console

    from rstreams_fast.spark import report

    shown: list[str] = []

    def keep(bundle: dict[str, str], **_: Any) -> None:
        shown.append(bundle["text/html"])

    for name in ("display", "update_display"):
        monkeypatch.setattr(IPython.display, name, keep)
    import rstreams_fast.spark as rs

    with rs.Metrics() as metrics:
        watch = report.Watch(metrics)
        with report.Display(Console(force_jupyter=True)) as display:
            display.show_phases([("Running <it>", 0.0)])
            display.show_rows(watch, 200)
            assert (
                '<progress style="width:16em;vertical-align:middle" max="200" value="0">'
                in (shown[-1])
            )
            assert "Running &lt;it&gt; 0 of 200 rows" in shown[-1]
            display.show_rows(watch, None)
            assert "max=" not in shown[-1]
            display.say("[bold]half[/]")
            assert shown[-1].startswith("<div>half</div>")
        assert "<progress" not in shown[-1]


def test_nothing_but_a_notebook_imports_ipython() -> None:
    code = "import sys, rstreams_fast.spark.report; sys.exit('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
