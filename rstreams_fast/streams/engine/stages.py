"""The stages of one fused run, and how many elements they need."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rstreams_fast._checks import describe_callable, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import STAGES, DemandRule, takes_nothing

__all__ = ["EVERYTHING", "Limits", "Need", "Stages", "describe_stage", "has_seed"]


class Need(NamedTuple):
    """The most elements that a stage or boundary can take from the part above.

    ``UNBOUNDED`` means that there is no limit.

    ``total`` is the limit for the whole stream. It is ``UNBOUNDED`` above a stage that may drop
    elements. ``at_once`` is the limit for elements that are requested and not yet received.
    """

    total: int = UNBOUNDED
    at_once: int = UNBOUNDED

    def before(self, stage: tuple[Any, ...]) -> Need:
        """Return the most elements that ``stage`` can take from the part above.

        ``self`` is the ``Need`` of the parts below ``stage``.
        """
        if has_seed(stage) and self.total < UNBOUNDED:
            total = max(self.total - 1, 0)  # the seed is one of the ``self.total`` elements
            return Need(total, min(self.at_once, total))
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
"""The ``Need`` without a limit: the parts below can use all elements."""


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


class Limits(NamedTuple):
    """How many elements a subscription may request. For ``take(3)``, both limits are 3."""

    budget: int
    """How many elements may be requested, without the replacements for dropped elements."""
    most: int
    """How many elements may be requested, with the replacements for dropped elements."""
    drops: bool
    """Whether a stage may drop elements."""


class Stages:
    """The stages of a run, in the form that ``FusedRun`` takes.

    ``seed`` is an element to send before all others. ``takes_nothing`` says that the stages need no
    element of the source, as with ``take(0)``.
    """

    __slots__ = ("_limits", "seed", "stages", "takes_nothing")

    def __init__(self, stages: tuple[tuple[Any, ...], ...] = (), seed: Any = MISSING) -> None:
        self.stages = stages
        self.seed = seed
        self.takes_nothing = takes_nothing(stages)
        self._limits: Limits | None = None

    @property
    def limits(self) -> Limits:
        """How many elements each subscription may request. Computed once for all subscriptions."""
        limits = self._limits
        if limits is None:
            keep = tuple(stage for stage in self.stages if not _drops(stage))
            self._limits = limits = Limits(
                self._requestable(keep),
                self._requestable(self.stages),
                len(keep) < len(self.stages),
            )
        return limits

    def _requestable(self, stages: tuple[tuple[Any, ...], ...]) -> int:
        need = EVERYTHING
        for stage in reversed(stages):
            need = need.before(stage)
        n = need.total
        return n if n == UNBOUNDED or self.seed is MISSING else max(n - 1, 0)


def _drops(stage: tuple[Any, ...]) -> bool:
    return STAGES[stage[0]].needs in {DemandRule.UNKNOWN, DemandRule.PLUS}


def has_seed(stage: tuple[Any, ...]) -> bool:
    """Return whether ``stage`` delivers a seed before all results, as ``scan`` with a seed does."""
    return STAGES[stage[0]].seed_first and stage[2] is not MISSING


def describe_stage(stage: tuple[Any, ...]) -> str:
    """Return the text of the call that added ``stage`` to a stream, such as ``map(len)``."""
    name, argument, *seed = stage
    if argument is None:
        return f"{name}()"
    text = describe_callable(argument) if callable(argument) else safe_repr(argument)
    if seed and seed[0] is not MISSING:
        text += f", {safe_repr(seed[0])}"
    return f"{name}({text})"
