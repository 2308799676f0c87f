"""The table of all stages (such as ``map``) that a ``FusedRun`` can carry out in one loop.

A *program* is a tuple of stages. A stage is a tuple of its name and its argument; ``scan`` and
``reduce`` have the seed as a third item. To add a stage, add a row here, the same code in
``_cython/fused.pyx``, and a method of ``Stream``. The row contains the stage's Python code, for the
backend ``python`` and for the loops that ``_cython/drain_source.py`` generates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

from rstreams_fast._checks import add_note, check_count, describe_callable
from rstreams_fast.core._common import MISSING
from rstreams_fast.errors import StageReturnedNoneError, report_unraisable

__all__ = [
    "DROPPED",
    "STAGES",
    "STEP_SCOPE",
    "DemandRule",
    "Fate",
    "StageKind",
    "State",
    "check_program",
    "none_returned",
    "takes_nothing",
]


class DemandRule:
    """Tells how many elements a stage needs from upstream to deliver ``n`` elements.

    The values are strings, not members of an enumeration. On Python 3.11, reading a member takes
    0.1 us, and each new subscription reads dozens of values.
    """

    SAME: Final = "n"
    AT_MOST: Final = "n, and in all no more than its argument"
    PLUS: Final = "its argument more than n, once"
    TIMES: Final = "its argument times n"
    UNKNOWN: Final = "n or more: it may drop any"
    ALL: Final = "all there are"


class State:
    """What a stage (such as ``take``) stores before its first element, and between elements."""

    NONE: Final = "nothing"
    COUNT: Final = "a count, from its argument down to 0"
    UNDECIDED: Final = "a count that is 1, and 0 once its predicate has decided"
    ACCUMULATION: Final = "an object: the seed, then what the function returned"
    BATCH: Final = "an object: the list of elements that wait for more"
    LAST: Final = "an object: MISSING, then the element or key before this one"


class Fate:
    """What a stage does with an element. This decides which elements the hook on_discard gets."""

    PASSED_ON: Final = "the stage passes the element on"
    READ: Final = "the function reads the element, which is passed on"
    USED: Final = "the function makes another element of its arguments"
    ADDED: Final = "the same, but the first argument has been delivered before"
    KEPT_IF_TRUE: Final = "the stage drops the element unless the function returns a true value"
    DROPPED_IF_TRUE: Final = "the stage drops the element if the function returns a true value"
    COUNTED: Final = "the stage drops the element while its count is above 0"
    COMPARED: Final = "the stage drops the element if it equals the one before"
    GATHERED: Final = "the element becomes an item of a list"


def none_returned(index: int, name: str, fn: Callable[..., Any]) -> StageReturnedNoneError:
    """Return the error for a stage whose function ``fn`` returned ``None``.

    ``index`` is the position of the stage in its program (a tuple of stages), counted from 0.
    """
    hint = "; use map_not_none to drop such elements" if name == "map" else ""
    return StageReturnedNoneError(
        f"§2.13: {describe_callable(fn)}, the function of stage {index + 1} ({name}), "
        f"returned None, which is not an element{hint}"
    )


def note_comparison(error: Exception) -> None:
    """Add to ``error`` the note that ``distinct_until_changed`` was comparing elements."""
    add_note(
        error,
        "distinct_until_changed compares each element, or its key, with the one before it by ==",
    )


STEP_SCOPE: Final[dict[str, Any]] = {
    "MISSING": MISSING,
    "none_returned": none_returned,
    "note_comparison": note_comparison,
    "report_unraisable": report_unraisable,
}
"""The global names that the Python code of a stage (``StageKind.source``) may use."""


DROPPED: Final = object()
"""The result of ``StageKind.step`` if the stage drops or stores the element."""


@dataclass(frozen=True)
class StageKind:
    """One row of the table: what all stages of one name (such as ``map``) have in common."""

    name: str
    """The name of the stage, and of the ``Stream`` method that adds the stage to a stream."""
    source: str
    """The Python code that processes one element. These names have a meaning:

    ``x``: the element, then the result; ``f``: the stage's argument, such as the function of
    ``map``; ``n``: a count that the stage stores, as ``take`` does; ``h``: an object that the stage
    stores, such as the list of ``batch``; ``i``: the stage's number; ``name``: its name; ``k``: a
    local variable. Two words stand for statements. ``DROP``: give no element to the next stage.
    ``END``: end the stream after this element, because ``n`` is 0.
    """
    needs: str = DemandRule.SAME
    state: str = State.NONE
    least: int | None = None
    """The smallest number that the stage accepts. ``None`` if its argument is a function."""
    optional: bool = False
    """Whether the argument may be ``None`` in place of a function."""
    flushes: bool = False
    """Whether the stage delivers the object that it stores, if any, at the end of the source."""
    fate: str = Fate.PASSED_ON

    @cached_property
    def seeded(self) -> bool:
        """Whether the stage's tuple has a third item, as for ``scan``: the seed, or ``MISSING``."""
        return self.state is State.ACCUMULATION

    @cached_property
    def seed_first(self) -> bool:
        """Whether the stage delivers its seed before all results, as ``scan`` does."""
        return self.seeded and not self.flushes

    @cached_property
    def counts(self) -> bool:
        """Whether the stage stores a count, as ``take`` does, and not another object or nothing."""
        return self.state in {State.COUNT, State.UNDECIDED}

    @cached_property
    def drops(self) -> bool:
        """Whether the stage may drop an element, or keep it for later."""
        return "DROP" in self.source

    @cached_property
    def ends(self) -> bool:
        """Whether the stage ends the stream when its stored count becomes 0, as ``take`` does."""
        return "END" in self.source

    @cached_property
    def settles(self) -> bool:
        """Whether the stage drops no more elements once its stored count is 0, as ``skip`` does."""
        return self.counts and not self.ends

    def lines(self, words: dict[str, str]) -> list[str]:
        """Return the lines of the stage's Python code, with names replaced.

        ``words`` maps names in the code (the attribute ``source``) to their replacements.
        """
        parts = ("".join(part) for _, part in groupby(self.source.strip(), str.isidentifier))
        return "".join(words.get(part, part) for part in parts).splitlines()

    @cached_property
    def step(self) -> Callable[[list[Any], int, Any, Any], Any]:
        """The function ``step(state, i, f, x)``, which processes one element ``x``.

        The function returns the element for the next stage, or ``DROPPED``. ``i`` is the number of
        the stage, ``state[i]`` the value that the stage stores, and ``f`` the stage's argument.
        """
        words = {"n": "state[i]", "h": "state[i]", "name": repr(self.name)}
        # In ``source``, the word END means that the stage ends the stream by a stored count of 0.
        # END needs no code here: after each call of ``step``, FusedRun looks whether state[i] is 0.
        words |= {"DROP": "return DROPPED", "END": "pass"}
        lines = ["def step(state, i, f, x):", *self.lines(words), "return x"]
        # After this stage (such as ``take``) has ended the stream, an earlier stage may still pass
        # on the object that it stores, such as the unfinished list of a ``batch``. Drop the object.
        if self.ends:
            lines[1:1] = ["if not state[i]:", "    return DROPPED"]
        source = "\n    ".join(lines)
        scope: dict[str, Any] = {**STEP_SCOPE, "DROPPED": DROPPED}
        exec(compile(source, f"<rstreams_fast step: {self.name}>", "exec"), scope)  # noqa: S102
        return scope["step"]  # type: ignore[no-any-return]

    def first_state(self, stage: tuple[Any, ...]) -> Any:
        """Return the value that ``stage`` stores before its first element."""
        match self.state:
            case State.NONE:
                return None
            case State.COUNT:
                return stage[1]
            case State.UNDECIDED:
                return 1
            case State.ACCUMULATION:
                return stage[2]
            case State.BATCH:
                return []
        return MISSING


