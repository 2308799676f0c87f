"""The Python source of a drain: what a person would write by hand for one shape of program.

For Python functions a loop in Python beats a loop in C, because the interpreter inlines calls from
Python to Python. Everything that needs no such call is done by the ``gate`` the loop iterates over,
in C: budget, demand, cancellation, the source, counting. What is left here are the
calls, the checks for ``None`` and the count of elements that were not delivered.

Exceptions leave through ``gate.in_stage()`` or ``gate.in_slot()``, which note where the element
was; one that is raised anywhere else, as ``KeyboardInterrupt`` may be at the loop's jump, finds no
element on its way. In the end every local is let go of, since a traceback keeps the frame (§3.13).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final

from rstreams_fast.core._common import MISSING
from rstreams_fast.errors import report_unraisable

__all__ = ["drain_function", "drain_source"]

#: Stages after which an element may be missing from the output.
_DROPPING: Final = frozenset({"map_not_none", "filter", "take_while", "skip", "reduce", "batch"})
_COUNTING: Final = frozenset({"take", "skip"})
_HOLDING: Final = frozenset({"scan", "reduce", "batch"})

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


def _indent(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]


def drain_source(shape: tuple[str, ...], to_ring: bool, counted: bool) -> str:
    """The source of ``drain(gate, f0, f1, ..., slot)`` for the opcodes in ``shape``.

    ``to_ring`` says that ``slot`` is a ring's ``offer``, whose answer matters; ``counted`` that the
    number of elements left out is wanted.
    """
    counts = counted and any(op in _DROPPING for op in shape)
    before: list[str] = ["dropped = 0"] if counts else []
    after: list[str] = ["gate.dropped = dropped"] if counts else []
    stages: list[str] = []
    for i, op in enumerate(shape):
        for line in _STAGES[op]:
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
    functions = [f"f{i}" for i in range(len(shape))]
    held = [f"h{i}" for i, op in enumerate(shape) if op in _HOLDING]
    deliver = ["if not slot(x):", "    raise gate.overflow()"] if to_ring else ["slot(x)"]
    stage_part = [
        "try:",
        *_indent(stages, 1),
        "except BaseException:",
        "    gate.in_stage()",
        "    raise",
    ]
    slot_part = [
        "try:",
        *_indent(deliver, 1),
        "except BaseException:",
        "    gate.in_slot()",
        "    raise",
    ]
    ends_in_reduce = "reduce" in shape
    body = [*(stage_part if stages else []), *([] if ends_in_reduce else slot_part)]
    lines = [
        f"def drain({', '.join(['gate', *functions, 'slot'])}):",
        *_indent(before, 1),
        "    try:",
        "        for x in gate:",
        *_indent(body, 3),
        "    finally:",
        *_indent(after, 2),
        f"        {' = '.join(['x', 'gate', 'slot', *functions, *held])} = None",
    ]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=256)
def _code(shape: tuple[str, ...], to_ring: bool, counted: bool) -> CodeType:
    name = f"<rstreams_fast drain: {' '.join(shape) or 'straight'}>"
    namespace: dict[str, Any] = {}
    exec(compile(drain_source(shape, to_ring, counted), name, "exec"), namespace)  # noqa: S102
    code: CodeType = namespace["drain"].__code__
    return code


def drain_function(shape: tuple[str, ...], to_ring: bool, counted: bool) -> Callable[..., None]:
    """A drain of its own for one run: the code is compiled once, its inline caches are not shared.

    A shared code object would be specialised by the interpreter for the functions of one run and
    then meet those of another.
    """
    scope = {"MISSING": MISSING, "report_unraisable": report_unraisable}
    return FunctionType(_code(shape, to_ring, counted).replace(), scope, "drain")
