"""A service that fails: budgets of retries, circuits and deadlines, outside of Spark."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
import uuid
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, wait_until
from tests.spark.stages import K, parts

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


class Service:
    """Answers as it is told to, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = True

    def answer(self, k: int) -> int:
        self.calls += 1
        if self.fails:
            raise OSError("down")
        return k

    async def look(self, k: int) -> int:
        return self.answer(k)

    async def batch(self, batch: Any) -> Any:
        self.answer(0)
        return batch

    def batch_sync(self, batch: Any) -> Any:
        self.answer(0)
        return batch


def calls_of(kind: str, service: Service, retry: rs.Retry) -> Any:
    """Return what makes so many calls, one after the other."""
    if kind == "lookup":
        stage: Any = rs.lookup(
            service.look, pa.int64(), concurrency=1, retry=retry, on_failure="null"
        )
        return lambda count: list(stage.as_map_fn()(iter(parts(count, count))))
    if kind == "bounded":
        call = rs.bounded(retry=retry)(service.answer)

        def run(count: int) -> None:
            for k in range(count):
                with contextlib.suppress(OSError):
                    call(k)

        return run
    fn = service.batch_sync if kind == "map_batches" else service.batch
    stage = rs.map_batches(fn, K, concurrency=1, retry=retry, on_failure="drop")
    return lambda count: list(stage.as_map_fn()(batch for batch in parts(1, 1) * count))


@pytest.mark.parametrize("kind", ["lookup", "bounded", "map_batches", "map_batches async"])
def test_no_more_than_a_share_of_the_calls_are_retries(kind: str) -> None:
    retry = rs.Retry(3, backoff=0, budget=0.25)
    service = Service()
    calls_of(kind, service, retry)(200)
    assert service.calls == 200 + 10 + 50  # ten are free
    again = Service()  # another partition, and what has travelled: one bucket
    calls_of(kind, again, pickle.loads(pickle.dumps(retry)))(8)
    assert again.calls == 8 + 2
    fresh = Service()
    calls_of(kind, fresh, rs.Retry(3, backoff=0, budget=0.25))(1)
    assert fresh.calls == 4


def test_a_good_time_pays_for_a_hundred_retries_and_no_more() -> None:
    service = Service()
    service.fails = False
    calls = calls_of("lookup", service, rs.Retry(999, backoff=0, budget=0.5))
    calls(1000)
    service.fails, service.calls = True, 0
    calls(1)
    assert service.calls == 1 + 100


def test_the_note_says_that_the_budget_is_spent() -> None:
    call = rs.bounded(retry=rs.Retry(99, backoff=0, budget=0))(Service().look)
    with pytest.raises(OSError, match="down") as raised:
        asyncio.run(call(1))
    assert raised.value.__notes__ == [
        "rstreams_fast: this was attempt 11 of 100: no more than 0 of the calls may be retries"
    ]


async def failing(k: int) -> int:
    raise OSError("down")


def outcomes(stage: rs.Lookup, rows: int) -> list[Any]:
    found = pa.Table.from_batches(stage.as_map_fn()(iter(parts(rows, rows))))
    return list(found["value"].to_pylist())


