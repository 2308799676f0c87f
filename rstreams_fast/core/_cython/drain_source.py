"""Generates the Python source of a drain: the loop that a person would write for one program.

For Python functions a loop in Python beats a loop in C, because the interpreter inlines calls from
Python to Python. All other work is done in C by the ``gate``, the object that the loop iterates
over: budget, demand, cancellation, the source, counting, and the first stages, up to one that calls
a Python function. The loop does the remaining calls, checks for ``None``, and counts the elements
that were left out.

When an exception propagates, the gate is told where the element was. The line number tells that: a
``try`` around each part would cost an instruction for each element. An exception that is raised at
another line (a ``KeyboardInterrupt`` at a ``continue``) finds no element under way. At the end
every local is cleared, since a traceback keeps the frame alive (§3.13).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from types import CodeType, CoroutineType, FunctionType
from typing import Any, Final

from rstreams_fast.core._common import MISSING
from rstreams_fast.core.stage_table import STAGES, State, note_comparison
from rstreams_fast.errors import report_unraisable

__all__ = ["drain_function", "drain_source"]

_CO_NESTED: Final = 0x10  # value of inspect, whose import is slow

#: Whether code objects are immortal (free-threaded 3.13, which does not specialise them either).
_CODE_IS_IMMORTAL: Final = "free-threading" in sys.version and sys.version_info < (3, 14)

_DELIVER: Final = {
    "call": ["slot(x)"],
    "ring": ["if not slot(x):", "    raise gate.overflow()"],
    "list": ["slot.append(x)"],
    "function": [
        "if over:",
        "    unwanted(x)",
        "else:",
        "    answer = slot(x)",
        "    if answer is not None and (answer is False or type(answer) is CoroutineType):",
        "        answered(answer)",
    ],
}
_SLOT: Final = {"function": ["slot", "over", "answered", "unwanted"]}


def _indent(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]


def _lines_of(name: str, i: int) -> list[str]:
    """Return the source of stage ``i``, with the number in its variable names."""
    numbered = {"f": f"f{i}", "n": f"n{i}", "h": f"h{i}", "i": str(i)}
    words = ("".join(word) for _, word in groupby(STAGES[name].source.strip(), str.isidentifier))
    return "".join(numbered.get(word, word) for word in words).splitlines()


def drain_source(shape: tuple[str, ...], first: int, to: str, counted: bool) -> str:
    """Return the source of ``drain(gate, f<first>, ..., slot)`` for the stages ``shape[first:]``.

    ``to`` says what ``slot`` is: a function to ``"call"``; the ``offer`` of a ``"ring"``, whose
    result is checked; a ``"list"``; or the ``"function"`` of a ``FunctionSlot``, whose other fields
    follow as arguments. ``counted``: count the elements that are left out.
    """
    numbered = [(i, STAGES[name], name) for i, name in enumerate(shape)][first:]
    delivers = "reduce" not in shape
    # A run that delivers only at its end need not count the elements left out.
    drops = counted and delivers and any(kind.drops for _, kind, _ in numbered)
    before = ["dropped = 0"] if drops else []
    after = ["gate.dropped += dropped"] if drops else []
    stages: list[str] = []
    slot = _SLOT.get(to, ["slot"])
    objects = ["x", "k", "gate", "answer", *slot]
    for i, kind, name in numbered:
        objects.append(f"f{i}")
        for line in _lines_of(name, i):
            margin = line.removesuffix("DROP")
            if margin == line:
                stages.append(line)
            else:
                stages += [f"{margin}dropped += 1", f"{margin}continue"][not drops :]
        if kind.counts:
            before.append(f"n{i} = gate.count({i})")
            after.append(f"gate.set_count({i}, n{i})")
        elif kind.state is not State.NONE:
            before.append(f"h{i} = gate.held({i})")
            after.append(f"gate.set_held({i}, h{i})")
            objects.append(f"h{i}")
    deliver = _DELIVER[to] if delivers else []
    functions = [f"f{i}" for i, _, _ in numbered]
    head = [
        f"def drain({', '.join(['gate', *functions, *slot])}):",
        *_indent(before, 1),
        "    try:",
        "        for x in gate:",
    ]
    lines = [*head, *_indent([*stages, *deliver, "continue"], 3)]
    last = len(head) + len(stages)
    in_stage = [
        number
        for number, line in enumerate(lines[:last], 1)
        if number > len(head) and line.lstrip() != "continue"
    ]
    lines += [
        "    except BaseException as raised:",
        "        line = raised.__traceback__.tb_lineno",
        f"        if line in {tuple(in_stage)}:",
        "            gate.in_stage()",
        f"        elif {last} < line <= {last + len(deliver)}:",
        "            gate.in_slot()",
        "        raise",
        "    finally:",
        *_indent(after, 2),
        f"        {' = '.join(objects)} = None",
    ]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=256)
def code_of(shape: tuple[str, ...], first: int, to: str, counted: bool) -> CodeType:
    name = f"<rstreams_fast drain: {' '.join(shape[first:]) or 'straight'}>"
    namespace: dict[str, Any] = {}
    source = drain_source(shape, first, to, counted)
    exec(compile(source, name, "exec"), namespace)  # noqa: S102
    code: CodeType = namespace["drain"].__code__
    # Without a GIL, functions that are not nested wait for the collector, or live for ever (3.13).
    return code.replace(co_flags=code.co_flags | _CO_NESTED)


def drain_function(
    shape: tuple[str, ...], first: int, to: str, counted: bool
) -> Callable[..., None]:
    """Return a drain for one run: its source is compiled once, its code object is a copy.

    The interpreter specialises a code object for the functions of one run; a shared one would then
    meet the functions of other runs.
    """
    scope = {
        # A C function that imports uses the globals of the drain that calls it: this scope.
        "__builtins__": builtins,
        "__name__": __name__,
        "CoroutineType": CoroutineType,
        "MISSING": MISSING,
        "note_comparison": note_comparison,
        "report_unraisable": report_unraisable,
    }
    code = code_of(shape, first, to, counted)
    return FunctionType(code if _CODE_IS_IMMORTAL else code.replace(), scope, "drain")
