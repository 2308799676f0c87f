"""Handing elements from one thread to another's ``on_next``, one figure per contestant."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contestants import BOUNDARY, Contestant
from bench.measure import benchmark_contestant


@pytest.mark.parametrize("contestant", BOUNDARY, ids=lambda c: c.name)
@pytest.mark.benchmark(group="boundary, 20 000 elements")
def test_boundary(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark_contestant(benchmark, contestant)
