"""The stages of one fused run, and what is known about them beforehand."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rstreams_fast._checks import describe_callable, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import STAGES, DemandRule

__all__ = ["EVERYTHING", "Need", "Stages", "describe_stage"]


class Need(NamedTuple):
    """How many elements a part of a stream can make use of, at most.

    ``total``: in all, where stages that drop elements do not make that unknowable. ``at_once``:
    outstanding at any one time. Both are ``UNBOUNDED`` when nothing below takes a known number.
    """

    total: int = UNBOUNDED
    at_once: int = UNBOUNDED

    def before(self, stage: tuple[Any, ...]) -> Need:
        """What the stage itself needs from above it to give this."""
        name, argument = stage[:2]
        match STAGES[name].needs:
            case DemandRule.AT_MOST:
                return Need(min(self.total, argument), min(self.at_once, argument))
            case DemandRule.PLUS:
                return Need(
                    min(self.total + argument, UNBOUNDED), min(self.at_once + argument, UNBOUNDED)
                )
            case DemandRule.TIMES:
                return Need(_times(self.total, argument), _times(self.at_once, argument))
            case DemandRule.UNKNOWN:
                return Need(UNBOUNDED, self.at_once)
            case DemandRule.ALL:
                return EVERYTHING
        return self


EVERYTHING: Final = Need()
"""As many as come: a subscriber can make use of all."""


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


class Stages(NamedTuple):
    """Stages as ``FusedRun`` takes them. ``seed`` is an element that precedes all that the source
    gives.
    """

    stages: tuple[tuple[Any, ...], ...] = ()
    seed: Any = MISSING

    @property
    def takes_nothing(self) -> bool:
        """Whether the first stages end the stream before its source is even opened."""
        return ("take", 0) in self.stages

    @property
    def drops(self) -> bool:
        """Whether an element that goes in may leave nothing."""
        return any(
            STAGES[stage[0]].needs in {DemandRule.UNKNOWN, DemandRule.PLUS} for stage in self.stages
        )

    def budget(self) -> int:
        """How many elements may be asked of the source if none is dropped on the way."""
        budget = UNBOUNDED
        for stage in reversed(self.stages):
            needs = STAGES[stage[0]].needs
            if needs is DemandRule.AT_MOST:
                budget = min(budget, stage[1])
            elif needs is DemandRule.TIMES:
                budget = _times(budget, stage[1])
            elif needs is DemandRule.ALL:
                budget = UNBOUNDED  # however few are taken below it
        return self._without_seed(budget)

    def most(self) -> int:
        """How many elements may be asked of the source in all, whatever is dropped."""
        need = EVERYTHING
        for stage in reversed(self.stages):
            need = need.before(stage)
        return self._without_seed(need.total)

    def _without_seed(self, n: int) -> int:
        return n if n == UNBOUNDED or self.seed is MISSING else max(n - 1, 0)


def describe_stage(stage: tuple[Any, ...]) -> str:
    """Write a stage as it was composed."""
    name, argument, *seed = stage
    if argument is None:
        return f"{name}()"
    text = describe_callable(argument) if callable(argument) else safe_repr(argument)
    if seed and seed[0] is not MISSING:
        text += f", {safe_repr(seed[0])}"
    return f"{name}({text})"
