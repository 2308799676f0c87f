"""docs/rules.md: each rule, the checks of the kit that guard it, our own tests of it, and how many
broken implementations the kit must reject for it. ``python -m tests.rules.page`` writes the page.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rstreams_fast.tck import Check, Verification, list_checks
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.rules import NOT_OBSERVABLE, RULES
from tests.broken.processors import processors
from tests.broken.publishers import publishers
from tests.broken.subscribers import blackbox, whitebox

__all__ = ["PAGE", "Entry", "collect", "faults", "render"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rules.md"
_TEST = re.compile(r"test_((?:spec)?\d{3}(?:_\d{3})*)_")


@dataclass
class Entry:
    """What is known about one rule."""

    number: str
    text: str
    why_unbreakable: str = ""
    checks: dict[str, tuple[Check, str]] = field(default_factory=dict)  #: name: check, its file
    suite: dict[str, str] = field(default_factory=dict)  #: name of a test: its file
    broken: int = 0


def _file_of(verification: type[Verification], check: Check) -> str:
    method = inspect.unwrap(getattr(verification, check.name))
    return Path(inspect.getfile(method)).relative_to(ROOT).as_posix()


def _suite_tests() -> dict[str, dict[str, str]]:
    """Rule, name, file: the tests in this folder, whose names bear the numbers of rules."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and (named := _TEST.match(node.name)):
                for number in re.findall(r"\d{3}", named[1]):
                    rule = f"{number[0]}.{int(number[1:])}"
                    found[rule][node.name] = path.relative_to(ROOT).as_posix()
    return found


@cache
def collect() -> dict[str, Entry]:
    """Everything known, by rule."""
    entries = {
        number: Entry(number, text, NOT_OBSERVABLE.get(number, ""))
        for number, text in RULES.items()
    }
    checks = {}
    for verification in VERIFICATIONS.values():
        for check in list_checks(verification):
            checks[check.name] = check, _file_of(verification, check)
            entries[check.rule].checks[check.name] = checks[check.name]
    for case in (*publishers.cases, *blackbox.cases, *whitebox.cases, *processors.cases):
        entries[case.rule].broken += 1
        entries[case.rule].checks.setdefault(case.check.name, checks[case.check.name])
    for rule, tests in _suite_tests().items():
        entries[rule].suite = tests
    return entries


def faults(entry: Entry) -> list[str]:
    """What is missing for a rule to count as kept, in words."""
    missing = []
    if not (entry.checks or entry.suite or entry.why_unbreakable):
        missing.append(f"§{entry.number} has no proof: no check of the kit and no test guards it")
    if not entry.broken and not entry.why_unbreakable:
        missing.append(f"§{entry.number} is not broken by any class of tests/broken")
    if entry.broken and entry.why_unbreakable:
        missing.append(f"§{entry.number} is called unbreakable, and a class breaks it")
    return missing


_HEAD = """\
# The rules, and what guards them

`make docs` writes this page from the kit and the tests: do not edit it. CI fails when it is out of
date, and when a rule has no proof or no broken implementation that is rejected.

Each rule stands here in our words. A check is one of [the kit](tck.md), which runs on everything
that is shipped ([how that came out](conformance.md)); after its name stands its grade, if that is
not `spec`. The official kit has those that do not begin with `beyond_`, under the same name. Tests
are our own, beside the kit. The last column counts the implementations in
[tests/broken](../tests/broken) that break this rule, and that the kit must reject.

| Rule | In our words | Guarded by | Broken ones |
|---|---|---|---|
"""


def _guards(entry: Entry) -> str:
    checks = [
        f"[`{name}`](../{file})" + ("" if check.grade == "spec" else f" ({check.grade})")
        for name, (check, file) in sorted(entry.checks.items())
    ]
    tests = [f"[`{name}`](../{file})" for name, file in sorted(entry.suite.items())]
    return "<br>".join(checks + tests) or f"nothing: {entry.why_unbreakable}"


def render() -> str:
    """The whole page."""
    rows = [
        f"| {entry.number} | {entry.text} | {_guards(entry)} | {entry.broken or ''} |"
        for entry in collect().values()
    ]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
