"""The primitives one by one, each beside the cheapest thing that does part of its work."""

from __future__ import annotations

import queue
from collections import deque

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.floors import atomic_adds, nothing
from rstreams_fast import UNBOUNDED
from rstreams_fast.core import DemandCounter, SpscRing

#: Operations per timed call, so that the loop around them is small against them.
REPEAT = 1000
CAPACITY = 1024
BURST = 256
ROUNDS = 200


@pytest.mark.benchmark(group="demand, per 1000")
def test_atomic_add_in_c(benchmark: BenchmarkFixture) -> None:
    assert benchmark.pedantic(atomic_adds, args=(REPEAT,), rounds=ROUNDS) == REPEAT


@pytest.mark.benchmark(group="demand, per 1000")
def test_call_into_c(benchmark: BenchmarkFixture) -> None:
    def calls() -> None:
        for _ in range(REPEAT):
            nothing(1)

    benchmark.pedantic(calls, rounds=ROUNDS)


@pytest.mark.benchmark(group="demand, per 1000")
def test_demand_request(benchmark: BenchmarkFixture) -> None:
    demand = DemandCounter()

    def requests() -> None:
        for _ in range(REPEAT):
            demand.request(1)

    benchmark.pedantic(requests, rounds=ROUNDS)
    assert demand.pending == REPEAT * ROUNDS


@pytest.mark.benchmark(group="demand, per 1000")
def test_demand_fulfil(benchmark: BenchmarkFixture) -> None:
    demand = DemandCounter(REPEAT * ROUNDS)

    def fulfils() -> None:
        for _ in range(REPEAT):
            demand.fulfil(1)

    benchmark.pedantic(fulfils, rounds=ROUNDS)
    assert demand.pending == 0
    assert DemandCounter(UNBOUNDED).fulfil(1) == UNBOUNDED


@pytest.mark.benchmark(group="ring in one thread, per 1000 elements in and out")
def test_ring_one_by_one(benchmark: BenchmarkFixture) -> None:
    ring = SpscRing(CAPACITY)

    def in_and_out() -> int:
        taken = 0
        for i in range(REPEAT):
            ring.offer(i)
            taken += ring.poll() == i
        return taken

    assert benchmark.pedantic(in_and_out, rounds=ROUNDS) == REPEAT


@pytest.mark.benchmark(group="ring in one thread, per 1000 elements in and out")
def test_ring_in_bursts(benchmark: BenchmarkFixture) -> None:
    ring = SpscRing(CAPACITY)
    elements = list(range(REPEAT))

    def in_and_out() -> list[int]:
        taken: list[int] = []
        for start in range(0, REPEAT, BURST):
            ring.offer_many(elements[start : start + BURST])
            taken += ring.poll_many(BURST)
        return taken

    assert benchmark.pedantic(in_and_out, rounds=ROUNDS) == elements


@pytest.mark.benchmark(group="ring in one thread, per 1000 elements in and out")
def test_simple_queue(benchmark: BenchmarkFixture) -> None:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()

    def in_and_out() -> int:
        taken = 0
        for i in range(REPEAT):
            waiting.put(i)
            taken += waiting.get() == i
        return taken

    assert benchmark.pedantic(in_and_out, rounds=ROUNDS) == REPEAT


@pytest.mark.benchmark(group="ring in one thread, per 1000 elements in and out")
def test_deque(benchmark: BenchmarkFixture) -> None:
    waiting: deque[int] = deque()

    def in_and_out() -> int:
        taken = 0
        for i in range(REPEAT):
            waiting.append(i)
            taken += waiting.popleft() == i
        return taken

    assert benchmark.pedantic(in_and_out, rounds=ROUNDS) == REPEAT
