"""The proof sees every way in which an output can be wrong: real Spark, outputs tampered with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.examples.flights.proof_cases import ROWS
from tests.examples.flights.together import Together

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(together: Together) -> dict[str, dict[str, Any]]:
    done = together["proof"]
    assert done.status == 0, done.err[-6000:]
    result: dict[str, dict[str, Any]] = json.loads(done.out)
    return result


def outcome(missing: int, surplus: int, *, found: int = ROWS, in_order: bool = True) -> Any:
    return {
        "expected": ROWS,
        "found": found,
        "missing": missing,
        "surplus": surplus,
        "in_order": in_order,
        "agree": found - surplus,
        "holds": not missing and not surplus and in_order,
    }


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("right", outcome(0, 0)),
        ("a row is missing", outcome(1, 0, found=ROWS - 1, in_order=False)),
        ("a row is doubled", outcome(0, 1, found=ROWS + 1, in_order=False)),
        ("a value is wrong", outcome(1, 1)),
        ("a value is null", outcome(1, 1)),
        ("a null is a value", outcome(1, 1)),
        ("a plane is null", outcome(1, 1)),
        ("one row in place of another", outcome(1, 1, in_order=False)),
        ("the order is lost", outcome(0, 0, in_order=False)),
    ],
)
def test_the_proof_sees(case: str, expected: Any, found: dict[str, dict[str, Any]]) -> None:
    assert found[case] == expected
