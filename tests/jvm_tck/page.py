"""The table of both kits, as text for a terminal and as ``docs/conformance.md``."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from rstreams_fast.tck import list_tests
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.rules import RULES
from tests.jvm_tck.broken import HANGS, list_broken
from tests.jvm_tck.claims import BY_DESIGN, FAILED, NOT_CLAIMED, PASS, UNCLAIMED, verdict
from tests.jvm_tck.subjects import ROOT, Subject

__all__ = ["BACKENDS", "KITS", "PAGE", "Results", "terminal", "write_page"]

PAGE = ROOT / "docs" / "conformance.md"
BACKENDS: Final = ("c", "cffi", "python")
KITS: Final = ("official", "ours")
VERDICTS: Final = (PASS, UNCLAIMED, BY_DESIGN, FAILED)
HOOKS = "hooks"  #: instead of a rule, for the tests of the hooks themselves
TITLES: Final = {
    "publisher": "Publishers",
    "blackbox": "Subscribers, seen from outside",
    "whitebox": "Subscribers, seen from within",
    "processor": "Processors",
}
INTRODUCTION: Final = """\
# Conformance: both kits on everything we ship

Two kits judge every publisher, subscriber and processor of this package, on each of its backends
(`c`, `cffi`, `python`): the official one of Reactive Streams, `reactive-streams-tck` 1.0.4, as it
comes from Maven Central, and [our own](tck.md), which has the same tests and those that the
official one lacks. This page is written by

    make tck

which takes a few minutes, needs a Java 17 or 21 and Maven, and fails when a rule is not kept, when
a test is skipped that a class should pass, or when the official kit accepts a broken one of those
[below](#whether-the-kits-are-alive). What each run found is left under `build/tck`, as JSON.
`make test` runs a part of it: our kit whole, the official one on some classes and all broken ones.

The official kit runs in a Java inside a process of its own. Publishers, subscribers and
subscriptions cross from Python to Java and back by a bridge (`tests/jvm_tck/bridge.py`) that holds
none of them; `None` is `null`, `TypeError` is `NullPointerException`, `ValueError` is
`IllegalArgumentException`, `UNBOUNDED` is `Long.MAX_VALUE`. It waits 3 s for what must happen and
100 ms for silence; its own 100 ms for both fail correct code on a busy machine.

The counts are of tests, times classes, times backends. *Not claimed* is what a class does not
promise: optional, not met, and written down [below](#what-is-not-claimed), or in need of something
the class does not have (a publisher that has failed before it is subscribed, calls from several
threads to what lives on an asyncio loop). *Untested* is what a kit names and cannot judge, by its
own words.
"""

#: What both kits found: kit, then backend, then the name of a class, to its ``tests``.
Results = dict[str, dict[str, dict[str, Any]]]
_Counts = dict[str, dict[str, dict[str, Counter[str]]]]  # kind, rule, kit, verdict


def count(subjects: list[Subject], results: Results) -> _Counts:
    """How often each verdict was given."""
    rules = {
        (kind, test.name): test.rule or HOOKS
        for kind, base in VERIFICATIONS.items()
        for test in list_tests(base)
    }
    counts: _Counts = defaultdict(lambda: defaultdict(lambda: defaultdict(Counter)))
    for kit, by_backend in results.items():
        for judged in by_backend.values():
            for subject in subjects:
                for test in judged[subject.name]["tests"]:
                    rule = rules[subject.kind, test["name"]]
                    counts[subject.kind][rule][kit][verdict(subject, test)] += 1
    return counts


def _in_order(rules: Any) -> list[str]:
    return sorted(rules, key=lambda rule: (-1,) if rule == HOOKS else _numbers(rule))


def _numbers(rule: str) -> tuple[int, ...]:
    return tuple(int(part) for part in rule.split("."))


def terminal(subjects: list[Subject], results: Results) -> str:
    """The whole table, rule by rule, for a terminal."""
    head = "  ".join(f"{verdict:>11}" for verdict in VERDICTS)
    lines = [f"{'':8}{'official kit':<52}our kit", f"{'':6}{head}  {head}"]
    for kind, by_rule in count(subjects, results).items():
        lines.append(f"{TITLES[kind]}: {sum(each.kind == kind for each in subjects)} classes")
        for rule in _in_order(by_rule):
            cells = [
                f"{by_rule[rule][kit][verdict] or '.':>11}" for kit in KITS for verdict in VERDICTS
            ]
            lines.append(f"{rule:<6}" + "  ".join(cells))
    return "\n".join(lines)


def write_page(subjects: list[Subject], results: Results) -> str:
    """The text of the page. It tells nothing of when, where or how fast."""
    parts = [INTRODUCTION, *_rule_tables(subjects, results), _judged(subjects, results)]
    return "\n".join([*parts, _not_claimed(), _broken()])


def _rule_tables(subjects: list[Subject], results: Results) -> list[str]:
    counts = count(subjects, results)
    tables = []
    for kind, title in TITLES.items():
        if kind not in counts:
            continue
        number = sum(subject.kind == kind for subject in subjects)
        lines = [
            f"## {title}",
            "",
            f"{number} classes on {len(BACKENDS)} backends.",
            "",
            "| rule | in our words | official kit | our kit |",
            "|---|---|---|---|",
        ]
        for rule in _in_order(counts[kind]):
            words = RULES.get(rule, "the hooks give what they are asked for")
            cells = [_words(counts[kind][rule][kit]) for kit in KITS]
            lines.append(f"| {rule} | {words} | {' | '.join(cells)} |")
        tables.append("\n".join([*lines, ""]))
    return tables


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each]) or "-"


def _judged(subjects: list[Subject], results: Results) -> str:
    lines = [
        "## What was judged",
        "",
        "Each is a verification class in `tests/tck`, which says how the thing is made. The counts",
        "are of tests, and the same on every backend.",
        "",
        "| class | kind | official kit | our kit |",
        "|---|---|---|---|",
    ]
    for subject in subjects:
        cells = []
        for kit in KITS:
            found = [
                _words(Counter(verdict(subject, test) for test in judged[subject.name]["tests"]))
                for judged in results[kit].values()
            ]
            cells.append(found[0] if len(set(found)) == 1 else " / ".join(found))
        lines.append(f"| `{subject.name}` | {subject.kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _not_claimed() -> str:
    lines = [
        "## What is not claimed",
        "",
        "| classes | optional tests | why |",
        "|---|---|---|",
    ]
    for entry in NOT_CLAIMED:
        names, tests, but = (
            ", ".join(f"`{name}`" for name in patterns.split())
            for patterns in (entry.subjects, entry.tests, entry.but)
        )
        names = f"{names} (but not {but})" if but else names
        lines.append(f"| {names} | {tests} | {entry.why} |")
    return "\n".join([*lines, ""])


def _broken() -> str:
    broken = list(list_broken())
    seen = sum(bool(each.test) for each in broken)
    by_rule: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for each in broken:
        by_rule[each.rule][not each.test].append(f"`{each.name.partition('.')[2]}`")
    lines = [
        "## Whether the kits are alive",
        "",
        f"`tests/broken` holds {len(broken)} implementations with one fault each. Ours rejects all",
        f"of them. The official kit is run on the {seen} that it can see, and rejects those; on",
        f"{' and '.join(f'`{name}`' for name in HANGS)} it waits for ever.",
        "",
        "| rule | rejected by both | by ours only |",
        "|---|---|---|",
    ]
    for rule in _in_order(by_rule):
        both, ours = (", ".join(names) or "-" for names in by_rule[rule])
        lines.append(f"| {rule} | {both} | {ours} |")
    return "\n".join([*lines, ""])