_ROWS: Final = (
    StageKind("map", """
x = f(x)
if x is None:
    raise none_returned(i, name, f)
""", fate=Fate.USED),
    StageKind("map_not_none", """
x = f(x)
if x is None:
    DROP
""", DemandRule.UNKNOWN, fate=Fate.USED),
    StageKind("filter", """
if not f(x):
    DROP
""", DemandRule.UNKNOWN, fate=Fate.KEPT_IF_TRUE),
    StageKind("take", """
n -= 1
if not n:
    END
""", DemandRule.AT_MOST, State.COUNT, least=0),
    StageKind("take_while", """
if not f(x):
    n = 0
    END
    DROP
""", state=State.UNDECIDED, fate=Fate.KEPT_IF_TRUE),
    StageKind("skip", """
if n:
    n -= 1
    DROP
""", DemandRule.PLUS, State.COUNT, least=0, fate=Fate.COUNTED),
    StageKind("skip_while", """
if n:
    if f(x):
        DROP
    n = 0
""", DemandRule.UNKNOWN, State.UNDECIDED, fate=Fate.DROPPED_IF_TRUE),
    StageKind("distinct_until_changed", """
k = x if f is None else f(x)
if k is h:
    DROP
try:
    if h is not MISSING and k == h:
        DROP
except Exception as raised:
    note_comparison(raised)
    raise
h = k
""", DemandRule.UNKNOWN, State.LAST, optional=True, fate=Fate.COMPARED),
    StageKind("scan", """
if h is not MISSING:
    x = f(h, x)
    if x is None:
        raise none_returned(i, name, f)
h = x
""", state=State.ACCUMULATION, fate=Fate.ADDED),
    StageKind("reduce", """
if h is not MISSING:
    x = f(h, x)
    if x is None:
        raise none_returned(i, name, f)
h = x
DROP
""", DemandRule.ALL, State.ACCUMULATION, flushes=True, fate=Fate.USED),
    StageKind("batch", """
h.append(x)
if len(h) < f:
    DROP
x = h
h = []
""", DemandRule.TIMES, State.BATCH, least=1, flushes=True, fate=Fate.GATHERED),
    StageKind("do_on_next", """
try:
    f(x)
except Exception as raised:
    report_unraisable(raised, name, f)
""", fate=Fate.READ),
)  # fmt: skip

