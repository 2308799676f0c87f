"""The pytest-benchmark view of the groups: a figure per contestant, every result checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.drivers import Missing
from bench.groups import GROUPS
from bench.measure import Contestant, Group, Kind, Work

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["cases", "run"]

#: A view, not the measurement: a part of the operations, few rounds.
PART = 10
ROUNDS = 5


def cases(kind: Kind) -> list[Any]:
    """A parameter for every contestant of the groups whose figure is a time."""
    return [
        pytest.param(group, contestant, id=f"{group.name}: {contestant.name}")
        for group in GROUPS
        if group.kind == kind and group.is_timed
        for contestant in group.contestants
    ]


def run(benchmark: BenchmarkFixture, group: Group, contestant: Contestant) -> None:
    n = max(1, contestant.n // PART)
    benchmark.group = f"{group.name}, {group.unit}"
    expectations = []

    def begin() -> tuple[tuple[Work], dict[str, object]]:
        work, expected = contestant.begin(n)
        expectations.append(expected)
        return (work,), {}

    results = []
    try:
        if contestant.check is not None:
            contestant.check()
        benchmark.pedantic(
            lambda work: results.append(work()), setup=begin, rounds=ROUNDS, warmup_rounds=1
        )
    except Missing as reason:
        pytest.skip(str(reason))
    benchmark.extra_info["operations"] = n
    assert results
    for result, expected in zip(results, expectations, strict=True):
        contestant.require(result, expected)
