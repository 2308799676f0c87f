"""The comparison of daemons by Spark's own tests tells what passes with the stock one alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark import suites

OUTCOMES = {
    "stock": {"a": "passed", "b": "failed", "c": "passed", "d": "skipped"},
    "4": {"a": "passed", "b": "passed", "c": "failed", "d": "failed"},
    "-1": {"a": "passed", "b": "failed", "d": "skipped"},
}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["stock", "4"], "\n4: c: failed\n"),
        (["stock", "-1"], "\n-1: c: did not run\n"),
        (["stock"], "| stock | 2 | 1 | 1 |\n"),
    ],
)
def test_what_passes_with_the_stock_daemon_alone_is_told(
    settings: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "python" / "pyspark" / "sql" / "tests").mkdir(parents=True)
    monkeypatch.setenv("SPARK_SOURCES", str(tmp_path))
    monkeypatch.setattr(suites, "_lay_out", lambda _: None)
    monkeypatch.setattr(suites, "_run", lambda setting, _: OUTCOMES[setting])
    monkeypatch.setattr(sys, "argv", ["suites", "--settings", *settings])
    assert suites.main() == (settings != ["stock"])
    assert told in capsys.readouterr().out


def test_sources_without_tests_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_SOURCES", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["suites"])
    assert suites.main() == 2
    assert "SPARK_SOURCES must point to a checkout" in capsys.readouterr().out
