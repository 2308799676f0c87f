"""The comparison of daemons by Spark's own tests tells what passes with the stock one alone."""

from __future__ import annotations

from tests.helpers import run_python
from tests.spark.conftest import ROOT
from tests.spark.suites import compared

STOCK = {"a": "passed", "b": "failed", "c": "passed", "d": "skipped"}


def test_what_passes_with_the_stock_daemon_alone_is_told() -> None:
    text, failed = compared({"stock": STOCK})
    assert text.endswith("\n| stock | 2 | 1 | 1 |")
    assert not failed
    ours = {"a": "passed", "b": "passed", "c": "failed", "d": "failed"}
    missing = {"a": "passed", "b": "failed", "d": "skipped"}
    text, failed = compared({"stock": STOCK, "4": ours, "-1": missing})
    assert text.splitlines()[-2:] == ["4: c: failed", "-1: c: did not run"]
    assert failed


def test_sources_without_tests_are_refused() -> None:
    done = run_python(
        "-m", "tests.spark.suites", cwd=ROOT, env={"SPARK_SOURCES": str(ROOT)}, check=False
    )
    assert done.returncode == 2
    assert "SPARK_SOURCES must point to a checkout" in done.stdout
