"""The one table of operators, sources and ends. Every suite reads it.

To add an operator, add an entry: a class in the file of its kind, derived from ``Op``. Its fields
are its arguments. It says what it makes of a list (``model``), how many elements it may ask for
(``asks``), how it is built (``build``), how it may stand over any stream (``uses``), and what it
drops, holds and needs (the flags). What it refuses stands in ``tests/streams/test_arguments.py``.

``make test ARGS="tests -k NAME"`` runs everything that reads one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.operators import combining, flow, parts, stages
from tests.operators.ends import ENDS, End
from tests.operators.entry import OPERATORS, Op, Use
from tests.operators.sources import SOURCE_OF, SOURCES, Gives, Origin, Source

__all__ = [
    "ENDS",
    "OPERATORS",
    "SOURCES",
    "SOURCE_OF",
    "USES",
    "End",
    "Gives",
    "Op",
    "Origin",
    "Source",
    "Use",
    "apart",
    "combining",
    "firsts",
    "flow",
    "parts",
    "representatives",
    "stages",
    "uses",
]

#: Each use of each operator, with its entry.
USES: dict[str, tuple[type[Op], Use]] = {
    name: (op, use) for op in OPERATORS for name, use in op.uses.items()
}


def uses(such: Callable[[Use], object]) -> dict[str, Use]:
    """The uses of which ``such`` is true, by name."""
    return {name: use for name, (_op, use) in USES.items() if such(use)}


def firsts() -> dict[str, Use]:
    """Of each operator the first use, on the caller and on other threads."""
    found: dict[Any, tuple[str, Use]] = {}
    for name, (op, use) in USES.items():
        found.setdefault((op, use.threads), (name, use))
    return dict(found.values())


def apart() -> dict[str, Use]:
    """The same, but of the fused stages, which are one run, a few."""
    return {
        name: use
        for name, use in firsts().items()
        if USES[name][0].engine != "FusedRun" or name in {"Map", "Filter", "ScanWithSeed", "Batch"}
    }


def representatives() -> Iterator[str]:
    """The names of one use for each part of the engine, on the caller and on other threads."""
    seen: set[Any] = set()
    for name, (op, use) in USES.items():
        part = (op.engine, use.threads)
        if not use.slow and part not in seen:
            seen.add(part)
            yield name
