"""The Python source of a drain: what a person would write by hand for one shape of program.

For Python functions a loop in Python beats a loop in C, because the interpreter inlines calls from
Python to Python. Everything that needs no such call is done by the ``gate`` the loop iterates over,
in C: budget, demand, cancellation, the source, counting, and the first stages as long as they call
nothing written in Python. What is left here are the other calls, the checks for ``None`` and the
count of elements that were not delivered.

Where the element was when an exception left, which the gate is told, is known by the line it left
from: a ``try`` around each part would cost an instruction for each element. One that is raised
anywhere else, as ``KeyboardInterrupt`` may be at the loop's jump (the ``continue`` lines), finds no
element on its way. In the end every local is let go of, since a traceback keeps the frame (§3.13).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final

from rstreams_fast.core._common import MISSING
from rstreams_fast.errors import report_unraisable

__all__ = ["drain_function", "drain_source"]

_CO_NESTED: Final = 0x10  # as in inspect, which is slow to import

#: Whether code objects live for ever (free-threaded 3.13, which does not specialise them either).
_CODE_IS_IMMORTAL: Final = "free-threading" in sys.version and sys.version_info < (3, 14)

#: Stages after which an element may be missing from the output.
_DROPPING: Final = frozenset({"map_not_none", "filter", "take_while", "skip", "reduce", "batch"})
_COUNTING: Final = frozenset({"take", "skip"})
_HOLDING: Final = frozenset({"scan", "reduce", "batch"})

#: Of stages that hold something already, which saves the look whether they do.
_FILLED: Final = {
    "scan": ["x = f{i}(h{i}, x)", "if x is None:", "    raise gate.none_returned({i})", "h{i} = x"],
    "reduce": [
        "h{i} = f{i}(h{i}, x)",
        "if h{i} is None:",
        "    raise gate.none_returned({i})",
        "DROP",
    ],
}

#: Source lines of each stage; ``{i}`` is its index. ``DROP`` stands for leaving the element out.
_STAGES: Final = {
    "map": ["x = f{i}(x)", "if x is None:", "    raise gate.none_returned({i})"],
    "map_not_none": ["x = f{i}(x)", "if x is None:", "    DROP"],
    "filter": ["if not f{i}(x):", "    DROP"],
    "take_while": ["if not f{i}(x):", "    gate.end({i})", "    DROP"],
    "take": ["n{i} -= 1", "if not n{i}:", "    gate.end({i})"],
    "skip": ["if n{i}:", "    n{i} -= 1", "    DROP"],
    "scan": [
        "if h{i} is not MISSING:",
        "    x = f{i}(h{i}, x)",
        "    if x is None:",
        "        raise gate.none_returned({i})",
        "h{i} = x",
    ],
    "reduce": [
        "if h{i} is not MISSING:",
        "    x = f{i}(h{i}, x)",
        "    if x is None:",
        "        raise gate.none_returned({i})",
        "h{i} = x",
        "DROP",
    ],
    "batch": [
        "h{i}.append(x)",
        "if len(h{i}) < f{i}:",
        "    DROP",
        "x = h{i}",
        "h{i} = []",
    ],
    "do_on_next": [
        "try:",
        "    f{i}(x)",
        "except Exception as raised:",
        "    report_unraisable(raised, 'do_on_next', f{i})",
    ],
}


_DELIVER: Final = {
    "call": ["slot(x)"],
    "ring": ["if not slot(x):", "    raise gate.overflow()"],
    "list": ["slot.append(x)"],
}


def _indent(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]


def drain_source(
    shape: tuple[str, ...], first: int, to: str, counted: bool, filled: bool = False
) -> str:
    """The source of ``drain(gate, f<first>, ..., slot)`` for the opcodes in ``shape[first:]``.

    ``to`` says what ``slot`` is: a function to ``"call"``, the ``offer`` of a ``"ring"``, whose
    answer matters, or a ``"list"``. ``counted``: the number of elements left out is wanted.
    ``filled``: every scan and reduction holds something, a seed or the first element.
    """
    numbered = list(enumerate(shape))[first:]
    counts = counted and any(op in _DROPPING for _, op in numbered)
    before: list[str] = ["dropped = 0"] if counts else []
    after: list[str] = ["gate.dropped += dropped"] if counts else []
    stages: list[str] = []
    for i, op in numbered:
        for line in _FILLED.get(op, _STAGES[op]) if filled else _STAGES[op]:
            text = line.format(i=i)
            if text.endswith("DROP"):
                margin = text.removesuffix("DROP")
                stages += [f"{margin}dropped += 1"] if counts else []
                stages.append(f"{margin}continue")
            else:
                stages.append(text)
        if op in _COUNTING:
            before.append(f"n{i} = gate.count({i})")
            after.append(f"gate.set_count({i}, n{i})")
        if op in _HOLDING:
            before.append(f"h{i} = gate.held({i})")
            after.append(f"gate.set_held({i}, h{i})")
    functions = [f"f{i}" for i, _ in numbered]
    held = [f"h{i}" for i, op in numbered if op in _HOLDING]
    deliver = [] if "reduce" in shape else _DELIVER[to]
    head = [
        f"def drain({', '.join(['gate', *functions, 'slot'])}):",
        *_indent(before, 1),
        "    try:",
        "        for x in gate:",
    ]
    lines = [*head, *_indent([*stages, *deliver, "continue"], 3)]
    in_stage = [
        number
        for number, line in enumerate(lines, 1)
        if len(head) < number <= len(head) + len(stages) and line.lstrip() != "continue"
    ]
    last = len(head) + len(stages)
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
        f"        {' = '.join(['x', 'gate', 'slot', *functions, *held])} = None",
    ]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=256)
def code_of(shape: tuple[str, ...], first: int, to: str, counted: bool, filled: bool) -> CodeType:
    name = f"<rstreams_fast drain: {' '.join(shape[first:]) or 'straight'}>"
    namespace: dict[str, Any] = {}
    source = drain_source(shape, first, to, counted, filled)
    exec(compile(source, name, "exec"), namespace)  # noqa: S102
    code: CodeType = namespace["drain"].__code__
    # Without a GIL, functions that are not nested wait for the collector, or live for ever (3.13).
    return code.replace(co_flags=code.co_flags | _CO_NESTED)


def drain_function(
    shape: tuple[str, ...], first: int, to: str, counted: bool, filled: bool
) -> Callable[..., None]:
    """A drain of its own for one run: the code is compiled once, its inline caches are not shared.

    A shared code object would be specialised by the interpreter for the functions of one run and
    then meet those of another.
    """
    scope = {
        # What a function written in C imports, it imports as the frame that calls it would: this.
        "__builtins__": builtins,
        "__name__": __name__,
        "MISSING": MISSING,
        "report_unraisable": report_unraisable,
    }
    code = code_of(shape, first, to, counted, filled)
    return FunctionType(code if _CODE_IS_IMMORTAL else code.replace(), scope, "drain")
