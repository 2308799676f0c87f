"""How a broken implementation says which test must reject it, and by which words."""

from __future__ import annotations

import inspect
import itertools
import re
import time
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


_RULE = re.compile(r"(\w*) ?(\d\.\d+ \w+) (\w+): (.*)")
_CLASS = re.compile(r"(\w+)\((\w+)\)(?:\.(\w+))?:(.*)")
_METHOD = re.compile(r"    (\w+):(.*)")


def read_rows(module: dict[str, Any], register: dict[str, Any], rows: str) -> None:
    """Register broken classes, each of which overrides methods of a correct one.

    A row is ``RULE GRADE CHECK: WORDS``, once for each check, after the kind where a module has
    several; then ``NAME(BASE).METHOD:`` and the new body. Of several methods, or attributes, each
    stands below ``NAME(BASE):``, indented.
    """
    checks: list[Callable[[type], type]] = []
    block: list[str] = []

    def flush() -> None:
        if not block:
            return
        name, base, method, rest = _CLASS.fullmatch(block[0]).groups()  # type: ignore[union-attr]
        body = block[1:]
        if method:
            body = [f"    {method}:{rest}", *(f"    {line}" for line in body)]
        lines = [f"class {name}({base}):"]
        for line in body:
            if found := _METHOD.fullmatch(line):
                lines.append(f"    def {_head(module[base], found[1])}:{found[2]}")
            else:
                lines.append(line)
        names = {"itertools": itertools, "time": time, **module}
        exec(compile("\n".join(lines), f"<{name}>", "exec"), names, module)
        for breaks in checks:
            breaks(module[name])
        checks.clear()
        block.clear()

    for line in rows.splitlines():
        if found := _RULE.fullmatch(line):
            flush()
            kind, *check = found.groups()
            checks.append(register[kind](*check))
        elif not line.startswith("#"):
            block.append(line)
    flush()


def _head(base: type, method: str) -> str:
    signature = inspect.signature(getattr(base, method))
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return f"{method}{inspect.Signature(bare)}"


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
