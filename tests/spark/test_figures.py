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
from tests.spark.service import ServiceProcess, asking
from tests.spark.stages import K, Service, V, made, values


@pytest.fixture
def metrics(tmp_path: Path) -> rs.Metrics:
    return rs.Metrics(tmp_path / "metrics")


ROWS = 2000
REPEATED = [k % 100 for k in range(ROWS)]

STAGES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "every row": ({}, {"calls": ROWS}),
    "dedupe": ({"dedupe": True}, {}),
    "cache": ({"cache": True, "concurrency": 1}, {"calls": 100, "cache_hits": ROWS - 100}),
    "cache and dedupe": ({"cache": True, "dedupe": True}, {"calls": 100}),
    "journal": ({"journal": True, "dedupe": True}, {"journal_hits": ROWS // 2}),
    "lists": (
        {
            "batch": rs.Batching(50, linger=5),
        },
        {"calls": ROWS // 50},
    ),
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
        values(rs.lookup(rs.Policy(journal=words["journal"])(service.look), pa.int64()), range(50))
    service.calls.clear()  # half of the keys are in a journal
    service.most = 0
    stage = made(rs.lookup, service.look, pa.int64(), metrics=metrics, **words)
    assert values(stage, REPEATED) == REPEATED
    total = metrics.totals()
    assert total.calls == len(service.calls)
    assert service.most <= total.max_running <= service.most + 1  # one may be a hit
    assert total.running == 0
    if "batch" not in words:
        assert total.calls + total.shared + total.cache_hits + total.journal_hits == ROWS
    if not words.get("dedupe"):
        assert total.shared == 0
    for name, count in expected.items():
        assert getattr(total, name) == count, name


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("instant", [True, False])
def test_seconds_of_calls_are_told_without_a_policy(
    limited: bool, instant: bool, metrics: rs.Metrics, name: str
) -> None:
    async def look(k: int) -> int:
        await asyncio.sleep(0 if instant else 0.01)
        return k

    words: Any = {"limit": rs.Limit(name, concurrency=64)} if limited else {}
    assert values(made(rs.lookup, look, pa.int64(), metrics=metrics, **words), range(ROWS))
    total = metrics.totals()
    assert ROWS / 4 <= sum(total.latencies.values()) <= ROWS
    # A timer may be early by a millisecond, and a bucket is 9 % wide.
    assert instant or total.latency(0.01) >= 0.008
    assert total.latency(0.5) <= total.latency(0.95) <= total.latency(0.99) < DEADLINE


def test_the_table_tells_calls_and_hits_apart(metrics: rs.Metrics) -> None:
    words: Any = {"cache": rs.Cache(), "concurrency": 1, "metrics": metrics}
    values(made(rs.lookup, Service().look, pa.int64(), **words), REPEATED)
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(report.work_table(metrics.by_stage()))
    rows = [
        [cell.strip() for cell in line.split("│")[1:3]]
        for line in console.export_text().splitlines()
    ]
    assert ["calls", "100"] in rows
    assert ["answered by cache, journal", "1,900, 0"] in rows
    assert ["shared one in flight", "0"] in rows


def test_the_tables_have_all_digits_of_what_was_spent() -> None:
    spent = {"tokens": 12_345_678.0, "money": 0.125}
    total = rs.StageMetrics(stage="look", attempts=2, spent=spent)
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(report.work_table({"look": total}), total._repr_html_())
    told = console.export_text()
    assert "0.125 money (0.0625 each), 12,345,678 tokens (6,172,839 each)" in told
    assert "tokens: 12,345,678, money: 0.125" in told


@pytest.fixture(scope="module")
def served() -> Iterator[ServiceProcess]:
    service = ServiceProcess()
    service.tell(seconds=0.0)
    yield service
    service.close()


POLICIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "none": lambda _: {},
    "retry": lambda _: {"retry": rs.Retry(3, backoff=0.001)},
    "limit": lambda name: {"limit": rs.Limit(name, concurrency=4)},
    "all": lambda name: {
        "retry": rs.Retry(3, backoff=0.001),
        "limit": rs.Limit(name, concurrency=4),
        "circuit": rs.Circuit(1000),
        "timeout": DEADLINE,
        "cache": rs.Cache(),
    },
    "unordered": lambda _: {"ordered": False},
    "lists": lambda _: {"batch": 5},
}


@pytest.mark.parametrize("kind", POLICIES)
def test_attempts_are_what_the_service_has_counted(
    kind: str, served: ServiceProcess, tmp_path: Path, name: str
) -> None:
    """In a fresh run, and in one that a journal resumes; a third of the calls is told to wait."""
    ask, told = asking(served.port), set[int]()

    async def look(k: int) -> int:
        answer = await ask(k)
        if k % 3 == 0 and k not in told:
            told.add(k)
            raise rs.RetryAfter(0.001)
        return answer

    async def look_for_all(ks: list[int]) -> list[int]:
        await look(ks[0])
        return [2 * k for k in ks]

    make, where = (rs.lookup, {"returns": pa.int64()})
    if kind == "unordered":
        make, where = (rs.enrich, {"on": "k", "output": V})
    words = {"journal": rs.Journal(str(tmp_path / "j"), version="1"), **POLICIES[kind](name)}
    fn = look_for_all if kind == "lists" else look
    for rows, known in ((150, 0), (400, 150)):
        served.tell(reset=True)
        with rs.Metrics() as metrics:
            stage = made(make, fn, metrics=metrics, **where, **words)
            assert sorted(values(stage, range(rows))) == [2 * k for k in range(rows)]
            total = metrics.totals()
        assert total.attempts == served.tell()["calls"] == total.calls + total.throttled
        assert total.journal_hits + total.cache_hits == known
        assert total.throttled == len(told) >= 10
        assert kind == "lists" or total.calls == rows - known
        assert sum(total.latencies.values()) == total.attempts
        assert 0 < total.latency(0.5) <= total.latency(0.99) < DEADLINE
        assert total.waited_service > 0.001
        assert (total.waited_limit > 0) == ("limit" in words)
        told.clear()


TOLD = threading.Event()
"""Set when a function was pointed out: it keeps the loop until then."""


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        TOLD.set()


def keeps(k: Any) -> Any:
    TOLD.wait(DEADLINE)  # this is what is pointed out
    return k


async def sleeps(k: Any) -> Any:
    return keeps(k)


async def sleeps_later(k: Any) -> Any:
    await asyncio.sleep(0.001)
    return keeps(k)


async def computes(k: Any) -> Any:
    until = time.monotonic() + DEADLINE
    while not TOLD.is_set() and time.monotonic() < until:
        sum(range(1000))
    return k


async def sleeps_for_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    return keeps(batch)


class Sleeping:
    async def look(self, _client: None, k: Any) -> Any:
        return keeps(k)

    async def __call__(self, k: Any) -> Any:
        return keeps(k)


def looked_up(fn: Any, **words: Any) -> Any:
    return values(made(rs.lookup, fn, pa.int64(), **words), range(16))


#: Functions, and their names.
BLOCKING: dict[Any, str] = {
    sleeps: "sleeps",
    sleeps_later: "sleeps_later",
    computes: "computes",
    functools.partial(Sleeping().look, None): "Sleeping.look",
    Sleeping(): "Sleeping",
    sleeps_for_batches: "sleeps_for_batches",
}


@pytest.fixture
def listener() -> Iterator[None]:
    TOLD.clear()
    log, listening = logging.getLogger("rstreams_fast"), Listener()
    log.addHandler(listening)
    yield
    log.removeHandler(listening)


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize("fn", BLOCKING, ids=str)
def test_a_function_that_keeps_the_loop_is_pointed_out_once(
    fn: Any, metrics: rs.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rstreams_fast"):
        if fn is sleeps_for_batches:
            values(rs.map_batches(fn, K, metrics=metrics), [0], [1])
        else:
            looked_up(fn, metrics=metrics)
        if fn is sleeps:
            TOLD.clear()
            threading.Timer(0.5, TOLD.set).start()  # in which it would be pointed out again
            looked_up(fn)
    (record,) = caplog.records
    said = f"{BLOCKING[fn]} keeps the event loop, at {__file__}:"
    assert record.getMessage().startswith(said)
    total = metrics.totals()
    assert 0.05 <= total.blocked <= total.seconds
    assert sum(total.blocked_at.values()) == pytest.approx(total.blocked)
    assert all(place.startswith(f"{Path(__file__).name}:") for place in total.blocked_at)


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
            values(rs.lookup(fn, pa.int64(), metrics=metrics), [1, 2, 3])
    assert not caplog.records
    assert metrics.totals().blocked == 0