@pytest.mark.parametrize(("failures", "before"), [(5, 5), (0.5, 100)])
def test_calls_fail_at_once_while_a_circuit_is_open(failures: float, before: int) -> None:
    service, circuit = Service(), rs.Circuit(failures, reset=3600)
    words: Any = {"concurrency": 1, "on_failure": "column", "circuit": circuit}
    stage = rs.lookup(service.look, pa.int64(), retry=rs.Retry(2, backoff=0), **words)
    found = outcomes(stage, 200)
    assert service.calls == before
    assert {row["error"]["type"] for row in found[: before // 3]} == {"OSError"}
    last = found[-1]
    assert last["error"]["type"] == "CircuitOpenError"
    assert (
        "the service failed too often: no calls for 3.6e+03 s, then one" in last["error"]["message"]
    )
    assert last["attempts"] == 1
    other = rs.lookup(service.look, pa.int64(), circuit=pickle.loads(pickle.dumps(circuit)))
    with pytest.raises(rs.CircuitOpenError):  # another stage of the process: one state
        list(other.as_map_fn()(iter(parts(1, 1))))
    assert service.calls == before


@pytest.mark.parametrize("words", [{}, {"retry": rs.Retry(2, backoff=0)}], ids=["once", "retried"])
def test_a_circuit_opens_on_calls_that_a_deadline_cuts_short(words: Any) -> None:
    calls: list[int] = []

    async def hangs(k: int) -> int:
        calls.append(k)
        await asyncio.Event().wait()
        return k

    circuit = rs.Circuit(3, reset=3600)
    words = {"concurrency": 1, "on_failure": "column", "deadline": 0.02, **words}
    found = outcomes(rs.lookup(hangs, pa.int64(), circuit=circuit, **words), 20)
    kinds = [row["error"]["type"] for row in found]
    assert kinds == ["TimeoutError"] * 3 + ["CircuitOpenError"] * 17
    assert len(calls) == 3


def test_an_open_circuit_waits_for_no_permit() -> None:
    circuit = rs.Circuit(1, reset=3600)
    limit = rs.Limit(uuid.uuid4().hex, rate=0.01, burst=1)
    stage = rs.lookup(
        failing, pa.int64(), concurrency=1, circuit=circuit, limit=limit, on_failure="null"
    )
    assert outcomes(stage, 50) == [None] * 50


def test_a_probe_that_does_not_return_lets_another_one_probe() -> None:
    """It has no time-out, and hangs in another task, say: the service may be up again."""
    circuit = rs.Circuit(1, reset=0.2)
    hangs, asked = threading.Event(), list[str]()

    def answer(k: int) -> int:
        if not asked:
            asked.append("down")
            raise OSError("down")
        if len(asked) == 1:
            asked.append("hangs")
            assert hangs.wait(DEADLINE)
            raise OSError("late, and so no failure of now")
        return k

    def look() -> list[Any]:
        stage = rs.lookup(answer, pa.int64(), circuit=circuit, on_failure="null")
        return outcomes(stage, 1)

    assert look() == [None]

    def probe() -> None:
        while len(asked) < 2:
            look()

    probing = threading.Thread(target=probe)
    probing.start()
    try:
        wait_until(lambda: len(asked) == 2, "the probe that hangs")
        wait_until(lambda: look() == [0], "another probe")
    finally:
        hangs.set()
        probing.join(DEADLINE)
    assert look() == [0]


def test_a_row_takes_no_longer_than_its_deadline_with_all_its_attempts() -> None:
    async def slow(k: int) -> int:
        if k:
            return k
        await asyncio.sleep(0)
        raise OSError("down")

    retry = rs.Retry(10**6, backoff=0.001, max_backoff=0.001)
    stage = rs.lookup(slow, pa.int64(), deadline=0.3, retry=retry, on_failure="column")
    late, good = outcomes(stage, 2)
    assert good["value"] == 1
    assert late["error"] == {
        "type": "TimeoutError",
        "message": "no answer within 0.3 s, all attempts and waits together",
    }
    assert late["attempts"] > 1
    assert late["seconds"] >= 0.29
    stage = rs.lookup(slow, pa.int64(), deadline=0.1, timeout=0.01, retry=retry)
    with pytest.raises(TimeoutError, match=r"within 0\.1 s, all attempts"):
        outcomes(stage, 1)


def test_a_wait_for_a_permit_is_part_of_the_row() -> None:
    limit = rs.Limit(uuid.uuid4().hex, rate=0.01, burst=1)
    service = Service()
    service.fails = False
    stage = rs.lookup(
        service.look, pa.int64(), concurrency=2, limit=limit, deadline=0.05, on_failure="null"
    )
    assert outcomes(stage, 6)[2:] == [None] * 4


@pytest.mark.parametrize("on_failure", ["raise", "null"])
def test_a_task_takes_no_longer_than_its_deadline(on_failure: str) -> None:
    async def hangs(k: int) -> int:
        await asyncio.Event().wait()
        return k

    stage = rs.lookup(hangs, pa.int64(), task_deadline=0.05, on_failure=on_failure)
    with pytest.raises(TimeoutError, match=r"the task took longer than task_deadline=0\.05 s"):
        outcomes(stage, 3)


def test_a_call_that_keeps_the_loop_does_not_keep_the_task_from_its_deadline() -> None:
    go_on = threading.Event()

    async def keeps_the_loop(k: int) -> int:
        go_on.wait(DEADLINE)
        return k

    stage = rs.lookup(keeps_the_loop, pa.int64(), task_deadline=0.05)
    with pytest.raises(TimeoutError, match=r"the task took longer than task_deadline=0\.05 s"):
        outcomes(stage, 3)
    go_on.set()


def test_batches_on_threads_have_a_circuit_and_a_deadline_of_the_task() -> None:
    calls, go_on = list[int](), threading.Event()

    def fails(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        raise OSError("down")

    some = [pa.RecordBatch.from_pydict({"k": [k]}) for k in range(10)]
    words: Any = {"circuit": rs.Circuit(2), "on_failure": "column", "concurrency": 1}
    outputs = rs.map_batches(fails, K, **words).as_map_fn()(iter(some))
    kinds = [row["outcome"]["error"]["type"] for batch in outputs for row in batch.to_pylist()]
    assert kinds == ["OSError"] * 2 + ["CircuitOpenError"] * 8
    assert len(calls) == 2

    def hangs(batch: pa.RecordBatch) -> Any:
        assert go_on.wait(DEADLINE)
        return batch

    stage = rs.map_batches(hangs, K, task_deadline=0.05).as_map_fn()
    threading.Timer(0.3, go_on.set).start()
    with pytest.raises(TimeoutError, match=r"the task took longer than task_deadline=0\.05 s"):
        list(stage(iter(some)))
