"""Timing one run of a contestant, always with its result checked."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.contestants import Contestant, WrongResultError

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

#: Runs per contestant in the pytest-benchmark view, and the elements of each.
ROUNDS = 15
ELEMENTS = 20_000


@dataclass(frozen=True)
class Timing:
    """One run: nanoseconds per element, of the clock and of all processors together."""

    wall: float
    cpu: float


def time_once(contestant: Contestant, expected_total: int) -> Timing:
    """One timed run, from nothing to the terminal signal, its set-up included."""
    sink = contestant.new_sink()
    gc.collect()
    cpu = time.process_time_ns()
    wall = time.perf_counter_ns()
    contestant.run(contestant.n, sink)
    wall = time.perf_counter_ns() - wall
    cpu = time.process_time_ns() - cpu
    if sink.total != expected_total:
        raise WrongResultError(f"{contestant.name}: {sink.total} instead of {expected_total}")
    return Timing(wall / contestant.n, cpu / contestant.n)


def benchmark_contestant(benchmark: BenchmarkFixture, contestant: Contestant) -> None:
    """The pytest-benchmark view of one contestant; its figures are for all ``ELEMENTS``."""
    contestant.check()
    contestant = replace(contestant, n=ELEMENTS)
    sinks = []

    def fresh() -> tuple[tuple[object, ...], dict[str, object]]:
        sinks.append(contestant.new_sink())
        return (contestant.n, sinks[-1]), {}

    benchmark.pedantic(contestant.run, setup=fresh, rounds=ROUNDS, warmup_rounds=1)
    expected = contestant.expected_total()
    assert [sink.total for sink in sinks] == [expected] * len(sinks)
