"""Limits that stages share: in a process, on a host, in a job; and what a killed worker held."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.core import CallWindow
from rstreams_fast.spark import leases
from rstreams_fast.spark.leases import (
    ASK,
    CHALLENGE_BYTES,
    DEATH_SECONDS,
    GRANT,
    LEFT,
    UNDER_WAY,
    Address,
    Pace,
    answer_to,
    serve,
)
from rstreams_fast.spark.limits import SCOPES
from rstreams_fast.spark.versions import spark_version
from rstreams_fast.spark.worker.event_loops import new_loop
from rstreams_fast.spark.worker.guards.permits import Gate, LimitLost
from tests.helpers import DEADLINE, run_python, wait_until
from tests.spark.conftest import ROOT, worker_environment


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"k": pa.array(range(rows), pa.int64())})


class Service:
    """Counts the calls that it is in."""

    def __init__(self) -> None:
        self.inside = self.most = self.calls = 0
        self.lock = threading.Lock()
        self.called = asyncio.Event()  # five hundred times

    async def __call__(self, k: int) -> int:
        with self.lock:
            self.inside += 1
            self.calls += 1
            self.most = max(self.most, self.inside)
            if self.calls == 500:
                self.called.set()
        try:
            await asyncio.sleep(0.001)
        finally:
            with self.lock:
                self.inside -= 1
        return 2 * k


def run(stage: Any, rows: int, found: list[Any]) -> None:
    outputs = stage.as_map_fn()(batches(rows))
    found.append([v for batch in outputs for v in batch.column(1).to_pylist()])


@pytest.mark.parametrize("scope", SCOPES)
def test_stages_of_one_name_share_a_limit(scope: str, name: str) -> None:
    service, found = Service(), list[Any]()
    threads = []
    for _ in range(3):
        limit = rs.Limit(name, concurrency=5, scope=scope)
        stage = rs.lookup(service, pa.int64(), limit=limit)
        threads.append(threading.Thread(target=run, args=(stage, 300, found)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert found == [[2 * k for k in range(300)]] * 3
    assert service.calls == 900
    assert service.most == 5


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", ["map_batches", "map_batches of threads", "stage"])
def test_stages_of_batches_share_a_limit(kind: str, scope: str, name: str) -> None:
    service, found = Service(), list[Any]()
    limit = rs.Limit(name, concurrency=3, scope=scope)

    async def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        await service(1)
        return batch

    def fn_of_threads(batch: pa.RecordBatch) -> pa.RecordBatch:
        asyncio.run(service(1))
        return batch

    def build(stream: Any) -> Any:
        return stream.map_async(rs.bounded(limit=limit)(fn), concurrency=8)

    def work() -> None:
        schema = pa.schema([("k", pa.int64())])
        stage: Any = rs.stage(build, schema)
        if kind != "stage":
            called: Any = fn if kind == "map_batches" else fn_of_threads
            stage = rs.map_batches(called, schema, concurrency=8, limit=limit)
        some = [next(batches(1)) for _ in range(100)]
        found.append(sum(batch.num_rows for batch in stage.as_map_fn()(some)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert found == [100, 100]
    assert (service.calls, service.most) == (200, 3)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_rate_spaces_the_calls(scope: str, name: str) -> None:
    begun: list[float] = []

    async def fn(k: int) -> int:
        begun.append(time.monotonic())
        return k

    limit = rs.Limit(name, rate=500, burst=10, scope=scope)
    found: list[Any] = []
    start = time.monotonic()
    run(rs.lookup(fn, pa.int64(), limit=limit), 200, found)
    assert found == [list(range(200))]
    # Each call after the first ten has a time of its own, and is never before it.
    assert all(at - start >= (index - 9) / 500 - 0.001 for index, at in enumerate(begun))


def test_calls_that_a_busy_worker_is_late_with_are_not_made_at_once(name: str) -> None:
    limit, times = rs.Limit(name, rate=1000), list[float]()

    async def main() -> None:
        gate = Gate(limit, asyncio.get_running_loop())

        async def call() -> None:
            await gate.acquire()
            times.append(time.monotonic())
            if len(times) == 20:
                time.sleep(0.1)  # noqa: ASYNC251 - nothing else runs meanwhile

        await asyncio.gather(*(call() for _ in range(200)))
        gate.close()

    asyncio.run(main())
    # The machine may be late itself, once or twice, but 100 calls were late here.
    assert max(sum(at <= later < at + 0.05 for later in times) for at in times) < 80


def test_a_call_that_is_a_little_late_keeps_its_time(name: str) -> None:
    """At one in two seconds to lose it would cost two seconds, each time again."""
    limit = rs.Limit(name, rate=0.5)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        gate = Gate(limit, loop)
        await asyncio.wait_for(gate.acquire(), DEADLINE)
        begin = loop.time()
        second = asyncio.ensure_future(gate.acquire())
        loop.call_at(begin + 1.99, time.sleep, 0.03)
        await asyncio.wait_for(second, DEADLINE)
        gate.close()
        return loop.time() - begin

    assert 1.9 < asyncio.run(main()) < 3


def test_the_first_call_of_a_new_limit_does_not_lose_its_time(name: str) -> None:
    """A loop's timer may be early by a millisecond: the call would wait for its next time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gates = [Gate(rs.Limit(f"{name}{number}", rate=0.01), loop) for number in range(100)]
        try:
            async with asyncio.timeout(DEADLINE):
                await asyncio.gather(*(first(gate, 0.0137 * at) for at, gate in enumerate(gates)))
        finally:
            for gate in gates:
                gate.close()

    async def first(gate: Gate, after: float) -> None:
        await asyncio.sleep(after)
        await gate.acquire()

    with asyncio.Runner(loop_factory=lambda: new_loop(None)) as runner:
        runner.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_calls_that_have_their_time_are_held_back_too(scope: str, name: str) -> None:
    limit = rs.Limit(name, rate=5, scope=scope)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = Gate(limit, loop)
        calls = [asyncio.ensure_future(gate.acquire()) for _ in range(3)]
        await asyncio.wait_for(calls[0], DEADLINE)
        held = time.monotonic()
        gate.hold(0.5)
        await asyncio.wait_for(calls[1], DEADLINE)
        assert time.monotonic() >= held + 0.5
        await asyncio.wait_for(asyncio.gather(*calls), DEADLINE)
        gate.close()

    asyncio.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_the_word_of_the_service_holds_all_back(scope: str, name: str) -> None:
    begun: list[tuple[int, float]] = []
    refused = list[float]()

    async def fn(k: int) -> int:
        begun.append((k, time.monotonic()))
        if k == 3 and not refused:
            refused.append(time.monotonic())
            raise rs.RetryAfter(0.3)
        await asyncio.sleep(0.001)
        return k

    limit = rs.Limit(name, concurrency=1, scope=scope)
    found: list[Any] = []
    run(rs.lookup(fn, pa.int64(), limit=limit, retry=rs.Retry(1, backoff=0)), 10, found)
    assert found == [list(range(10))]
    later = [at for _, at in begun if at > refused[0]]
    assert len(begun) == 11
    assert min(later) >= refused[0] + 0.29


