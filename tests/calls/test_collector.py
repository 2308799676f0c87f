"""How often the garbage collector runs while a stage has calls in flight."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import batches, same

BEFORE = (700, 9, 8)


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*BEFORE)
    yield
    gc.set_threshold(*before)


def at_work(concurrency: int) -> Any:
    """Return a stage that has given its first batch, and goes on until it is closed."""
    stage: Any = rs.lookup(same, pa.int64(), concurrency=concurrency).as_map_fn()(batches([1], [2]))
    next(stage)
    return stage


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_most_calls_at_work_decide_and_the_last_leaves_what_was(first: int) -> None:
    stages, found = list[Any](), list[int]()
    for concurrency in (1, 1000, 5000):
        stages.append(at_work(concurrency))
        found.append(gc.get_threshold()[0])
    assert found == [700, 40_000, 100_000]
    stages.pop(first).close()
    assert gc.get_threshold() == ((40_000 if first == 2 else 100_000), 9, 8)
    for stage in stages:
        stage.close()
    assert gc.get_threshold() == BEFORE


@pytest.mark.parametrize("own", [(0, 9, 8), (5, 5, 5)])
def test_what_a_user_sets_stays(own: tuple[int, int, int]) -> None:
    stage = at_work(1000)
    gc.set_threshold(*own)
    other = at_work(2000)
    assert gc.get_threshold() == own
    for each in (stage, other):
        each.close()
    assert gc.get_threshold() == own
    if not own[0]:
        stage = at_work(1000)
        assert gc.get_threshold() == own
        stage.close()
