"""What both kits found: rule by rule for a terminal, in short for ``docs/conformance.md``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from rstreams_fast.tck import list_checks
from rstreams_fast.tck.command import VERIFICATIONS
from rstreams_fast.tck.rules import RULES
from tests.jvm_tck.broken import HANGS, list_broken
from tests.jvm_tck.claims import FAILED, PASS, UNCLAIMED, UNTESTED, verdict
from tests.jvm_tck.subjects import ROOT, Subject

__all__ = ["BACKENDS", "KITS", "PAGE", "Results", "terminal", "tests_of", "write_page"]

PAGE = ROOT / "docs" / "conformance.md"
BACKENDS: Final = ("c", "cffi", "python")
KITS: Final = ("official", "ours")
VERDICTS: Final = (PASS, UNCLAIMED, UNTESTED, FAILED)

#: What both kits found: kit, then backend, then the name of a class, to its ``tests``.
Results = dict[str, dict[str, dict[str, Any]]]

INTRODUCTION: Final = """\
# Conformance: both kits on everything we ship

Two kits judge every publisher, subscriber and processor of this package on each of its backends
(`c`, `cffi`, `python`): the official one of Reactive Streams, `reactive-streams-tck` 1.0.4 from
Maven Central, and [our own](tck.md) at its highest grade, `strict`. `make tck` runs both (some
minutes, with Java 17 or 21 and Maven), writes this page, and fails when a rule is broken, or when
the official kit accepts a broken implementation that it should see. What each run found is left
under `build/tck`.

Judged are {subjects}, each a class in `tests/tck` that says how the thing is made. *Not claimed*
is what such a class does not promise, by its settings `not_claimed` and
`max_supported_subscribers` or by a hook that it does not have. *Untested* is what the official kit
names and cannot judge; classes that set `delivers_at_end` are for ours alone.

`tests/broken` holds {broken} implementations with one fault each. Ours rejects all of them, by the
check and at the grade that each declares; the official kit is run on the {seen} that it can see,
and rejects those. On {hangs} it would wait for ever. [The rules](rules.md) tell which check guards
what.

The official kit runs in a Java in a process of its own. Publishers, subscribers and subscriptions
cross by a bridge (`tests/jvm_tck/bridge.py`) that keeps none of them alive; `None` is `null`,
`TypeError` is `NullPointerException`, `ValueError` is `IllegalArgumentException`, `UNBOUNDED` is
`Long.MAX_VALUE`. It waits 15 s for what must happen and 100 ms for silence.

The counts are of tests, times classes, times backends.

| rule | in our words | official kit | our kit |
|---|---|---|---|
"""


def tests_of(kit: str, subject: Subject, judged: dict[str, Any]) -> list[dict[str, Any]]:
    """What a kit found of it; nothing, where the official one cannot judge it."""
    if kit == "official" and not subject.is_official:
        return []
    found: list[dict[str, Any]] = judged[subject.name]["tests"]
    return found


def count(subjects: list[Subject], results: Results) -> dict[str, dict[str, Counter[str]]]:
    """Rule, kit, verdict: how often."""
    rules = {
        check.name: check.rule for base in VERIFICATIONS.values() for check in list_checks(base)
    }
    counts: dict[str, dict[str, Counter[str]]] = {
        rule: {kit: Counter() for kit in KITS} for rule in RULES
    }
    for kit, by_backend in results.items():
        for judged in by_backend.values():
            for subject in subjects:
                for test in tests_of(kit, subject, judged):
                    rule = rules.get(test["name"]) or _rule_in(test["name"])
                    if rule:
                        counts[rule][kit][verdict(subject, test)] += 1
    return counts


def _rule_in(name: str) -> str:
    """The rule of an official test that ours lacks: ``..._spec309_...`` is 3.9."""
    _, _, rest = name.partition("_spec")
    return f"{rest[0]}.{int(rest[1:3])}" if rest else ""


def terminal(subjects: list[Subject], results: Results) -> str:
    """The table for a terminal."""
    head = "  ".join(f"{verdict:>11}" for verdict in VERDICTS)
    lines = [f"{'':8}{'official kit':<52}our kit", f"{'':6}{head}  {head}"]
    for rule, by_kit in count(subjects, results).items():
        cells = [f"{by_kit[kit][each] or '.':>11}" for kit in KITS for each in VERDICTS]
        lines.append(f"{rule:<6}" + "  ".join(cells))
    return "\n".join(lines)


def write_page(subjects: list[Subject], results: Results) -> str:
    """The text of the page. It tells nothing of when, where or how fast."""
    broken = list(list_broken())
    of_kind = {
        "publisher": "publishers",
        "blackbox": "subscribers seen from outside",
        "whitebox": "subscribers seen from within",
        "processor": "processors",
    }
    counts = Counter(subject.kind for subject in subjects)
    introduction = INTRODUCTION.format(
        subjects=", ".join(f"{counts[kind]} {words}" for kind, words in of_kind.items()),
        broken=len(broken),
        seen=sum(bool(each.test) for each in broken),
        hangs=" and ".join(f"`{name}`" for name in HANGS),
    )
    rows = [
        f"| {rule} | {RULES[rule]} | {_words(by_kit['official'])} | {_words(by_kit['ours'])} |"
        for rule, by_kit in count(subjects, results).items()
    ]
    return introduction + "\n".join(rows) + "\n"


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each]) or "-"
