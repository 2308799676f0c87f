"""Generates the Python source of a *drain*: the loop that carries out the stages of one run.

A run is a ``FusedRun``: a source with neighbouring stages, such as ``map``. If stages call Python
functions, a loop in Python is faster than a loop in C, because the interpreter inlines calls from
Python to Python. The Python loop iterates over the *gate*, a C object. The gate counts the demand,
checks for a cancel, and reads the source. It also carries out the first stages, up to the first
stage that calls a Python function. The Python loop carries out the other stages, checks for
``None``, and counts the dropped elements.

If an exception is raised, the run must know where the element was: in a stage, or in the slot (the
receiver of the results). The line number in the traceback tells this. (A ``try`` around each part
would cost an instruction for each element.) An exception may also come at another line. For
example, a ``KeyboardInterrupt`` may come at a ``continue``. Then no element is being processed. At
the end the loop clears all its local variables, because a traceback keeps its frame alive (§3.13).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, CoroutineType, FunctionType
from typing import Any, Final

from rstreams_fast.core.stage_table import STAGES, STEP_SCOPE, DemandRule, State

__all__ = ["drain_function", "drain_source"]

_CO_NESTED: Final = 0x10  # the value of inspect.CO_NESTED; importing inspect would be slow

#: Whether code objects are never freed, as in CPython 3.13 without a GIL. Then a code object for
#: each ``FusedRun`` (a loop over stages) would leak memory, and gain nothing: this Python does not
#: specialise code objects. So all runs with the same stage names share one code object.
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


def drain_source(shape: tuple[str, ...], first: int, to: str, counted: bool) -> str:
    """Return the source code of ``drain(gate, f<first>, ..., slot)``, the loop of a ``FusedRun``.

    The loop passes the elements that ``gate`` yields through stages, such as ``map``. ``gate``
    takes elements from the source, and carries out the stages before number ``first``. ``f2`` is
    the argument of stage 2, such as the function of a ``map``.

    Args:
        shape: The names of all stages.
        first: The number of the first stage that the loop carries out.
        to: What ``slot``, the receiver of the results, is. ``"call"``: a function. ``"ring"``: the
            method ``offer`` of a ring; if it returns ``False``, the loop raises an error.
            ``"list"``: a list, to which the loop appends. ``"function"``: a function of the user.
            Then ``drain`` has three more arguments. The loop calls ``answered`` with a result of
            ``slot`` that is ``False`` or a coroutine. Once the list ``over`` has an item, the loop
            calls the function ``unwanted`` in place of ``slot``.
        counted: Whether the loop counts the elements that its stages drop.
    """
    numbered = list(enumerate(STAGES[name] for name in shape))[first:]
    delivers = all(STAGES[name].needs is not DemandRule.ALL for name in shape)
    # The loop counts the elements that a stage drops, because these do not use up demand. With a
    # ``reduce`` it need not count them: a ``reduce`` delivers only at the end of the source.
    drops = counted and delivers and any(kind.drops for _, kind in numbered)
    before = ["dropped = 0"] if drops else []
    after = ["gate.dropped += dropped"] if drops else []
    stages: list[str] = []
    slot = _SLOT.get(to, ["slot"])
    objects = ["x", "k", "gate", "answer", *slot]
    for i, kind in numbered:
        objects.append(f"f{i}")
        # The names of the variables of a stage end in the number of the stage. For example, ``f2``
        # is the function of stage 2.
        words = {"f": f"f{i}", "n": f"n{i}", "h": f"h{i}", "i": str(i), "name": repr(kind.name)}
        words["END"] = "gate.end()"
        for line in kind.lines(words):
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
    functions = [f"f{i}" for i, _ in numbered]
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
    # Mark the code as the code of a nested function. Without a GIL, CPython frees a nested function
    # as soon as it is unused. Other functions are freed only in a garbage collection, and never in
    # Python 3.13.
    return code.replace(co_flags=code.co_flags | _CO_NESTED)


def drain_function(
    shape: tuple[str, ...], first: int, to: str, counted: bool
) -> Callable[..., None]:
    """Return the function ``drain`` (see ``drain_source``) for one ``FusedRun``.

    Each function has its own copy of the code object, which the interpreter specialises for the
    functions that this run calls. If several runs shared a code object, it would call different
    functions, and could not be specialised. But in CPython 3.13 without a GIL, all runs with the
    same stages share it, because code objects are never freed there, and copies would leak memory.
    """
    scope = {
        **STEP_SCOPE,
        # This dict becomes the globals of the drain. If the drain calls a C function that imports a
        # module, Python looks up __import__ in "__builtins__" of these globals. So set it.
        "__builtins__": builtins,
        "__name__": __name__,
        "CoroutineType": CoroutineType,
    }
    code = code_of(shape, first, to, counted)
    return FunctionType(code if _CODE_IS_IMMORTAL else code.replace(), scope, "drain")