@pytest.mark.parametrize("scope", SCOPES)
def test_a_shorter_word_does_not_undo_a_longer_one(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=16, scope=scope)
    begun: list[float] = []
    longer: list[float] = []

    async def fn(k: int) -> int:
        begun.append(time.monotonic())
        if k == 0 and not longer:
            longer.append(time.monotonic())
            raise rs.RetryAfter(0.5)
        if k == 1 and len(begun) <= 16:
            await asyncio.sleep(0.05)
            raise rs.RetryAfter(0.01)
        await asyncio.sleep(0.15)
        return k

    found: list[Any] = []
    stage = rs.lookup(fn, pa.int64(), limit=limit, concurrency=16, retry=rs.Retry(1, backoff=0))
    run(stage, 64, found)
    assert found == [list(range(64))]
    assert min(begun[16:]) >= longer[0] + 0.49


@pytest.mark.parametrize("scope", SCOPES)
def test_the_word_that_fails_one_stage_holds_the_next_back(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=2, scope=scope)
    times: list[float] = []

    async def refuses(k: int) -> int:
        times.append(time.monotonic())
        raise rs.RetryAfter(0.3)

    async def answers(k: int) -> int:
        times.append(time.monotonic())
        return k

    with pytest.raises(rs.RetryAfter):
        run(rs.lookup(refuses, pa.int64(), limit=limit, retry=rs.Retry(1, patience=0)), 1, [])
    run(rs.lookup(answers, pa.int64(), limit=limit), 1, [])
    assert times[1] >= times[0] + 0.29


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("beyond", [False, True])
def test_a_thread_keeps_its_permit_until_it_has_left_the_service(
    scope: str, beyond: bool, name: str
) -> None:
    """Also of a stage that has failed; ``beyond``: when nobody waits for the thread any more."""
    limit = rs.Limit(name, concurrency=2, scope=scope)
    both, leave, ended = threading.Barrier(2), threading.Event(), threading.Event()
    inside = [0]

    def blocks(k: int) -> int:
        both.wait(DEADLINE)
        if k == 0:
            raise OSError("down")
        inside[0] += 1
        leave.wait(DEADLINE)
        inside[0] -= 1
        return k

    async def counts(k: int) -> int:
        most.append(inside[0] + 1)
        inside[0] += 1
        await asyncio.sleep(0)
        inside[0] -= 1
        return k

    def fails() -> None:
        with pytest.raises(OSError, match="down"):
            run(rs.lookup(blocks, pa.int64(), limit=limit, concurrency=2), 2, [])
        ended.set()

    most, found = list[int](), list[Any]()
    failing = threading.Thread(target=fails)
    failing.start()
    try:
        wait_until(lambda: inside[0] == 1, "the call that does not end")
        if beyond:
            assert ended.wait(DEADLINE)
        run(rs.lookup(counts, pa.int64(), limit=limit), 20, found)
    finally:
        leave.set()
        failing.join(DEADLINE)
    assert found == [list(range(20))]
    assert max(most) <= 2

    async def all_are_back() -> None:
        gate = Gate(limit, asyncio.get_running_loop())
        for _ in range(2):
            await asyncio.wait_for(gate.acquire(), DEADLINE)
        gate.close()

    asyncio.run(all_are_back())


