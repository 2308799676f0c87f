"""Figures of stages at work: calls that were made, and a loop that is kept. Outside of Spark."""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import rstreams_fast.spark as rs
from rstreams_fast.spark import report
from tests.helpers import DEADLINE

KEYS = pa.schema([("k", pa.int64())])


@pytest.fixture
def metrics(tmp_path: Path) -> rs.Metrics:
    return rs.Metrics(tmp_path / "metrics")


class Service:
    """Counts its calls, and how many there are at once."""

    def __init__(self) -> None:
        self.calls = self.inside = self.most = 0

    async def look(self, k: Any) -> Any:
        self.calls += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.001)
        self.inside -= 1
        return k


def batches(keys: list[int]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64())})


ROWS = 2000
REPEATED = [k % 100 for k in range(ROWS)]

STAGES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "every row": ({}, {"calls": ROWS}),
    "dedupe": ({"dedupe": True}, {}),
    "cache": ({"cache": True, "concurrency": 1}, {"calls": 100, "cache_hits": ROWS - 100}),
    "cache and dedupe": ({"cache": True, "dedupe": True}, {"calls": 100}),
    "journal": ({"journal": True, "dedupe": True}, {"journal_hits": ROWS // 2}),
    "lists": ({"batch": 50, "linger": 5}, {"calls": ROWS // 50}),
    "lists and a cache": ({"batch": 50, "cache": True}, {}),
    "lists and dedupe": ({"batch": 50, "dedupe": True}, {}),
}


@pytest.mark.parametrize("kind", STAGES)
def test_calls_are_those_that_were_made(kind: str, metrics: rs.Metrics, tmp_path: Path) -> None:
    words, expected = STAGES[kind]
    words = dict(words)
    service = Service()
    if words.pop("cache", None):
        words["cache"] = rs.Cache()
    if words.pop("journal", None):
        words["journal"] = rs.Journal(str(tmp_path / "journal"), version="1")
        first = rs.lookup(service.look, pa.int64(), journal=words["journal"])
        list(first.as_map_fn()(batches(list(range(50)))))  # so that half of the keys are there
    service.calls = service.most = 0
    stage = rs.lookup(service.look, pa.int64(), metrics=metrics, **words)
    found = pa.Table.from_batches(stage.as_map_fn()(batches(REPEATED)))
    assert found["value"].to_pylist() == REPEATED
    total = metrics.totals()
    assert total.calls == service.calls
    assert service.most <= total.max_running <= service.most + 1  # one may be a hit
    assert total.running == 0
    if "batch" not in words:
        assert total.calls + total.shared + total.cache_hits + total.journal_hits == ROWS
    if not words.get("dedupe"):
        assert total.shared == 0
    for name, count in expected.items():
        assert getattr(total, name) == count, name


def test_the_table_tells_calls_and_hits_apart(metrics: rs.Metrics) -> None:
    words: Any = {"cache": rs.Cache(), "concurrency": 1, "metrics": metrics}
    list(rs.lookup(Service().look, pa.int64(), **words).as_map_fn()(batches(REPEATED)))
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(report.work_table(metrics.by_stage()))
    rows = [
        [cell.strip() for cell in line.split("│")[1:3]]
        for line in console.export_text().splitlines()
    ]
    assert ["calls made", "100"] in rows
    assert ["answered by cache, journal", "1,900, 0"] in rows
    assert ["shared one in flight", "0"] in rows


TOLD = threading.Event()
"""Set when a function was pointed out: it keeps the loop until then."""


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        TOLD.set()


async def sleeps(k: Any) -> Any:
    TOLD.wait(DEADLINE)  # this is what is pointed out
    return k


async def sleeps_later(k: Any) -> Any:
    await asyncio.sleep(0.001)
    TOLD.wait(DEADLINE)
    return k


async def computes(k: Any) -> Any:
    until = time.monotonic() + DEADLINE
    while not TOLD.is_set() and time.monotonic() < until:
        sum(range(1000))
    return k


class Sleeping:
    async def look(self, _client: None, k: Any) -> Any:
        return await sleeps_inside(k)

    async def __call__(self, k: Any) -> Any:
        return await sleeps_inside(k)


async def sleeps_inside(k: Any) -> Any:
    TOLD.wait(DEADLINE)
    return k


async def sleeps_for_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    TOLD.wait(DEADLINE)
    return batch


def looked_up(fn: Any) -> Callable[..., list[Any]]:
    return lambda **words: list(
        rs.lookup(fn, pa.int64(), **words).as_map_fn()(batches(list(range(16))))
    )


def mapped(**words: Any) -> list[Any]:
    stage = rs.map_batches(sleeps_for_batches, KEYS, **words)
    return list(stage.as_map_fn()(batches([k]).__next__() for k in range(2)))


BLOCKING: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "sleeps": (looked_up(sleeps), "sleeps keeps the event loop"),
    "later": (looked_up(sleeps_later), "sleeps_later keeps the event loop"),
    "computes": (looked_up(computes), "computes keeps the event loop"),
    "a method": (
        looked_up(functools.partial(Sleeping().look, None)),
        "Sleeping.look keeps the event loop",
    ),
    "an object": (looked_up(Sleeping()), "Sleeping keeps the event loop"),
    "batches": (mapped, "sleeps_for_batches keeps the event loop"),
}


@pytest.fixture
def listener() -> Iterator[None]:
    TOLD.clear()
    log, listening = logging.getLogger("rstreams_fast"), Listener()
    log.addHandler(listening)
    yield
    log.removeHandler(listening)


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize("kind", BLOCKING)
def test_a_function_that_keeps_the_loop_is_pointed_out_once(
    kind: str, metrics: rs.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    run, said = BLOCKING[kind]
    with caplog.at_level(logging.WARNING, "rstreams_fast"):
        run(metrics=metrics)
        if kind == "sleeps":
            TOLD.clear()
            threading.Timer(0.5, TOLD.set).start()  # in which it would be pointed out again
            run()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{said}, at {__file__}:")
    total = metrics.totals()
    assert 0.1 < total.blocked <= total.seconds


def test_functions_that_keep_no_loop_are_not(
    metrics: rs.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    async def waits(k: int) -> int:
        await asyncio.sleep(0.5)
        return k

    def sleeps_on_a_thread(k: int) -> int:
        time.sleep(0.5)
        return k

    with caplog.at_level(logging.WARNING, "rstreams_fast"):
        for fn in (waits, sleeps_on_a_thread):
            list(rs.lookup(fn, pa.int64(), metrics=metrics).as_map_fn()(batches([1, 2, 3])))
    assert not caplog.records
    assert metrics.totals().blocked == 0
