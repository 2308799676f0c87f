"""The groups of primitives, a figure per contestant."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure import Contestant, Group
from bench.suite import cases, run


@pytest.mark.parametrize(("group", "contestant"), cases("primitive"))
def test_primitive(benchmark: BenchmarkFixture, group: Group, contestant: Contestant) -> None:
    run(benchmark, group, contestant)
