"""``concurrency="auto"``: it finds what a service can work on, also when that moves."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from bench.auto import Service, start
from tests.helpers import wait_until

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


@pytest.mark.slow  # how fast it does is a question of time
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
