"""``concurrency="auto"``: it finds what a service can work on, also when that moves."""

from __future__ import annotations

import asyncio
import heapq
import threading
import uuid
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from bench.auto import Service, start
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.guards.adaptive import AdaptiveGate, Gradient
from tests.helpers import wait_until

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


def simulated(gradient: Gradient, phases: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the share of the capacity in use and of the calls refused, in a time of its own."""
    now = until = had = used = 0.0
    working, calls, refused, resume = 0, 0, 0, 0.0
    queue: list[tuple[int, float]] = []
    ends: list[tuple[float, int, float]] = []
    for capacity, seconds in phases:
        until += seconds
        while now < until:
            while queue and working < capacity:
                heapq.heappush(ends, (now + 0.05, *queue.pop(0)))
                working += 1
            while working + len(queue) < int(gradient.limit) and now >= resume:
                calls += 1
                if working < capacity:
                    working += 1
                    heapq.heappush(ends, (now + 0.05, gradient.round, now))
                elif len(queue) < capacity:
                    queue.append((gradient.round, now))
                else:
                    refused += 1
                    resume = now + 0.05
                    gradient.refused(gradient.round, working + len(queue) + 1)
            later = min(ends[0][0] if ends else until, resume if resume > now else until)
            later = min(later, until)
            had += capacity * (later - now)
            used += min(working, capacity) * (later - now)
            now = later
            while ends and ends[0][0] <= now:
                _, begun, at = heapq.heappop(ends)
                working -= 1
                gradient.busy = True
                gradient.answered(begun, now - at)
    return used / had, refused / calls


def test_most_of_a_moving_capacity_is_in_use_and_hardly_a_call_refused() -> None:
    used, refused = simulated(Gradient(1024), [(20, 6), (200, 8), (60, 6)])
    assert used >= 0.9
    assert refused < 0.02


def test_it_stays_below_its_bound() -> None:
    gradient = Gradient(30)
    simulated(gradient, [(200, 5)])
    assert gradient.limit == 30


def test_one_decrease_a_round_trip_and_none_for_what_began_before() -> None:
    gradient = Gradient(1024)
    gradient.refused(0, 20)
    gradient.refused(0, 20)
    assert gradient.limit == 18
    for _ in range(100):
        gradient.answered(0, 9)
    assert gradient.limit == 18


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    gradient = Gradient(1024)
    for _ in range(100):
        gradient.answered(gradient.round, 0.05)
    assert gradient.limit == 20


def test_a_service_that_became_slower_does_not_starve() -> None:
    gradient = Gradient(1024)
    for seconds, calls in ((0.05, 100), (0.5, 2000)):
        for _ in range(calls):
            gradient.busy = True
            gradient.answered(gradient.round, seconds)
    assert gradient.limit > 20


def test_it_follows_a_service_behind_a_socket() -> None:
    service, ended = Service(20), threading.Event()
    thread = start(service.port, ended)
    try:
        for capacity in (20, 100, 30):
            service.capacity = capacity
            wait_until(
                lambda most=capacity: 0.9 * most <= service.working <= most, "the capacity in use"
            )
    finally:
        ended.set()
        thread.join()
        service.close()


def test_the_longest_word_of_the_service_counts() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = AdaptiveGate(64, loop, Counters("", ""))

        async def refuses(seconds: float) -> None:
            raise rs.RetryAfter(seconds)

        call = gate.around(refuses)
        begin = loop.time()
        await gate.acquire()
        for seconds in (0.02, 0.3, 0.01):
            with pytest.raises(rs.RetryAfter):
                await call(seconds)
        gate.leave()
        await gate.acquire()
        assert loop.time() >= begin + 0.3

    asyncio.run(main())


def test_a_bound_of_rows_is_one_of_lists_of_keys() -> None:
    async def same(keys: list[int]) -> list[int]:
        return keys

    words: Any = {"concurrency": "auto", "batch": 8, "max_pending_rows": 100}
    assert "at most 6 at once" in rs.lookup(same, pa.int64(), **words).describe()
    with pytest.raises(ValueError, match="max_pending_rows=7 is less than concurrency=1 of 8 keys"):
        rs.lookup(same, pa.int64(), **{**words, "max_pending_rows": 7})


def test_it_stays_below_the_limit_and_needs_a_loop() -> None:
    async def same(k: int) -> int:
        return k

    limit = rs.Limit(uuid.uuid4().hex, concurrency=7)
    words: Any = {"concurrency": "auto"}
    stage = rs.lookup(same, pa.int64(), limit=limit, **words)
    assert "at most 7 at once, on the loop, as many as answers show to be right" in stage.describe()
    rows = pa.RecordBatch.from_pydict({"k": pa.array(range(500), pa.int64())})
    found = pa.Table.from_batches(stage.as_map_fn()(iter([rows])))
    assert found["value"].to_pylist() == list(range(500))
    with pytest.raises(ValueError, match="concurrency='auto' needs an async fn: abs"):
        rs.lookup(abs, pa.int64(), **words)
    with pytest.raises(TypeError, match="concurrency must be an int, got str"):
        rs.map_batches(same, pa.schema([("k", pa.int64())]), **words)
