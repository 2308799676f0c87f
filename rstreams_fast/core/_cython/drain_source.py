"""The Python source of a drain: what a person would write by hand for one shape of program.

For Python functions a loop in Python beats a loop in C, because the interpreter inlines calls from
Python to Python. Everything that needs no such call is done by the ``gate`` the loop iterates over,
in C: budget, demand, cancellation, the source, counting, and the first stages as long as they call
nothing written in Python. What is left here are the other calls, the checks for ``None`` and the
count of elements that were not delivered.

The gate learns where the element was when an exception left. It is known by the line it left
from: a ``try`` around each part would cost an instruction for each element. One that is raised
anywhere else, as ``KeyboardInterrupt`` may be at the loop's jump (the ``continue`` lines), finds no
element on its way. In the end every local is dropped, since a traceback keeps the frame (§3.13).
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
from rstreams_fast.core.stages import STAGES, State, note_comparison
from rstreams_fast.errors import report_unraisable

__all__ = ["drain_function", "drain_source"]

_CO_NESTED: Final = 0x10  # as in inspect, which is slow to import

#: Whether code objects live for ever (free-threaded 3.13, which does not specialise them either).
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
    """The source of stage ``i``, whose names bear its number."""
    numbered = {"f": f"f{i}", "n": f"n{i}", "h": f"h{i}", "i": str(i)}
    words = ("".join(word) for _, word in groupby(STAGES[name].source.strip(), str.isidentifier))
    return "".join(numbered.get(word, word) for word in words).splitlines()


def drain_source(shape: tuple[str, ...], first: int, to: str, counted: bool) -> str:
    """The source of ``drain(gate, f<first>, ..., slot)`` for the stages named ``shape[first:]``.

    ``to`` says what ``slot`` is: a function to ``"call"``, the ``offer`` of a ``"ring"``, whose
    answer matters, a ``"list"``, or the ``"function"`` of a ``FunctionSlot``, whose other parts
    follow. ``counted``: the number of elements left out is wanted.
    """
    numbered = [(i, STAGES[name], name) for i, name in enumerate(shape)][first:]
    delivers = "reduce" not in shape
    # Of those left out a run that delivers nothing before its end needs no account.
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
    """A drain of its own for one run: the code is compiled once, its inline caches are not shared.

    A shared code object would be specialised by the interpreter for the functions of one run and
    then meet those of another.
    """
    scope = {
        # What a function written in C imports, it imports as the frame that calls it would: this.
        "__builtins__": builtins,
        "__name__": __name__,
        "CoroutineType": CoroutineType,
        "MISSING": MISSING,
        "note_comparison": note_comparison,
        "report_unraisable": report_unraisable,
    }
    code = code_of(shape, first, to, counted)
    return FunctionType(code if _CODE_IS_IMMORTAL else code.replace(), scope, "drain")
