"""docs/rules.md is what sources and tests say; no rule is without a place, a proof, a breach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rstreams_fast.tck.rules import RULES, UNBREAKABLE
from tests.rules.page import PAGE, collect, faults, places_of, render, sources


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_a_place_a_proof_and_a_breach(number: str) -> None:
    assert faults(collect()[number]) == []


def test_the_page_is_what_the_sources_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "docs/rules.md is stale: run `make docs`"


def test_what_is_missing_is_noticed() -> None:
    whole = collect()["3.9"]
    assert "no place" in faults(replace(whole, places={}))[0]
    assert "no proof" in faults(replace(whole, kit={}, suite={}))[0]
    assert "not broken" in faults(replace(whole, broken=[]))[0]
    assert "called unbreakable" in faults(replace(whole, why_unbreakable="so"))[0]
    untested = {test.name: (test, ["publisher"]) for test in collect()["3.10"].left_out}
    assert "no proof" in faults(replace(whole, kit=untested, suite={}))[0]


def test_marks_are_found_where_they_stand() -> None:
    places = places_of(sources())
    assert "Drain._bad_request" in places["3.9"]["rstreams_fast/streams/drain.py"]
    assert "DemandCounter.request" in places["3.17"]["rstreams_fast/core/_python.py"]
    assert "DemandCounter.request" in places["3.17"]["rstreams_fast/core/_cython/demand.pyx"]
    assert "rsf_demand_terminate" in places["1.6"]["csrc/rsf_demand.h"]
    assert "" in places["3.17"]["csrc/rsf_demand.h"]  # at the head of the file


def test_no_mark_is_of_a_rule_that_does_not_exist() -> None:
    assert places_of(sources()).keys() <= RULES.keys()


def test_what_cannot_be_broken_is_a_rule() -> None:
    assert UNBREAKABLE.keys() < RULES.keys()
