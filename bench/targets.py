"""What the project wants to reach (``targets.md``), and what was measured for it in one run."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.measure import Spread, Timing

__all__ = ["FLOOR", "TARGETS", "Round", "Target", "judge", "rounds_of"]

FLOOR = "FLOOR"
#: Of every round: group, contestant, timing.
Measured = Sequence[Mapping[str, Mapping[str, Timing]]]


@dataclass(frozen=True)
class Round:
    """What one round measured; a ``KeyError`` where it did not."""

    values: Mapping[str, Mapping[str, Timing]]
    #: Of every group, its fastest floor over all rounds.
    floors: Mapping[str, str]
    by_cpu: bool = False

    def of(self, group: str, name: str) -> float:
        """What that contestant took; ``FLOOR`` is the group's fastest floor."""
        timing = self.values[group][self.floors[group] if name == FLOOR else name]
        if not self.by_cpu:
            return timing.wall
        if not timing.cpu:
            raise KeyError(name)  # no time was measured, or less than the clock can tell
        return timing.cpu


@dataclass(frozen=True)
class Target:
    """A figure that is to be at most, or at least, ``bound``."""

    path: str
    what: str
    relation: str  # "<=" or ">="
    bound: float
    figure: Callable[[Round], float]
    unit: str = ""

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.relation == "<=" else value >= self.bound


def rounds_of(measured: Measured, roles: Mapping[str, Mapping[str, str]]) -> list[Round]:
    """``roles``: of every group, its contestants' roles."""
    floors: dict[str, str] = {}
    for group, contestants in roles.items():
        medians = {
            name: statistics.median(walls)
            for name, role in contestants.items()
            if role == "floor"
            and (walls := [r[group][name].wall for r in measured if name in r.get(group, {})])
        }
        if medians:
            floors[group] = min(medians, key=lambda name: medians[name])
    return [Round(values, floors) for values in measured]


def judge(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """Every target with what was measured (``None``: nothing was) and whether it is met."""
    answer = []
    for target in TARGETS:
        spread = _spread(target, rounds)
        by_cpu = _spread(target, [replace(each, by_cpu=True) for each in rounds])
        answer.append(
            {
                "path": target.path,
                "what": target.what,
                "relation": target.relation,
                "bound": target.bound,
                "unit": target.unit,
                "measured": asdict(spread) if spread else None,
                "by_cpu": asdict(by_cpu) if by_cpu else None,
                "met": target.holds(spread.median) if spread else None,
            }
        )
    return answer


def _spread(target: Target, rounds: Sequence[Round]) -> Spread | None:
    figures = []
    for each in rounds:
        try:
            figures.append(target.figure(each))
        except KeyError:  # this round did not measure it
            continue
    return Spread.of(figures) if figures else None


def _one_more_map(r: Round) -> float:
    ours = r.of("maps-11", "ours") - r.of("maps-1", "ours")
    bare = r.of("maps-11", "hand-written loop") - r.of("maps-1", "hand-written loop")
    if bare <= 0:
        raise KeyError("maps-11")  # too noisy a round: eleven calls took no longer than one
    return ours / bare


#: Where one thread at a time runs Python there is nothing to aim at.
_HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
#: The groups measure time in nanoseconds.
_SCALES = {"us": 1e3}
_ROW = re.compile(r"\| (.+?) +\| (.+?) +\| ([<>]=) (\S+) (\S*) *\| (.+?) +\|")
_FIGURE = re.compile(r"(\S+): (.+?)(?: ([/-]) (?:(\S+): )?(.+))?")


def _figure(computed: str, unit: str) -> Callable[[Round], float]:
    """What the table's last column says, as a function."""
    if computed == "see `_one_more_map`":
        return _one_more_map
    parts = _FIGURE.fullmatch(computed)
    assert parts, computed
    group, first, sign, other, second = parts.groups()

    def figure(r: Round) -> float:
        value = r.of(group, first)
        if sign == "/":
            return value / r.of(other or group, second)
        return (value - r.of(group, second) if sign else value) / _SCALES.get(unit, 1)

    return figure


def _read(table: str) -> list[Target]:
    rows = _ROW.findall(table)
    assert len(rows) == len(re.findall("[<>]= ", table)), "a row is misspelt"
    return [
        Target(path, what, relation, float(bound), _figure(computed, unit), unit)
        for path, what, relation, bound, unit, computed in rows
        if not (_HAS_GIL and path.endswith("without a GIL"))
    ]


TARGETS = _read(Path(__file__).with_suffix(".md").read_text(encoding="utf-8"))
