"""The committed page of conformance fits what there is: it cannot rot."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from rstreams_fast.tck import list_tests
from rstreams_fast.tck.command import VERIFICATIONS
from tests.jvm_tck.broken import HANGS, list_broken
from tests.jvm_tck.claims import FAILED, NOT_CLAIMED
from tests.jvm_tck.page import BACKENDS, HOOKS, PAGE, TITLES
from tests.jvm_tck.subjects import ROOT, list_subjects
from tests.jvm_tck.test_official import IN_JAVA
from tests.tck.official_names import OFFICIAL_NAMES
from tests.tck.test_others import FOUND

STALE = "docs/conformance.md is out of date: run make tck, and commit what it writes"


def section(title: str) -> str:
    found = re.search(
        rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"{STALE} (there is no {title!r})"
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def counted(cell: str) -> int:
    return sum(int(number) for number in re.findall(r"(\d+) [a-z]", cell))


@pytest.mark.parametrize("kind", TITLES)
def test_every_rule_has_the_count_of_its_tests_and_classes(kind: str) -> None:
    subjects = [subject for subject in list_subjects() if subject.kind == kind]
    assert subjects
    tests = list_tests(VERIFICATIONS[kind])
    official = set(OFFICIAL_NAMES[VERIFICATIONS[kind].__name__])
    ours = Counter(test.rule or HOOKS for test in tests)
    theirs = Counter(test.rule or HOOKS for test in tests if test.name in official)
    assert theirs.total() == len(official)
    times = len(subjects) * len(BACKENDS)
    found = {rule: (official, ours) for rule, _words, official, ours in rows(section(TITLES[kind]))}
    assert found.keys() == ours.keys(), STALE
    for rule, cells in found.items():
        assert [counted(cell) for cell in cells] == [theirs[rule] * times, ours[rule] * times], (
            f"{STALE} (rule {rule})"
        )


def test_the_classes_are_those_that_there_are() -> None:
    found = [(name.strip("`"), kind) for name, kind, *_ in rows(section("What was judged"))]
    assert found == [(subject.name, subject.kind) for subject in list_subjects()], STALE


def test_nothing_has_failed() -> None:
    assert FAILED not in "".join(cell for title in TITLES.values() for cell in section(title))
    assert FAILED not in section("What was judged")


def test_what_is_not_claimed_is_what_is_written_down() -> None:
    assert [why for _, _, why in rows(section("What is not claimed"))] == [
        entry.why for entry in NOT_CLAIMED
    ], STALE


def test_the_broken_ones_are_those_that_there_are() -> None:
    assert {each.name.partition(".")[2] for each in list_broken() if not each.test} > set(HANGS)
    found = rows(section("Whether the kits are alive"))
    for column, is_seen in ((1, True), (2, False)):
        names = re.findall(r"`(\w+)`", " ".join(row[column] for row in found))
        expected = [
            each.name.partition(".")[2] for each in list_broken() if bool(each.test) == is_seen
        ]
        assert sorted(names) == sorted(expected), STALE


def test_what_was_found_in_others_is_what_the_tests_find() -> None:
    page = (ROOT / "docs" / "tck.md").read_text(encoding="utf-8")
    table = rows(page.partition("## What it found")[2])
    told = [set(rules.split(", ")) for _what, rules, _seen in table]
    in_java = [IN_JAVA[name][0] for name in IN_JAVA if name != "Countdown"]
    in_rsocket = [set(rules) for rules in FOUND.values()][1:]  # of the first two, one row tells
    assert told == in_java + in_rsocket
