"""A service that fails: budgets of retries, circuits and deadlines, outside of Spark."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs

KEYS = pa.schema([("k", pa.int64())])

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"k": pa.array(range(rows), pa.int64())})


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
        return lambda count: list(stage.as_map_fn()(batches(count)))
    if kind == "bounded":
        call = rs.bounded(retry=retry)(service.answer)

        def run(count: int) -> None:
            for k in range(count):
                with contextlib.suppress(OSError):
                    call(k)

        return run
    fn = service.batch_sync if kind == "map_batches" else service.batch
    stage = rs.map_batches(fn, KEYS, concurrency=1, retry=retry, on_failure="drop")
    return lambda count: list(
        stage.as_map_fn()(batch for _ in range(count) for batch in batches(1))
    )


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


def test_the_delay_is_any_up_to_the_backoff() -> None:
    delays = [rs.Retry(1, backoff=1).delay(1) for _ in range(1000)]
    assert min(delays) < 0.1
    assert 0.9 < max(delays) <= 1


@pytest.mark.parametrize(
    ("budget", "error"), [(-0.1, ValueError), (1.5, ValueError), ("1", TypeError)]
)
def test_a_budget_is_a_share(budget: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"Retry\(budget\) must be"):
        rs.Retry(3, budget=budget)
