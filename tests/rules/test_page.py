"""docs/rules.md is what kit and tests say; no rule is without a proof and a broken one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rstreams_fast.tck.rules import NOT_OBSERVABLE, RULES
from tests.rules.page import PAGE, collect, faults, render


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_a_proof_and_a_broken_one(number: str) -> None:
    assert faults(collect()[number]) == []


def test_the_page_is_what_the_sources_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "docs/rules.md is stale: run `make docs`"


def test_what_is_missing_is_noticed() -> None:
    whole = collect()["3.9"]
    assert "no proof" in faults(replace(whole, checks={}, suite={}))[0]
    assert "not broken" in faults(replace(whole, broken=0))[0]
    assert "called unbreakable" in faults(replace(whole, why_unbreakable="so"))[0]


def test_what_cannot_be_broken_is_a_rule() -> None:
    assert NOT_OBSERVABLE.keys() < RULES.keys()
