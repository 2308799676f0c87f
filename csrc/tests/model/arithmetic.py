"""Proves the demand counter's saturating arithmetic, for all 64-bit values at once.

The expressions are read out of ``rsf_demand.h``, so it is the code itself that is proved, and not a
copy of it. Each mutant below, one expression changed, must be refuted. Needs z3-solver (PyPI).
"""
# ruff: noqa: INP001, S307  (a script, not part of a package; it evaluates our own header)

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import z3

HEADER = Path(__file__).resolve().parents[2] / "rsf_demand.h"
WIDE = 66  # bits: sums and differences of 64-bit values do not wrap here
UNBOUNDED = 2**63 - 1
LEAST = -2  # the lesser of the two sentinels

Expression = Callable[[Any, Any], Any]


def body_of(function: str, text: str) -> str:
    start = text.index(f"\n{function}(")
    return " ".join(text[start : text.index("\n}\n", start)].split())


def expression(c: str) -> Expression:
    """A C expression over ``before`` and ``n``, with at most one ``?:``, as one of z3."""
    c = c.replace("RSF_UNBOUNDED", str(UNBOUNDED)).replace("||", "|").replace("&&", "&")
    if condition := re.fullmatch(r"(.+) \? (.+) : (.+)", c):
        test, yes, no = map(expression, condition.groups())
        return lambda before, n: z3.If(test(before, n), bits(yes(before, n)), bits(no(before, n)))

    def evaluate(before: Any, n: Any) -> Any:
        names = {"before": before, "n": n}
        parts = [eval(part, {}, names) for part in c.split("|")]
        return z3.Or(*parts) if len(parts) > 1 else parts[0]

    return evaluate


def bits(value: Any) -> Any:
    return z3.BitVecVal(value, 64) if isinstance(value, int) else value


def find(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    if len(found) != 1:
        raise SystemExit(f"{HEADER.name}: {pattern} was found {len(found)} times, not once")
    return str(found[0])


def refutations(text: str) -> list[str]:
    """The statements about the header that do not hold for all values."""
    request, fulfil = body_of("rsf_demand_request", text), body_of("rsf_demand_fulfil", text)
    after_request = expression(find(r"int64_t after = (.+?);", request))
    kept_request = expression(find(r"if \((before [^{]+?)\) \{ return before; \}", request))
    after_fulfil = expression(find(r"int64_t after = (.+?);", fulfil))
    kept_fulfil = expression(find(r"if \((before [^{]+?)\) \{ return before; \}", fulfil))
    exceeded = expression(find(r"if \(RSF_UNLIKELY\((.+?)\)\) \{ return RSF_EXCEEDED; \}", fulfil))

    before, n = z3.BitVecs("before n", 64)
    wide_before, wide_n = (z3.SignExt(WIDE - 64, value) for value in (before, n))
    top = z3.BitVecVal(UNBOUNDED, WIDE)

    def wide(value: Any) -> Any:
        return z3.SignExt(WIDE - 64, bits(value))

    legal = z3.And(n >= 1, before >= LEAST)  # the caller answers for n
    open_ = z3.And(legal, before >= 0)
    total = wide_before + wide_n
    statements = {
        "an ended or unbounded counter does not change": z3.Implies(
            legal, kept_request(before, n) == z3.Or(before < 0, before == UNBOUNDED)
        ),
        "a request adds up and saturates": z3.Implies(
            z3.And(open_, z3.Not(kept_request(before, n))),
            wide(after_request(before, n)) == z3.If(total > top, top, total),
        ),
        "no step of a request overflows": z3.Implies(
            open_,
            z3.And(
                top - wide_n >= 0,
                z3.Or(wide_before > top - wide_n, total <= top),
            ),
        ),
        "a fulfilment that changes nothing is of an ended or unbounded counter": z3.Implies(
            legal, kept_fulfil(before, n) == z3.Or(before < 0, before == UNBOUNDED)
        ),
        "more than was asked for is refused, and only that": z3.Implies(
            z3.And(open_, z3.Not(kept_fulfil(before, n))),
            exceeded(before, n) == (wide_n > wide_before),
        ),
        "a fulfilment takes off as much, and leaves no sentinel": z3.Implies(
            z3.And(open_, z3.Not(kept_fulfil(before, n)), z3.Not(exceeded(before, n))),
            z3.And(
                wide(after_fulfil(before, n)) == wide_before - wide_n, after_fulfil(before, n) >= 0
            ),
        ),
    }
    refuted = []
    for what, statement in statements.items():
        solver = z3.Solver()
        solver.add(z3.Not(statement))
        answer = solver.check()
        if answer != z3.unsat:
            values = solver.model() if answer == z3.sat else answer
            refuted.append(f"{what}: not for {values}")
    return refuted


MUTANTS = [
    ("before > RSF_UNBOUNDED - n ? RSF_UNBOUNDED : before + n", "before + n"),
    ("before > RSF_UNBOUNDED - n", "before + n > RSF_UNBOUNDED"),
    ("before > RSF_UNBOUNDED - n", "before > RSF_UNBOUNDED - n - 1 - 1"),
    ("RSF_UNLIKELY(before < n)", "RSF_UNLIKELY(before <= n)"),
    ("int64_t after = before - n;", "int64_t after = before - n - 1;"),
]


def main() -> int:
    text = HEADER.read_text()
    refuted = refutations(text)
    for statement in refuted:
        print(f"  FAIL  {statement}")
    if not refuted:
        print(f"  ok    {HEADER.name}: saturating arithmetic, for all values")
    survived = 0
    for old, new in MUTANTS:
        if text.count(old) != 1:
            raise SystemExit(f"{HEADER.name}: the line to change occurs {text.count(old)} times")
        caught = refutations(text.replace(old, new))
        survived += not caught
        shown = caught[0].replace("\n", " ") if caught else ""
        print(f"    {'caught  ' if caught else 'SURVIVED'}  {new}: {shown}")
    return 1 if refuted or survived else 0


if __name__ == "__main__":
    sys.exit(main())
