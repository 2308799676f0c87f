"""Inside of a worker: the gradient, the circuit and the counters, with clocks of their own."""

from __future__ import annotations

import asyncio
import heapq
from pathlib import Path

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.adaptive import AdaptiveGate, Gradient
from rstreams_fast.calls.circuit import CircuitState
from rstreams_fast.calls.errors import OUT_OF_TIME
from rstreams_fast.calls.settings import CallSettings
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter


# -- the gradient ----------------------------------------------------------------------------------
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


def test_a_limit_moves_by_what_it_hears_of_its_own_round_trip() -> None:
    bounded = Gradient(30)
    simulated(bounded, [(200, 5)])
    assert bounded.limit == 30
    # One decrease a round trip, and none for what began before.
    gradient = Gradient(1024)
    gradient.refused(0, 20)
    gradient.refused(0, 20)
    assert gradient.limit == 18
    for _ in range(100):
        gradient.answered(0, 9)
    assert gradient.limit == 18
    idle = Gradient(1024)  # one that is not reached does not grow
    for _ in range(100):
        idle.answered(idle.round, 0.05)
    assert idle.limit == 20
    slower = Gradient(1024)  # a service that became slower does not starve
    for seconds, calls in ((0.05, 100), (0.5, 2000)):
        for _ in range(calls):
            slower.busy = True
            slower.answered(slower.round, seconds)
    assert slower.limit > 20


async def test_the_longest_word_of_the_service_counts() -> None:
    loop = asyncio.get_running_loop()
    gate = AdaptiveGate(CallSettings(Counters, concurrency=64), loop, Counters("", ""))

    async def refuses(seconds: float) -> None:
        raise rs.RetryAfter(seconds)

    call = gate.wrap(refuses)
    begin = loop.time()
    await gate.acquire()
    for seconds in (0.02, 0.3, 0.01):
        with pytest.raises(rs.RetryAfter):
            await call(seconds)
    gate.leave()
    await gate.acquire()
    assert loop.time() >= begin + 0.3


async def test_a_call_that_is_closed_while_it_waits_takes_no_place() -> None:
    loop = asyncio.get_running_loop()
    gate = AdaptiveGate(CallSettings(Counters, concurrency=1), loop, Counters("", ""))
    await gate.acquire()
    waiting = gate.acquire()
    waiting.send(None)
    waiting.close()
    gate.leave()
    with pytest.raises(StopIteration):  # it waits for nothing
        gate.acquire().send(None)


async def test_the_gate_learns_from_calls_that_a_deadline_cuts_short() -> None:
    seen: list[float] = []
    gate = AdaptiveGate(
        CallSettings(Counters, concurrency=4), asyncio.get_running_loop(), Counters("stage", "")
    )
    gate._gradient.answered = lambda _begun, seconds: seen.append(seconds)  # type: ignore[method-assign]

    async def cut_short(message: str) -> int:
        raise asyncio.CancelledError(message)

    call = gate.wrap(cut_short)
    for message in (OUT_OF_TIME, "by somebody else"):
        with pytest.raises(asyncio.CancelledError):
            await call(message)
    assert len(seen) == 1


async def test_a_limit_that_changes_at_a_failed_call_is_counted() -> None:
    loop, counters = asyncio.get_running_loop(), Counters("", "")
    gate = AdaptiveGate(CallSettings(Counters, concurrency=64), loop, counters)

    async def fails(error: Exception) -> None:
        raise error

    call = gate.wrap(fails)
    await gate.acquire()
    with pytest.raises(rs.RetryAfter):
        await call(rs.RetryAfter(0))
    assert counters.concurrency == int(gate._gradient.limit) == 1
    gate._gradient.limit = 7.0
    with pytest.raises(TimeoutError):
        await call(TimeoutError())
    assert counters.concurrency == int(gate._gradient.limit) == 7


# -- the circuit -----------------------------------------------------------------------------------
class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_call_probes_and_closes_the_circuit_or_keeps_it_open() -> None:
    clock = Clock()
    state = CircuitState(rs.Circuit(2, reset=10, on=(OSError,)), clock)
    early = state.enter()
    silent = asyncio.CancelledError(), rs.BudgetSpentError()
    for error in (OSError(), ValueError(), OSError(), *silent, OSError()):
        state.leave(state.enter(), error)
    with pytest.raises(rs.CircuitOpenError, match="no calls for 10 s, then one"):
        state.enter()
    state.leave(early, None)  # it began before: it says nothing of now
    clock.now = 10
    for error in (OSError(), *silent, None):
        state.check()
        probe = state.enter()
        with pytest.raises(rs.CircuitOpenError):
            state.enter()
        state.leave(probe, error)
        if isinstance(error, OSError):
            with pytest.raises(rs.CircuitOpenError, match="no calls for 10 s"):
                state.enter()
            clock.now = 20
    state.leave(state.enter(), OSError())
    state.leave(state.enter(), None)
    state.leave(state.enter(), OSError())
    state.enter()  # two, but not in a row


def test_a_share_is_of_a_hundred_calls() -> None:
    state = CircuitState(rs.Circuit(0.5, reset=10), Clock())
    for n in range(349):  # 49 of any hundred
        state.leave(state.enter(), OSError() if n % 100 < 49 else None)
    state.leave(state.enter(), OSError())
    with pytest.raises(rs.CircuitOpenError):
        state.check()


# -- the counters ----------------------------------------------------------------------------------
def test_processes_of_one_number_in_two_containers_have_files_of_their_own(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    for namespace in ("pid:[1]", "pid:[2]"):
        counters = Counters("look", "key")
        counters.process = f"boot {namespace} 7"
        writer = MetricsWriter(metrics, counters)
        writer.write()
        writer.end()
    assert len(list(tmp_path.iterdir())) == 2
