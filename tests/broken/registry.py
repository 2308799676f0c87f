"""How a broken implementation says which test must reject it, and by which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rstreams_fast.tck import Check, Verification, list_checks
from rstreams_fast.tck.runner import BROKEN, run

T = TypeVar("T", bound=type)

#: Short, since a broken implementation uses them up.
IMPATIENT = {"timeout": 0.3, "silence": 0.03}
#: For a second look where these gave another answer than is due: a busy machine may have used them
#: up, or have been silent that long.
PATIENT = {"timeout": 10.0, "silence": 0.5}


@dataclass(frozen=True)
class Case:
    """One broken implementation and its proof."""

    rule: str
    grade: str
    check: Check
    says: str
    broken: type

    @property
    def id(self) -> str:
        return f"{self.rule}-{self.broken.__name__}-{self.check.name}"


class Group:
    """The broken implementations of one kind."""

    def __init__(self, verification: type[Verification]) -> None:
        self.cases: list[Case] = []
        self._checks = list_checks(verification)

    def breaks(self, what: str, check: str, says: str) -> Callable[[T], T]:
        """Register a class that breaks a rule at a grade, ``"1.9 spec"``.

        The check whose name ends with ``check``, or else has it in it, must reject the class, and
        say ``says``.
        """
        rule, grade = what.split()
        whole = [each for each in self._checks if each.name.endswith(check)]
        (found,) = whole or [each for each in self._checks if check in each.name]

        def register(broken: T) -> T:
            self.cases.append(Case(rule, grade, found, says, broken))
            return broken

        return register


def expect_rejected(verification: type[Verification], case: Case, **hooks: Any) -> None:
    """Run the case's check on the verification with these hooks: it rejects, at its grade."""
    for settings in (IMPATIENT, PATIENT):
        (result,) = run(
            type("Judged", (verification,), {**settings, "not_claimed": (), **hooks}), [case.check]
        )
        if result.outcome == BROKEN and case.says in result.message:
            break
    assert result.outcome == BROKEN, result
    assert case.says in result.message, result.message
    assert case.check.grade == case.grade
    assert result.broken is not None
    assert case.rule in (case.check.rule, result.broken.rule), result.message