@pytest.mark.parametrize("scope", SCOPES)
def test_each_thread_that_has_left_gives_its_permit_back(
    scope: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others have it, and not those calls of the stage that waited for one when it ended."""
    limit = rs.Limit(name, concurrency=2, scope=scope)
    leave = [threading.Event(), threading.Event()]

    def blocks(k: int) -> int:
        leave[k % 2].wait(DEADLINE)
        return k

    async def main() -> None:
        gate = Gate(limit, asyncio.get_running_loop())
        first = asyncio.ensure_future(gate.acquire())
        await asyncio.wait([first], timeout=0.2)
        assert not first.done()
        leave[1].set()
        await asyncio.wait_for(first, DEADLINE)
        second = asyncio.ensure_future(gate.acquire())
        await asyncio.wait([second], timeout=0.2)
        assert not second.done()
        leave[0].set()
        await asyncio.wait_for(second, DEADLINE)
        gate.close()

    stage = rs.lookup(blocks, pa.int64(), limit=limit, concurrency=8, task_deadline=0.2)
    with pytest.raises(TimeoutError):
        run(stage, 8, [])
    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("rstreams-call"):
            thread.join(DEADLINE)
    assert "Task was destroyed" not in capfd.readouterr().err


def test_a_call_that_is_cancelled_and_tried_again_finds_no_permit(name: str) -> None:
    limit = rs.Limit(name, concurrency=2)

    async def main() -> None:
        gate = Gate(limit, asyncio.get_running_loop())
        gate.close()
        with pytest.raises(LimitLost, match="the stage is over"):
            await gate.acquire()

    asyncio.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_the_times_that_a_failed_stage_did_not_use_are_not_lost(scope: str, name: str) -> None:
    limit, begun = rs.Limit(name, rate=2, scope=scope), list[float]()

    async def fails(k: int) -> int:
        await asyncio.sleep(0.05)  # until the others have asked
        raise OSError(f"down: {k}")

    async def answers(k: int) -> int:
        begun.append(time.monotonic())
        return k

    with pytest.raises(OSError, match="down: 0"):
        run(rs.lookup(fails, pa.int64(), limit=limit), 64, [])
    failed = time.monotonic()
    run(rs.lookup(answers, pa.int64(), limit=limit), 1, [])
    assert begun[0] < failed + 10  # sixty-four calls take half a minute


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_that_is_cancelled_gives_its_permit_back(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=1, scope=scope)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = Gate(limit, loop)
        first = await gate.acquire()
        waiting = [loop.create_task(gate.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.release(first)
        waiting[1].cancel()  # it has been given the permit, or is about to be
        permit = await asyncio.wait_for(waiting[2], DEADLINE)
        gate.release(permit)
        other = Gate(limit, loop)
        permit = await asyncio.wait_for(other.acquire(), DEADLINE)
        gate.close()
        other.close()

    asyncio.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_a_permit_is_at_hand_for_the_next_call_and_then_for_others(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=1, scope=scope)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate, other = Gate(limit, loop), Gate(limit, loop)
        assert gate.take() is None
        permit = await asyncio.wait_for(gate.acquire(), DEADLINE)
        for _ in range(3):
            gate.release(permit)
            assert gate.take() is permit
        gate.release(permit)
        await asyncio.wait_for(other.acquire(), DEADLINE)
        assert gate.take() is None
        gate.close()
        other.close()

    asyncio.run(main())


@pytest.mark.parametrize("calls", [2, 4, 6])
@pytest.mark.parametrize("scope", SCOPES)
def test_windows_of_calls_share_a_limit_and_leave_nothing_behind(
    scope: str, calls: int, name: str
) -> None:
    limit = rs.Limit(name, concurrency=4, scope=scope)
    service = Service()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def begin(rows: int, calls: int) -> tuple[Gate, CallWindow, asyncio.Event]:
            items, done = list(range(rows)), asyncio.Event()

            def pump() -> None:
                window.take(rows)
                del items[: window.submit_many(items)]
                if not items and not window.pending:
                    done.set()

            gate = Gate(limit, loop)
            window = CallWindow(
                service, loop=loop, on_ready=pump, concurrency=calls, capacity=8, ahead=4
            )
            gate.admit(window, service)
            loop.call_soon(pump)
            return gate, window, done

        first = begin(4000, calls)
        await asyncio.wait_for(service.called.wait(), DEADLINE)
        others = [begin(300, calls) for _ in range(2)]
        for _, _, done in others:
            await asyncio.wait_for(done.wait(), DEADLINE)
        third, window, _ = begin(300, calls)
        await asyncio.sleep(0.005)
        window.cancel()
        await asyncio.wait_for(first[2].wait(), DEADLINE)
        for gate in (first[0], third, *(gate for gate, _, _ in others)):
            gate.close()
        last = Gate(limit, loop)
        async with asyncio.timeout(DEADLINE):
            for _ in range(4):
                await last.acquire()
        last.close()

    asyncio.run(main())
    assert service.calls >= 4600
    assert service.most <= 4
    assert service.inside == 0


@pytest.mark.parametrize("scope", SCOPES)
def test_a_window_with_less_permits_than_calls_waits_and_what_never_ends_keeps_none(
    scope: str, name: str
) -> None:
    limit = rs.Limit(name, concurrency=4, scope=scope)
    running: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        async def fn(number: int) -> None:
            if number:
                running.append(number)
                await loop.create_future()
            await asyncio.sleep(0)

        other, gate = Gate(limit, loop), Gate(limit, loop)
        taken = [await asyncio.wait_for(other.acquire(), DEADLINE) for _ in range(3)]
        window = CallWindow(fn, loop=loop, on_ready=ended.set, concurrency=4, capacity=8)
        gate.admit(window, fn)
        loop.call_soon(window.submit_many, [0])
        await asyncio.wait_for(ended.wait(), DEADLINE)
        loop.call_soon(window.submit_many, [1, 2, 3, 4])
        await asyncio.sleep(0)  # in which they are submitted
        assert (window.running, running) == (4, [1])
        gate.close()
        taken.append(await asyncio.wait_for(other.acquire(), DEADLINE))
        assert running == [1]
        window.cancel()
        other.close()

    asyncio.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_a_stage_that_has_all_permits_lets_others_have_one(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=2, scope=scope)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate, other, called = Gate(limit, loop), Gate(limit, loop), asyncio.Event()

        async def call_on() -> None:
            while True:
                permit = gate.take() or await gate.acquire()
                try:
                    await asyncio.sleep(0.001)
                    called.set()
                finally:
                    gate.release(permit)

        calling = [loop.create_task(call_on()) for _ in range(2)]
        await called.wait()
        await asyncio.wait_for(other.acquire(), DEADLINE)
        for task in calling:
            task.cancel()
        await asyncio.wait(calling, timeout=DEADLINE)
        gate.close()
        other.close()

    asyncio.run(main())


HOLDER = """
import asyncio, pickle, sys
from rstreams_fast.spark.worker.guards.permits import Gate

limit = pickle.loads(bytes.fromhex(sys.argv[1]))

async def main():
    gate = Gate(limit, asyncio.get_running_loop())
    for _ in range(3):
        await gate.acquire()
    print("holds", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("scope", SCOPES)
def test_what_a_killed_worker_held_comes_back(scope: str, name: str, tmp_path: Path) -> None:
    limit = rs.Limit(name, concurrency=3, scope=scope)
    script = tmp_path / "holder.py"
    script.write_text(HOLDER, encoding="utf-8")
    told = pickle.dumps(limit).hex()
    holder = subprocess.Popen(
        [sys.executable, str(script), told], env=worker_environment(), stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"holds\n"

        async def main() -> tuple[float, float]:
            gate = Gate(limit, asyncio.get_running_loop())
            waiting = asyncio.ensure_future(gate.acquire())
            await asyncio.wait([waiting], timeout=0.1)
            assert not waiting.done()
            killed = time.monotonic()
            holder.kill()
            holder.wait()
            await asyncio.wait_for(waiting, DEADLINE)
            first = time.monotonic() - killed
            for _ in range(2):
                await asyncio.wait_for(gate.acquire(), DEADLINE)
            gate.close()
            return first, time.monotonic() - killed

        first, last = asyncio.run(main())
    assert first >= DEATH_SECONDS  # what else the kernel has to end may end later than the permit
    assert last < DEADLINE


def test_a_driver_that_is_gone_fails_the_calls(name: str) -> None:
    limit = rs.Limit(name, concurrency=3, scope="job")
    state = limit.__getstate__()
    state["address"] = state["address"]._replace(port=1)
    gone = object.__new__(rs.Limit)
    gone.__setstate__(state)
    with pytest.raises(RuntimeError, match=r"nobody serves the limit .*:1, where the driver is"):
        run(rs.lookup(Service(), pa.int64(), limit=gone), 10, [])


def test_nobody_is_given_a_permit_without_the_token(name: str) -> None:
    limit = rs.Limit(name, concurrency=3, scope="job")
    state = limit.__getstate__()
    state["address"] = state["address"]._replace(token=b"another")
    stranger = object.__new__(rs.Limit)
    stranger.__setstate__(state)
    with pytest.raises(RuntimeError, match="the driver no longer serves the limit"):
        run(rs.lookup(Service(), pa.int64(), limit=stranger), 10, [])
    found: list[Any] = []
    run(rs.lookup(Service(), pa.int64(), limit=limit), 10, found)
    assert found == [[2 * k for k in range(10)]]


def test_a_limit_in_use_in_a_job_has_one_set_of_numbers(name: str) -> None:
    limits = [rs.Limit(name, concurrency=count, scope="job") for count in (3, 4)]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = Gate(limits[0], loop)
        permit = await first.acquire()
        with pytest.raises(LimitLost, match="is in use in this job with other numbers"):
            await Gate(limits[1], loop).acquire()
        waiting = Gate(limits[1], loop)
        ended = asyncio.ensure_future(waiting.acquire())
        await asyncio.wait([ended], timeout=0.1)
        assert not ended.done()
        first.release(permit)
        first.close()
        await asyncio.wait_for(ended, DEADLINE)
        waiting.close()

    asyncio.run(main())


def test_a_limit_in_use_on_a_host_has_one_set_of_numbers(name: str, tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text(HOLDER, encoding="utf-8")
    told = pickle.dumps(rs.Limit(name, concurrency=3, rate=1e6)).hex()
    other = rs.Limit(name, concurrency=4)
    said = "is in use on this host with other numbers: concurrency=3, rate=1e.06, burst=1"
    with subprocess.Popen(
        [sys.executable, str(script), told], env=worker_environment(), stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        with pytest.raises(ValueError, match=said):
            run(rs.lookup(Service(), pa.int64(), limit=other), 10, [])
        holder.kill()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = Gate(other, loop)
        with pytest.raises(ValueError, match="concurrency=4, rate=None"):
            Gate(rs.Limit(name, concurrency=5), loop)
        Gate(rs.Limit(name, concurrency=4), loop).close()
        with pytest.raises(ValueError, match="concurrency=4, rate=None"):
            Gate(rs.Limit(name, concurrency=4, burst=2), loop)
        gate.close()
        Gate(rs.Limit(name, concurrency=5), loop)  # and it is never closed
        gc.collect()
        Gate(rs.Limit(name, concurrency=6), loop).close()

    asyncio.run(main())


@pytest.mark.parametrize("scope", SCOPES)
def test_a_rate_that_was_changed_is_obeyed_at_once(scope: str, name: str) -> None:
    begun: list[float] = []

    async def fn(k: int) -> int:
        begun.append(time.monotonic())
        return k

    def work(rows: int, **numbers: Any) -> None:
        begun.clear()
        limit = rs.Limit(name, scope=scope, **numbers)
        run(rs.lookup(fn, pa.int64(), limit=limit), rows, [])

    start = time.monotonic()
    work(1, rate=0.01)
    work(10, rate=1000)
    work(1, rate=0.01)
    work(50, rate=0.5, burst=50)
    work(1, rate=1000)
    assert time.monotonic() - start < DEADLINE  # a hundred seconds, by the former rate
    work(20, rate=100)
    start = time.monotonic()
    work(5, rate=20)
    assert begun[-1] - start >= 4 / 20 - 0.001


@pytest.mark.parametrize("scope", SCOPES)
def test_a_concurrency_that_was_changed_is_obeyed_at_once(scope: str, name: str) -> None:
    for concurrency in (2, 5, 1, None, 3):
        service = Service()
        words: Any = {"rate": 1e5} if concurrency is None else {"concurrency": concurrency}
        limit = rs.Limit(name, scope=scope, **words)
        run(rs.lookup(service, pa.int64(), limit=limit, concurrency=8), 100, [])
        assert service.most == concurrency or concurrency is None


def test_a_pace_is_even_after_its_burst() -> None:
    pace, state, starts = Pace(10, 3), (0.0, 0.0), list[float]()
    for _ in range(6):
        start, reserved = pace.reserve(100.0, state)
        state = (reserved, 0.0)
        starts.append(round(start - 100, 3))
    assert starts == [0, 0, 0, 0.1, 0.2, 0.3]
    assert pace.reserve(200.0, (reserved, 205.0))[0] == 205


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"name": 5}, TypeError, "Limit(name) must be a str"),
        ({"name": ""}, ValueError, "Limit(name) is empty"),
        ({}, ValueError, "bounds nothing"),
        ({"concurrency": 0}, ValueError, "Limit(concurrency) must be from 1"),
        ({"concurrency": True}, TypeError, "Limit(concurrency) must be an int"),
        ({"rate": 0}, ValueError, "Limit(rate) must be finite and > 0"),
        ({"rate": "5"}, TypeError, "Limit(rate) must be a number"),
        ({"rate": float("inf")}, ValueError, "Limit(rate) must be finite"),
        ({"rate": 5, "burst": 0}, ValueError, "Limit(burst) must be from 1"),
        ({"rate": 5, "scope": "world"}, ValueError, "Limit(scope) must be"),
    ],
    ids=str,
)
def test_bad_words_are_named(words: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        rs.Limit(**{"name": "x", **words})
    assert message in str(refused.value)


def test_a_limit_is_a_limit() -> None:
    with pytest.raises(TypeError, match="limit must be a Limit, got int"):
        rs.lookup(Service(), "long", limit=5)  # type: ignore[arg-type]


class Lease:
    """A connection of a worker that is slow to answer."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port), DEADLINE)
        self.send(answer_to(self.receive(CHALLENGE_BYTES), address))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, size: int, timeout: float = DEADLINE) -> bytes:
        self._socket.settimeout(timeout)
        received = b""
        while len(received) < size:
            received += self._socket.recv(size - len(received))
        return received

    def close(self) -> None:
        self._socket.close()


def test_a_worker_that_is_late_is_granted_no_more_of_a_rate(name: str) -> None:
    """Else the calls of those that come late start beside the calls of those that come in time."""
    address = serve(name, None, 1000.0, 1)
    late, other = Lease(address), Lease(address)
    try:
        late.send(ASK * 50)
        most = int(1000 * UNDER_WAY) - 1  # besides the burst
        assert late.receive(most) == GRANT * most
        late.send(LEFT * 3)
        assert late.receive(3) == GRANT * 3
        other.send(ASK)
        assert other.receive(1) == GRANT  # it is not held up for long
        other.send(LEFT + ASK)
        assert other.receive(1) == GRANT
        with pytest.raises(TimeoutError):
            late.receive(1, timeout=0.05)  # in which fifty more could be granted
        other.send(LEFT)
        late.send(LEFT * most)
        assert late.receive(most) == GRANT * most
        late.close()
        other.send(ASK * 2)
        assert other.receive(2) == GRANT * 2  # what a lost one had under way counts no longer
    finally:
        late.close()
        other.close()


def test_a_call_is_on_its_way_until_it_has_left(name: str) -> None:
    """Its worker may have no processor between the permit and the request."""
    limit = rs.Limit(name, rate=1000, scope="job")
    begun, stall = threading.Event(), threading.Event()

    async def fn(k: int) -> int:
        begun.set()
        assert stall.wait(DEADLINE)
        return k

    other = Lease(serve(name, None, 1000.0, 1))
    found: list[Any] = []
    worker = threading.Thread(
        target=run, args=(rs.lookup(fn, pa.int64(), limit=limit), 1, found), daemon=True
    )
    try:
        worker.start()
        assert begun.wait(DEADLINE)
        other.send(ASK * 50)
        most = int(1000 * UNDER_WAY) - 1 - 1  # besides the burst, and the one that has not left
        assert other.receive(most) == GRANT * most
        with pytest.raises(TimeoutError):
            other.receive(1, timeout=0.05)
        stall.set()
        assert other.receive(1) == GRANT
        worker.join(DEADLINE)
        assert found == [[0]]
    finally:
        stall.set()
        other.close()


def test_describe_says_what_the_service_will_see() -> None:
    limit = rs.Limit("registry", concurrency=32, rate=500, burst=4, scope="job")
    text = rs.lookup(Service(), "long", limit=limit).describe()
    assert "limit 'registry': at most 32 calls at once, 500 a second, 4 of them at once" in text
    assert "by the whole job" in text


CONNECT = """
import asyncio, socket
from pyspark.sql import SparkSession
import rstreams_fast.spark as rs
from rstreams_fast.spark import leases
from tests.spark.conftest import CONF

builder = SparkSession.builder.remote("local[4]")
for name, value in CONF.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__

def make(port):
    async def call(k):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = await reader.readline()
        writer.close()
        return k
    return call

inside = most = calls = 0

async def serve(reader, writer):
    global inside, most, calls
    inside, calls = inside + 1, calls + 1
    most = max(most, inside)
    await asyncio.sleep(0.005)
    inside -= 1
    writer.write(b"done\\n")
    writer.close()

async def main():
    service = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    call = make(service.sockets[0].getsockname()[1])
    limit = rs.Limit("registry", concurrency=7, scope="job")
    look = rs.lookup(call, "long", limit=limit)
    frame = spark.range(0, 1000, 1, 4).withColumn("v", look("id"))
    rows = await asyncio.to_thread(frame.collect)
    assert sorted(row.v for row in rows) == list(range(1000))
    print("seen", calls, most)

    # A client that executors cannot reach: one sentence, which names the way out.
    gone = rs.Limit("registry", concurrency=7, scope="job")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gone.__setstate__({**gone.__getstate__(), "address": limit.served_at._replace(port=port)})
    try:
        spark.range(3).select(rs.lookup(call, "long", limit=gone)("id")).collect()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "nobody serves" in line]
        print(*lines[:1])

asyncio.run(main())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.skipif(spark_version() < (4, 0), reason="3.5 comes without its Connect server")
def test_the_client_of_spark_connect_serves_the_limits_of_a_job(
    run_script: Callable[..., str],
) -> None:
    seen, refused = run_script(CONNECT, 280).splitlines()
    assert seen == "seen 1000 7"
    assert "the client of Spark Connect" in refused
    assert "Limit(scope='executor') needs nobody" in refused


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_limits_hold_over_executors_whose_workers_are_killed() -> None:
    words = ["--kills", "10", "--rate-kills", "0", "--gap", "0.5", "--rows", "1024"]
    words += ["--in-use", "0"]  # so many kills leave two seconds of undisturbed work
    told = run_python("-m", "tests.spark.limit_kills", *words, cwd=ROOT, timeout=280).stdout
    found = [json.loads(line) for line in told.splitlines()]
    assert [(row["limit"], row["scope"]) for row in found] == [
        (limit, scope) for limit in ("concurrency", "rate") for scope in SCOPES
    ]
    assert [row["most"] for row in found[:2]] == [32, 32]
    assert all(100 < row["most in a second"] <= 505 for row in found[2:])


@pytest.mark.parametrize("bound", [True, False], ids=["bound elsewhere", "no such address"])
def test_a_driver_listens_where_spark_binds_it(
    bound: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors may know it by an address that is not the machine's own, as in a container."""
    conf = {"spark.driver.host": "203.0.113.1"}
    if bound:
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    monkeypatch.setattr("pyspark.sql.SparkSession.active", lambda: SimpleNamespace(conf=conf))
    monkeypatch.setattr(leases, "_server", None)
    if bound:
        address = leases.serve(name, 1, None, 1)
        assert address.host == "203.0.113.1"
        socket.create_connection(("127.0.0.1", address.port), DEADLINE).close()
    else:
        with pytest.raises(
            RuntimeError, match=r"cannot be served at 203\.0\.113\.1: .*bindAddress"
        ):
            leases.serve(name, 1, None, 1)
