"""The committed page of conformance fits what there is."""

from __future__ import annotations

import re

from rstreams_fast.tck.rules import RULES
from tests.jvm_tck.broken import HANGS, list_broken
from tests.jvm_tck.claims import FAILED
from tests.jvm_tck.page import PAGE
from tests.jvm_tck.subjects import ROOT, list_subjects
from tests.jvm_tck.test_official import IN_JAVA
from tests.tck.test_others import FOUND

STALE = "docs/conformance.md is out of date: run make tck, and commit what it writes"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_rule_has_its_row_and_none_has_failed() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert [row[:2] for row in found] == [list(each) for each in RULES.items()], STALE
    assert not [row for row in found if FAILED in f"{row[2]} {row[3]}"]


def test_the_page_tells_how_many_are_judged_and_how_many_are_broken() -> None:
    text = PAGE.read_text(encoding="utf-8")
    judged = re.search(r"^Judged are (.*?), each a class", text, re.MULTILINE | re.DOTALL)
    assert judged
    assert sum(map(int, re.findall(r"\d+", judged[1]))) == len(list_subjects()), STALE
    broken = list(list_broken())
    assert f"holds {len(broken)} implementations" in text, STALE
    assert f"the {sum(bool(each.test) for each in broken)} that it can see" in text, STALE


def test_what_hangs_the_official_kit_is_not_run() -> None:
    assert {each.name.partition(".")[2] for each in list_broken() if not each.test} > set(HANGS)


def test_what_was_found_in_others_is_what_the_tests_find() -> None:
    page = (ROOT / "docs" / "tck.md").read_text(encoding="utf-8")
    table = rows(page.partition("## What it found")[2])
    told = [set(filter(None, rules.replace("none", "").split(", "))) for _, rules, _ in table]
    in_java = [IN_JAVA[name][0] for name in IN_JAVA if name != "Countdown"]
    in_rsocket = [set(rules) for rules in FOUND.values()][1:]  # of the first two, one row tells
    assert told == in_java + in_rsocket
