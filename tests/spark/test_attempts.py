"""A service that fails: budgets of retries, circuits and deadlines, outside of Spark."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, wait_until
from tests.spark.stages import K, made, values

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


class Service:
    """Answers as it is told to, and counts."""

    def __init__(self, fails: bool = True) -> None:
        self.calls, self.fails = 0, fails

    def answer(self, k: Any) -> Any:
        self.calls += 1
        if self.fails:
            raise OSError("down")
        return k

    async def look(self, k: Any) -> Any:
        return self.answer(k)


def calls_of(kind: str, service: Service, retry: rs.Retry) -> Any:
    """Return what makes so many calls, one after the other."""
    if kind == "bounded":
        call = rs.Policy(retry=retry)(service.answer)

        def run(count: int) -> None:
            for k in range(count):
                with contextlib.suppress(OSError):
                    call(k)

        return run
    words: Any = {"concurrency": 1, "retry": retry}
    if kind == "lookup":
        stage: Any = made(rs.lookup, service.look, pa.int64(), on_failure="null", **words)
        return lambda count: values(stage, range(count))
    fn = service.answer if kind == "map_batches" else service.look
    of_batches = made(rs.map_batches, fn, K, on_failure="drop", **words)
    return lambda count: values(of_batches, *[[0]] * count)


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
    service = Service(fails=False)
    calls = calls_of("lookup", service, rs.Retry(999, backoff=0, budget=0.5))
    calls(1000)
    service.fails, service.calls = True, 0
    calls(1)
    assert service.calls == 1 + 100
    call = rs.Policy(retry=rs.Retry(99, backoff=0, budget=0))(Service().look)
    with pytest.raises(OSError, match="down") as raised:
        asyncio.run(call(1))
    assert raised.value.__notes__ == [
        "rstreams_fast: this was attempt 11 of 100: no more than 0 of the calls may be retries"
    ]


def outcomes(fn: Any, rows: int, **words: Any) -> list[Any]:
    return values(made(rs.lookup, fn, pa.int64(), **words), range(rows))


async def hangs(k: int) -> int:
    await asyncio.Event().wait()
    return k


@pytest.mark.parametrize(("failures", "before"), [(5, 5), (0.5, 100)])
def test_calls_fail_at_once_while_a_circuit_is_open(failures: float, before: int) -> None:
    service, circuit = Service(), rs.Circuit(failures, reset=3600)
    words: Any = {"concurrency": 1, "on_failure": "column", "retry": rs.Retry(2, backoff=0)}
    found = outcomes(service.look, 200, circuit=circuit, **words)
    assert service.calls == before
    assert {row["error"]["type"] for row in found[: before // 3]} == {"OSError"}
    error = found[-1]["error"]
    assert (error["type"], found[-1]["attempts"]) == ("CircuitOpenError", 1)
    assert "the service failed too often: no calls for 3.6e+03 s, then one" in error["message"]
    with pytest.raises(rs.CircuitOpenError):  # another stage of the process: one state
        outcomes(service.look, 1, circuit=pickle.loads(pickle.dumps(circuit)))
    assert service.calls == before


@pytest.mark.parametrize("words", [{}, {"retry": rs.Retry(2, backoff=0)}], ids=["once", "retried"])
def test_a_circuit_opens_on_calls_that_a_deadline_cuts_short(words: Any) -> None:
    with rs.Metrics() as metrics:
        words = {"concurrency": 1, "on_failure": "column", "deadline": 0.02, **words}
        circuit = rs.Circuit(3, reset=3600)
        found = outcomes(hangs, 20, circuit=circuit, metrics=metrics, **words)
        kinds = [row["error"]["type"] for row in found]
        assert kinds == ["TimeoutError"] * 3 + ["CircuitOpenError"] * 17
        assert metrics.totals().timeouts == 3


def test_an_open_circuit_waits_for_no_permit_and_a_deadline_for_none(name: str) -> None:
    words: Any = {"limit": rs.Limit(name, rate=0.01, burst=1), "on_failure": "null"}
    circuit = rs.Circuit(1, reset=3600)
    assert outcomes(Service().look, 50, concurrency=1, circuit=circuit, **words) == [None] * 50
    found = outcomes(Service(fails=False).look, 6, concurrency=2, deadline=0.05, **words)
    assert found[2:] == [None] * 4


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
        return outcomes(answer, 1, circuit=circuit, on_failure="null")

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

    words: Any = {"retry": rs.Retry(10**6, backoff=0.001, max_backoff=0.001)}
    late, good = outcomes(slow, 2, deadline=0.3, on_failure="column", **words)
    assert good["value"] == 1
    assert late["error"] == {
        "type": "TimeoutError",
        "message": "no answer within 0.3 s, all attempts and waits together",
    }
    assert late["attempts"] > 1
    assert late["seconds"] >= 0.29
    with pytest.raises(TimeoutError, match=r"within 0\.1 s, all attempts"):
        outcomes(slow, 1, deadline=0.1, timeout=0.01, **words)


@pytest.mark.parametrize("on_failure", ["raise", "null"])
@pytest.mark.parametrize("keeps_the_loop", [True, False])
def test_a_task_takes_no_longer_than_its_deadline(on_failure: str, keeps_the_loop: bool) -> None:
    go_on = threading.Event()

    async def keeps(k: int) -> int:
        go_on.wait(DEADLINE)
        return k

    fn = keeps if keeps_the_loop else hangs
    with pytest.raises(TimeoutError, match=r"the task took longer than Bounds\(seconds=0\.05\)"):
        outcomes(fn, 3, bounds=rs.Bounds(seconds=0.05), on_failure=on_failure)
    go_on.set()


def test_batches_on_threads_take_no_longer_than_the_deadline_of_the_task() -> None:
    go_on = threading.Event()

    def blocks(batch: pa.RecordBatch) -> Any:
        assert go_on.wait(DEADLINE)
        return batch

    threading.Timer(0.3, go_on.set).start()
    with pytest.raises(TimeoutError, match=r"the task took longer than Bounds\(seconds=0\.05\)"):
        values(rs.map_batches(blocks, K, bounds=rs.Bounds(seconds=0.05)), [1])


@pytest.mark.parametrize(
    ("error", "on", "attempts"),
    [
        *[(kind("wrong"), None, 1) for kind in (TypeError, AttributeError, ImportError)],
        (pickle.PicklingError("wrong"), None, 1),
        *[(kind("perhaps"), None, 4) for kind in (OSError, ValueError, KeyError, RuntimeError)],
        (TypeError("the user knows better"), (Exception,), 4),
        (ValueError("not this one"), OSError, 1),
    ],
)
def test_what_cannot_help_is_not_tried_again(error: Exception, on: Any, attempts: int) -> None:
    made = list[int]()

    def look(k: int) -> int:
        made.append(k)
        raise error

    call = rs.Policy(retry=rs.Retry(3, backoff=0, on=on))(look)
    with pytest.raises(type(error)):
        call(1)
    assert len(made) == attempts
