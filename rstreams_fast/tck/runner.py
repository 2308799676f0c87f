"""Runs the checks of a verification without pytest, and sorts the broken rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from rstreams_fast.tck.outcome import HookFailed, NotApplicable, NotJudged, RuleBroken
from rstreams_fast.tck.rules import MEND_FIRST, RULES
from rstreams_fast.tck.verification import GRADES, Check, Verification, list_checks

__all__ = [
    "BROKEN",
    "ERROR",
    "KEPT",
    "NOT_APPLICABLE",
    "NOT_JUDGED",
    "Finding",
    "Result",
    "Verdicts",
    "fails",
    "order_findings",
    "outcome_of",
    "run",
    "summary",
]

KEPT = "kept"
BROKEN = "broken"
NOT_APPLICABLE = "not applicable"
NOT_JUDGED = "not judged"
ERROR = "could not run"

#: When failed checks have taken this many seconds in total, the remaining checks are not run.
MOST_SECONDS_BROKEN: Final = 15.0


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    check: Check
    outcome: str  #: ``KEPT``, ``BROKEN``, ``NOT_APPLICABLE``, ``NOT_JUDGED`` or ``ERROR``
    message: str  #: the reason for any outcome except ``KEPT``
    seconds: float
    broken: RuleBroken | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.check),
            "outcome": self.outcome,
            "broken_rule": self.broken.rule if self.broken else "",
            "message": self.message,
            "seconds": round(self.seconds, 4),
        }


def fails(grade: str, fail_on: str) -> bool:
    """Return whether a broken rule is a failure: ``grade`` is ``fail_on`` or an earlier grade."""
    return GRADES.index(grade) <= GRADES.index(fail_on)


class Verdicts:
    """Stores the results of an implementation's checks. They tell which checks need not be run."""

    def __init__(self) -> None:
        # Maps a property, such as "on_complete", to the failed check that should establish it.
        self._missing: dict[str, str] = {}
        self._seconds_broken = 0.0

    def obstacle(self, check: Check) -> str:
        """Return the reason not to run ``check``, or an empty text if ``check`` is to be run."""
        for need in check.needs:
            if need in self._missing:
                cause = self._missing[need]
                if check.establishes:
                    self._missing[check.establishes] = cause
                return f"needs {need}; see {cause}"
        if self._seconds_broken > MOST_SECONDS_BROKEN:
            return (
                f"broken checks have taken {self._seconds_broken:.0f} s; "
                "mend those first, or choose this one"
            )
        return ""

    def note(self, check: Check, outcome: str, seconds: float) -> None:
        if outcome in (BROKEN, ERROR):
            self._seconds_broken += seconds
            if check.establishes:
                self._missing[check.establishes] = check.name


def run(make: Callable[[], Verification], checks: list[Check] | None = None) -> Iterator[Result]:
    """Run ``checks`` (default: all), each on a new verification of ``make``. Yield the results."""
    verdicts = Verdicts()
    for check in list_checks(type(make())) if checks is None else checks:
        obstacle = verdicts.obstacle(check)
        if obstacle:
            yield Result(check, NOT_JUDGED, obstacle, 0.0)
            continue
        start = time.perf_counter()
        outcome, message, broken = _run_one(make(), check)
        seconds = time.perf_counter() - start
        verdicts.note(check, outcome, seconds)
        yield Result(check, outcome, message, seconds, broken)


def _run_one(verification: Verification, check: Check) -> tuple[str, str, RuleBroken | None]:
    try:
        getattr(verification, check.name)()
    except KeyboardInterrupt:
        raise
    except (RuleBroken, NotApplicable, HookFailed) as raised:
        broken = raised if isinstance(raised, RuleBroken) else None
        return outcome_of(raised), str(raised), broken
    except BaseException as raised:  # for example pytest's exception, if a hook skips the test
        return ERROR, f"{type(raised).__name__}: {raised}", None
    return KEPT, "", None


def outcome_of(error: BaseException) -> str:
    """Return the outcome, such as ``BROKEN``, of a check that raised ``error``."""
    if isinstance(error, RuleBroken):
        return BROKEN
    if isinstance(error, NotApplicable):
        return NOT_APPLICABLE
    return NOT_JUDGED if isinstance(error, NotJudged) else ERROR


# -- the list of broken rules ----------------------------------------------------------------------


@dataclass
class Finding:
    """One broken rule: the first check's error, and the names of other checks that found it."""

    grade: str
    broken: RuleBroken
    others: list[str]


def order_findings(broken: Iterable[RuleBroken]) -> list[Finding]:
    """Return each broken rule once, in the order in which to repair them.

    The order is by grade. Within a grade the most fundamental rule is the first.
    """
    found: dict[tuple[str, str], Finding] = {}
    for each in broken:
        finding = found.setdefault((each.grade, each.rule), Finding(each.grade, each, []))
        if finding.broken is not each:
            finding.others.append(each.check)
    return sorted(found.values(), key=_sort_key)


def _sort_key(finding: Finding) -> tuple[int, int]:
    rule = finding.broken.rule
    order = [*MEND_FIRST, *(other for other in RULES if other not in MEND_FIRST)]
    return GRADES.index(finding.grade), order.index(rule)


def summary(findings: list[Finding], fail_on: str) -> Iterator[str]:
    """Yield lines of text that describe the broken rules, in the order of ``findings``."""
    grade = ""
    for number, finding in enumerate(findings, 1):
        if finding.grade != grade:
            grade = finding.grade
            weight = "a failure" if fails(grade, fail_on) else "told, no failure"
            yield f"broken at grade {grade} ({weight}), the first to mend first:"
        first, *rest = finding.broken.brief().splitlines()
        yield f"{number:>3}. {first}"
        yield from (f"    {line}" for line in rest)
        if finding.others:
            yield f"      the same rule fails in {', '.join(finding.others)}"
