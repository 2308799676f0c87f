"""The stages of a fused run, and how many elements the stages can use."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rstreams_fast._checks import describe_callable, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import STAGES, DemandRule, takes_nothing

__all__ = ["EVERYTHING", "Limits", "Need", "Stages", "describe_stage", "has_seed"]


class Need(NamedTuple):
    """The maximum number of elements that a part of a stream can use from the part above.

    A part is a stage (a function for each element, as in ``map``) or a boundary (an operator that
    is not a stage, such as ``publish_on``). ``total`` is the maximum for the whole stream. Above a
    stage that may drop elements, ``total`` is ``UNBOUNDED``: there is no limit. ``at_once`` is the
    maximum number of elements that are requested and not yet received.
    """

    total: int = UNBOUNDED
    at_once: int = UNBOUNDED

    def before(self, stage: tuple[Any, ...]) -> Need:
        """Return how many elements ``stage`` can use from the part above.

        ``self`` says how many results of ``stage`` the parts below can use.
        """
        if has_seed(stage) and self.total < UNBOUNDED:
            # The first result is the initial value (seed), which needs no element from above.
            total = max(self.total - 1, 0)
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
"""A ``Need`` without a limit: the parts below can use all elements."""


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


class Limits(NamedTuple):
    """Limits for requests to upstream. ``take(5).filter(f).take(3)`` has ``budget=3, most=5``."""

    budget: int
    """How many elements may be requested from upstream. Each dropped element raises this number."""
    most: int
    """How many elements may be requested from upstream, even if stages drop most of them."""
    drops: bool
    """Whether a stage may drop elements."""


class Stages:
    """The stages of a fused run, as tuples for ``FusedRun``.

    ``seed`` is an element to send before all elements of the source. ``takes_nothing`` says that
    the stages need no element of the source, as with ``take(0)``.
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
    """Return whether ``stage`` first delivers an initial value (seed), as ``scan`` can do."""
    return STAGES[stage[0]].seed_first and stage[2] is not MISSING


def describe_stage(stage: tuple[Any, ...]) -> str:
    """Return, as a text, the call that adds ``stage`` to a stream, such as ``"map(len)"``."""
    name, argument, *seed = stage
    if argument is None:
        return f"{name}()"
    text = describe_callable(argument) if callable(argument) else safe_repr(argument)
    if seed and seed[0] is not MISSING:
        text += f", {safe_repr(seed[0])}"
    return f"{name}({text})"
