"""The stages of one fused run, and what can be known about them beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.core._common import describe_callable

__all__ = ["Need", "Program", "describe_stage"]

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
            return Need(UNBOUNDED, self.at_once)
        if name == "reduce":
            return Need()
        return self


def _times(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


@dataclass(frozen=True, slots=True)
class Program:
    """Stages as ``FusedRun`` takes them. ``seed`` is an element that precedes all that the source
    gives.
    """

    stages: tuple[tuple[Any, ...], ...] = ()
    seed: Any = MISSING

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
        return budget


def describe_stage(stage: tuple[Any, ...]) -> str:
    """Write a stage as it was composed."""
    name, argument, *seed = stage
    shown = describe_callable(argument) if callable(argument) else repr(argument)
    if seed and seed[0] is not MISSING:
        shown += f", {seed[0]!r}"
    return f"{name}({shown})"
