"""``range -> map -> filter -> on_next`` in one thread, one figure per contestant."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contestants import FUSED_C, FUSED_PYTHON, Contestant
from bench.measure import benchmark_contestant


@pytest.mark.parametrize("contestant", FUSED_PYTHON, ids=lambda c: c.name)
@pytest.mark.benchmark(group="fused, Python callables, 20 000 elements")
def test_python_callables(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark_contestant(benchmark, contestant)


@pytest.mark.parametrize("contestant", FUSED_C, ids=lambda c: c.name)
@pytest.mark.benchmark(group="fused, C callables, 20 000 elements")
def test_c_callables(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    benchmark_contestant(benchmark, contestant)
