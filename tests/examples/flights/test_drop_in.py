"""The comparison of daemons: the same rows, more calls at once, and a difference is told."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace

import pytest
from rich.console import Console

from examples.flights.drop_in import Side, report
from examples.flights.proof import Proof
from tests.examples.flights.together import ROWS, Together

RIGHT = Proof(expected=100, found=100, missing=0, surplus=0, in_order=True)


@pytest.mark.parametrize(
    ("proof", "status", "told"),
    [
        (RIGHT, 0, "100 of 100"),
        (replace(RIGHT, missing=1, surplus=1), 1, "99 of 100"),
        (replace(RIGHT, in_order=False), 1, "100 of 100, out of order"),
    ],
)
def test_a_difference_is_the_status(proof: Proof, status: int, told: str) -> None:
    out = io.StringIO()
    sides = (Side("stock", 9.0, 1, RIGHT), Side("ours", 2.0, 64, proof))
    assert report(Console(file=out, width=120), sides) == status
    assert re.search(rf"ours +│ 2.0 +│ 50 +│ 64 +│ {told} ", out.getvalue())
    assert "4.5x" in out.getvalue()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_drop_in_gives_the_same_rows_with_more_calls_at_once(together: Together) -> None:
    done = together["drop-in"]
    assert done.status == 0, done.out + done.err
    rows = re.findall(rf"(\d+) +│ {ROWS:,} of {ROWS:,} ", done.out)
    stock, ours = map(int, rows)
    assert stock <= (os.cpu_count() or 1)
    assert max(stock, 32) < ours
    assert "as fast with the drop-in" in done.out
    assert done.files == []
    assert done.family == []