STAGES: Final = {kind.name: kind for kind in _ROWS}


def check_program(program: object) -> tuple[tuple[Any, ...], ...]:
    """Return ``program`` with stages as tuples and numbers as plain ``int`` objects.

    Raises an error if the program is wrong. Numbers of other types, such as numpy's, are converted
    to ``int``, because they might overflow, or not support arithmetic at all.
    """
    checked = [tuple(stage) for stage in program]  # type: ignore[attr-defined]
    for index, stage in enumerate(checked):
        kind = STAGES.get(stage[0]) if stage and isinstance(stage[0], str) else None
        if kind is None:
            raise ValueError(f"stage {index + 1}: unknown stage {stage[:1]!r}")
        name = stage[0]
        if len(stage) != 2 + kind.seeded:
            takes = "a function and a seed (or MISSING)" if kind.seeded else "one argument"
            raise ValueError(f"stage {index + 1}: {name} needs {takes}")
        if kind.least is not None:
            checked[index] = (name, check_count(f"{name}(n): n", stage[1], kind.least))
        elif not callable(stage[1]) and not (kind.optional and stage[1] is None):
            raise TypeError(f"{name} needs a callable, got {type(stage[1]).__name__}")
    return tuple(checked)


def takes_nothing(program: tuple[tuple[Any, ...], ...]) -> bool:
    """Return whether the program needs no element of the source, because it has a ``take(0)``."""
    for op in program:  # noqa: SIM110 - a generator takes longer, and each new stream calls this
        if STAGES[op[0]].needs is DemandRule.AT_MOST and op[1] == 0:
            return True
    return False
