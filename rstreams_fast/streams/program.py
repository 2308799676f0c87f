"""The stages of one fused run, and what can be known about them beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core._common import describe_callable
from rstreams_fast.errors import shown
from rstreams_fast.streams.distinct import Distinct

__all__ = ["EVERYTHING", "Need", "Program", "describe_stage"]

_DROPPING = frozenset({"filter", "map_not_none"})


@dataclass(frozen=True, slots=True)
class Need:
    """How many elements a part of a stream can make use of, at most.

    ``total``: in all, where stages that drop elements do not make that unknowable. ``at_once``:
    outstanding at any one time. Both are ``UNBOUNDED`` when nothing below takes a known number.
    """

    total: int = UNBOUNDED
    at_once: int = UNBOUNDED

    def before(self, stage: tuple[Any, ...]) -> Need:
        """What the stage itself needs from above it to give this."""
        name = stage[0]
        if name == "take":
            return Need(min(self.total, stage[1]), min(self.at_once, stage[1]))
        if name == "batch":
            return Need(_times(self.total, stage[1]), _times(self.at_once, stage[1]))
        if name == "skip":
            return Need(
                min(self.total + stage[1], UNBOUNDED), min(self.at_once + stage[1], UNBOUNDED)
            )
        if name in _DROPPING:
            return self if self.total == UNBOUNDED else Need(UNBOUNDED, self.at_once)
        if name == "reduce":
            return EVERYTHING
        return self


EVERYTHING: Final = Need()
"""As many as come: what whoever is subscribed can make use of."""


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Program:
    """Stages as ``FusedRun`` takes them. ``seed`` is an element that precedes all that the source
    gives.
    """

    stages: tuple[tuple[Any, ...], ...] = ()
    seed: Any = MISSING

    def for_subscriber(self) -> tuple[tuple[Any, ...], ...]:
        """The stages for one more run: a predicate that remembers is one of its own."""
        return tuple(
            (stage[0], stage[1].predicate()) if isinstance(stage[1], Distinct) else stage
            for stage in self.stages
        )

    @property
    def takes_nothing(self) -> bool:
        """Whether the first stages end the stream before its source is even opened."""
        return any(stage[0] == "take" and stage[1] == 0 for stage in self.stages)

    @property
    def drops(self) -> bool:
        """Whether an element that goes in may leave nothing."""
        return any(stage[0] in _DROPPING or stage[0] == "skip" for stage in self.stages)

    def budget(self) -> int:
        """How many elements may be asked of the source if none is dropped on the way."""
        budget = UNBOUNDED
        for stage in reversed(self.stages):
            if stage[0] == "take":
                budget = min(budget, stage[1])
            elif stage[0] == "batch":
                budget = _times(budget, stage[1])
            elif stage[0] == "reduce":
                budget = UNBOUNDED  # it needs all, however few are taken below it
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
    if isinstance(argument, Distinct):
        return argument.describe()
    text = describe_callable(argument) if callable(argument) else shown(argument)
    if seed and seed[0] is not MISSING:
        text += f", {shown(seed[0])}"
    return f"{name}({text})"
