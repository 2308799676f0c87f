"""``python -m bench.budgets [--cc gcc] [--write]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from bench.budgets import (
    FLOOR,
    TABLE,
    BudgetError,
    Counts,
    compilers,
    count,
    key,
    make_dearer,
    read_table,
    verdicts,
)


def check(name: str, counted: Counts, table: dict[str, Counts]) -> bool:
    """Print every path's count beside its budget; false if one is over it."""
    print(f"{name}: instructions for each call (a bare atomic add: {counted[FLOOR]:g})")
    alike = [known for known in table if known.split()[1] == name.split()[1]]
    if not alike:
        print("  the table has nothing for this processor: nothing to hold it to")
        return True
    if name not in table:
        print(f"  not in the table, so held only to the dearest of: {', '.join(alike)}")
    results = verdicts(counted, table, name)
    for result in results:
        said = "ok" if result.holds else f"TOO DEAR: at most {result.tolerance:.0%} over is allowed"
        if result.over < -result.tolerance and name in table:
            said = "cheaper than the table says; write it anew (ARGS=--write)"
        print(
            f"  {result.path:16}{result.counted:9.1f}  budget {result.budget:7.1f}"
            f"  {result.over:+7.1%}  {said}"
        )
    return all(result.holds for result in results)


def is_alive(compiler: str, counted: Counts) -> bool:
    """Whether paths made 5 % dearer are all found to be over what was counted before."""
    name = key(compiler)
    dearer = count(compiler, make_dearer(counted))
    missed = [result.path for result in verdicts(dearer, {name: counted}, name) if result.holds]
    if missed:
        print(f"  5 % more instructions were not noticed in: {', '.join(missed)}")
    else:
        print(f"  and 5 % more instructions are noticed in each of the {len(counted) - 1} paths")
    return not missed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.budgets", description=__doc__)
    parser.add_argument("--cc", action="append", help="the compilers (default: gcc and clang)")
    parser.add_argument("--write", action="store_true", help="make what is counted the budget")
    options = parser.parse_args(argv)
    holds = True
    try:
        names = options.cc or compilers()
        if not names:
            raise BudgetError("there is neither gcc nor clang")
        table = read_table() if TABLE.exists() else {}
        for compiler in names:
            counted = count(compiler)
            if options.write:
                table[key(compiler)] = dict(sorted(counted.items()))
            holds = check(key(compiler), counted, table) and holds
            holds = is_alive(compiler, counted) and holds
    except BudgetError as error:
        print(f"budgets: {error}", file=sys.stderr)
        return 1
    if options.write:
        TABLE.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
