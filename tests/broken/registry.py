"""How a broken implementation says which test must reject it, and by which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rstreams_fast.tck import Verification
from rstreams_fast.tck.runner import BROKEN, NOT_MET, Result, run
from rstreams_fast.tck.verification import list_tests

T = TypeVar("T", bound=type)

#: Short, since a broken implementation uses them up.
IMPATIENT = {
    "timeout": 0.3,
    "silence": 0.03,
    "limit": 1.5,
    "reference_timeout": 0.3,
}
#: For a second look where these gave another answer than is due: a busy machine may have used them
#: up, or have been silent that long.
PATIENT = {
    "timeout": 10.0,
    "silence": 0.5,
    "limit": 60.0,
    "reference_timeout": 10.0,
}


@dataclass(frozen=True)
class Case:
    """One broken implementation and its proof."""

    rule: str
    test: str
    says: str
    broken: type

    @property
    def id(self) -> str:
        return f"{self.rule}-{self.broken.__name__}-{self.test}"


class Group:
    """The broken implementations of one kind."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def breaks(self, rule: str, test: str, says: str) -> Callable[[T], T]:
        """Register a class: it breaks ``rule``; ``test`` must reject it with ``says``."""

        def register(broken: T) -> T:
            self.cases.append(Case(rule, test, says, broken))
            return broken

        return register


def judge(verification: type[Verification], case: Case, **members: Any) -> Result:
    """Run the case's test on the verification with these hooks added."""
    (test,) = [test for test in list_tests(verification) if test.name == case.test]
    for settings in (IMPATIENT, PATIENT):
        (result,) = run(type("Judged", (verification,), {**settings, **members}), [test])
        if result.outcome in (BROKEN, NOT_MET) and case.says in result.message:
            break
    return result
