"""What a path may take, and when that is too much; the counting itself is ``make budgets``."""

from __future__ import annotations

import pytest

from bench.budgets import INJECTIONS, BudgetError, read_table, verdicts
from bench.budgets.__main__ import check

COUNTED = dict.fromkeys(INJECTIONS, 100.0)
TABLE = {"gcc-12 x86_64": COUNTED, "clang-14 x86_64": dict.fromkeys(INJECTIONS, 90.0)}


def over(table: dict[str, dict[str, float]], compiler: str, counted: float) -> set[str]:
    results = verdicts({**COUNTED, "ring_one": counted}, table, compiler)
    assert [result.path for result in results] == list(INJECTIONS)
    return {result.path for result in results if not result.holds}


@pytest.mark.parametrize(("counted", "expected"), [(103.0, set()), (103.1, {"ring_one"})])
def test_three_percent_are_let_pass(counted: float, expected: set[str]) -> None:
    assert over(TABLE, "gcc-12 x86_64", counted) == expected


@pytest.mark.parametrize(("counted", "expected"), [(125.0, set()), (125.1, {"ring_one"})])
def test_another_compiler_is_held_to_the_dearest_known_with_room(
    counted: float, expected: set[str]
) -> None:
    assert over(TABLE, "gcc-99 x86_64", counted) == expected


def test_another_processor_says_nothing() -> None:
    with pytest.raises(BudgetError, match="no budget"):
        verdicts(COUNTED, TABLE, "gcc-12 aarch64")
    table = TABLE | {"gcc-12 aarch64": dict.fromkeys(INJECTIONS, 1000.0)}
    assert over(table, "gcc-99 x86_64", 125.1) == {"ring_one"}


def test_what_is_too_dear_fails_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    name = "gcc-12 x86_64"
    counted = {**COUNTED, "bare_add": 4.0, "ring_one": 104.0}
    assert not check(name, counted, {name: COUNTED})
    assert "ring_one            104.0  budget   100.0    +4.0%  TOO DEAR" in capsys.readouterr().out
    assert check(name, counted, {"gcc-12 pdp11": COUNTED})
    assert "nothing for this processor" in capsys.readouterr().out


def test_a_path_without_a_budget_is_an_error() -> None:
    table = {"gcc-12 x86_64": {"bare_add": 4.0}}
    for compiler in ("gcc-12 x86_64", "gcc-99 x86_64"):
        with pytest.raises(BudgetError, match="no budget"):
            verdicts(COUNTED, table, compiler)


def test_the_table_has_every_path() -> None:
    for counts in read_table().values():
        assert counts.keys() == {"bare_add", *INJECTIONS}
