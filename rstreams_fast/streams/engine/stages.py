"""The stages of one fused run, and how many elements they need."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rstreams_fast._checks import describe_callable, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import STAGES, DemandRule

__all__ = ["EVERYTHING", "Need", "Stages", "describe_stage"]


class Need(NamedTuple):
    """The most elements that a stage or boundary can use. ``UNBOUNDED``: there is no limit.

    ``total``: in the whole stream. ``UNBOUNDED`` above stages that may drop elements.
    ``at_once``: requested and not yet received, at any time.
    """

    total: int = UNBOUNDED
    at_once: int = UNBOUNDED

    def before(self, stage: tuple[Any, ...]) -> Need:
        """Return the need of ``stage``. ``self`` is the need of the parts below ``stage``."""
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
"""No limit."""


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


class Stages(NamedTuple):
    """Stages, as arguments of ``FusedRun``. ``seed``: an element before those of the source."""

    stages: tuple[tuple[Any, ...], ...] = ()
    seed: Any = MISSING

    @property
    def takes_nothing(self) -> bool:
        """Whether the stages need no element of the source (``take(0)``)."""
        return ("take", 0) in self.stages

    @property
    def drops(self) -> bool:
        """Whether a stage may drop elements."""
        return any(
            STAGES[stage[0]].needs in {DemandRule.UNKNOWN, DemandRule.PLUS} for stage in self.stages
        )

    def budget(self) -> int:
        """Return how many elements may be requested of the source if no stage drops elements."""
        budget = UNBOUNDED
        for stage in reversed(self.stages):
            needs = STAGES[stage[0]].needs
            if needs is DemandRule.AT_MOST:
                budget = min(budget, stage[1])
            elif needs is DemandRule.TIMES:
                budget = _times(budget, stage[1])
            elif needs is DemandRule.ALL:
                budget = UNBOUNDED  # the stage needs all elements, whatever follows it
        return self._without_seed(budget)

    def most(self) -> int:
        """Return how many elements may be requested of the source, dropped elements included."""
        need = EVERYTHING
        for stage in reversed(self.stages):
            need = need.before(stage)
        return self._without_seed(need.total)

    def _without_seed(self, n: int) -> int:
        return n if n == UNBOUNDED or self.seed is MISSING else max(n - 1, 0)


def describe_stage(stage: tuple[Any, ...]) -> str:
    """Return the text of the call that added ``stage`` to a stream, such as ``map(len)``."""
    name, argument, *seed = stage
    if argument is None:
        return f"{name}()"
    text = describe_callable(argument) if callable(argument) else safe_repr(argument)
    if seed and seed[0] is not MISSING:
        text += f", {safe_repr(seed[0])}"
    return f"{name}({text})"
