"""``RetryAfter``: what a function says for a service that has no room, outside of Spark."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import email.utils
import itertools
import math
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, run_threads, wait_until
from tests.spark import stages
from tests.spark.stages import scopes


def values(stage: Any, rows: int) -> list[Any]:
    return stages.values(stage, range(rows))


class Service:
    """Has no room for the first ``refused`` calls of each key; it says so with ``seconds``."""

    def __init__(self, refused: int, seconds: Any = 0.001) -> None:
        self.refused = refused
        self.seconds = seconds
        self.calls: dict[Any, int] = {}

    def answer(self, k: Any) -> Any:
        self.calls[k] = self.calls.get(k, 0) + 1
        if self.calls[k] <= self.refused:
            raise rs.RetryAfter(self.seconds)
        return k

    async def look(self, k: Any) -> Any:
        return self.answer(k)

    async def look_later(self, k: Any) -> Any:
        await asyncio.sleep(0.001)
        return self.answer(k)

    async def list_of(self, keys: list[Any]) -> list[Any]:
        self.answer(keys[0])
        return keys

    async def list_with_some(self, keys: list[Any]) -> list[Any]:
        return await asyncio.gather(*map(self.look, keys), return_exceptions=True)

    async def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.answer(batch["k"][0].as_py())
        return batch

    def batch_sync(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.answer(batch["k"][0].as_py())
        return batch

    def batches_sync(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.answer(batch["k"][0].as_py())
        yield batch


def lookup(method: str, **words: Any) -> Callable[[Service, dict[str, Any], int], Any]:
    return lambda service, more, rows: values(
        stages.made(rs.lookup, getattr(service, method), pa.int64(), **words, **more), rows
    )


def map_batches(method: str) -> Callable[[Service, dict[str, Any], int], Any]:
    return lambda service, more, rows: stages.values(
        stages.made(rs.map_batches, getattr(service, method), stages.K, **more),
        *([k] for k in range(rows)),
    )


KINDS: dict[str, Callable[[Service, dict[str, Any], int], Any]] = {
    "lookup at once": lookup("look"),
    "lookup": lookup("look_later"),
    "lookup on threads": lookup("answer", concurrency=8),
    "lookup with dedupe": lookup("look_later", dedupe=True),
    "lookup with a cache": lookup("look_later", cache=rs.Cache()),
    "lookup in order of keys": lookup("look_later", serialize_by="k"),
    "lookup of lists": lookup("list_of", batch=5),
    "lookup of keys of lists": lookup("list_with_some", batch=5),
    "map_batches": map_batches("batch"),
    "map_batches on threads": map_batches("batch_sync"),
    "map_batches of generators": map_batches("batches_sync"),
}

WORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "no words": lambda _: {},
    "a limit": lambda name: {"limit": rs.Limit(name, concurrency=4)},
    "a rate": lambda name: {"limit": rs.Limit(name, rate=5000, burst=20)},
    "one retry": lambda _: {"retry": rs.Retry(1, backoff=0, budget=0)},
    "a circuit": lambda _: {"circuit": rs.Circuit(1, reset=3600)},
    "a share": lambda _: {"circuit": rs.Circuit(0.01, reset=3600, on=rs.RetryAfter)},
    "all": lambda name: {
        "limit": rs.Limit(name, concurrency=4, scope="job"),
        "retry": rs.Retry(1, on=OSError, backoff=0),
        "circuit": rs.Circuit(1, reset=3600),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_told_to_wait_is_made_again(kind: str, name: str) -> None:
    """Three times each: more often than a retry, a budget or a circuit would allow."""

    def run(words: str) -> tuple[Any, set[int]]:
        service = Service(refused=3)
        found = KINDS[kind](service, WORDS[words](f"{name} {words}"), 10)
        return found, set(service.calls.values())

    found = run_threads([partial(run, words) for words in WORDS])
    assert dict(zip(WORDS, found, strict=True)) == dict.fromkeys(WORDS, (list(range(10)), {4}))


@pytest.mark.parametrize("on_failure", ["null", "column"])
def test_it_is_no_failure_of_a_row(on_failure: str) -> None:
    service, metrics = Service(refused=3), rs.Metrics()
    words: Any = {"on_failure": rs.Failures(on_failure, at_most=0), "deadline": DEADLINE}
    with metrics:
        found = values(
            stages.made(rs.lookup, service.look, pa.int64(), metrics=metrics, **words), 10
        )
        total = metrics.totals()
    if on_failure == "column":
        assert [row["attempts"] for row in found] == [4] * 10
        found = [row["value"] for row in found]
    assert found == list(range(10))
    assert (total.throttled, total.retries, total.failures) == (30, 0, 0)


def test_retries_are_for_what_else_fails() -> None:
    answers = itertools.chain([429, 500, 429, 429, 500, 429, 429, 200])

    async def look(k: int) -> int:
        answer = next(answers)
        if answer == 429:
            raise rs.RetryAfter(0)
        if answer == 500:
            raise OSError("down")
        return answer

    stage = rs.lookup(
        rs.Policy(retry=rs.Retry(2, backoff=0))(look), pa.int64(), on_failure="column"
    )
    (row,) = values(stage, 1)
    assert (row["value"], row["attempts"]) == (200, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_patience_ends(kind: str) -> None:
    """In time and not in attempts: the fourth attempt comes when the time has passed."""
    service = Service(refused=10**9, seconds=0.02)
    with pytest.raises(rs.RetryAfter) as raised:
        KINDS[kind](service, {"retry": rs.Retry(9, backoff=0), "patience": 0.05}, 1)
    assert service.calls == {0: 4}
    notes = raised.value.__notes__
    assert "rstreams_fast: the call has waited for 0.05 s, which is all of its patience" in notes


def test_zero_seconds_do_not_make_a_storm() -> None:
    service = Service(refused=10**9, seconds=0)
    with pytest.raises(rs.RetryAfter):
        values(rs.lookup(rs.Policy(patience=0.3)(service.look), pa.int64()), 1)
    assert service.calls == {0: 6}  # after 10, 20, 40, 80 and 150 ms


def test_a_deadline_bounds_the_waits() -> None:
    service = Service(refused=10**9, seconds=100)
    stage = rs.lookup(rs.Policy(deadline=0.1)(service.look), pa.int64(), on_failure="column")
    assert {row["error"]["type"] for row in values(stage, 5)} == {"TimeoutError"}


@pytest.mark.usefixtures("no_leaked_threads")
@pytest.mark.parametrize("method", ["batch", "batch_sync", "batches_sync"])
@pytest.mark.parametrize("ends", ["closed", "late"])
def test_a_stage_that_ends_does_not_wait_for_calls_that_wait(method: str, ends: str) -> None:
    service = Service(refused=10**9, seconds=100)
    service.calls[0] = service.refused  # the first batch has room
    words: Any = {"bounds": rs.Bounds(seconds=0.1)} if ends == "late" else {}
    stage = stages.made(rs.map_batches, getattr(service, method), stages.K, **words)
    outputs = stage.as_map_fn()(stages.batches([0], [1]))
    begun = time.monotonic()
    if ends == "closed":
        next(outputs)
        wait_until(lambda: 1 in service.calls, "the call that is told to wait")
        outputs.close()
    else:
        with pytest.raises(TimeoutError):
            list(outputs)
    assert time.monotonic() - begun < DEADLINE


def test_a_circuit_that_probes_closes_on_it() -> None:
    """It is an answer: the service is up."""
    answers: list[Any] = [OSError("down"), rs.RetryAfter(0.001), 1, 1]

    async def look(k: int) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    words: Any = {"circuit": rs.Circuit(1, reset=0.05), "on_failure": "null"}
    stage = stages.made(rs.lookup, look, pa.int64(), concurrency=1, **words)
    assert values(stage, 1) == [None]
    time.sleep(0.06)
    assert values(stage, 2) == [1, 1]


class Lists:
    """Answers lists of keys; ``told`` says which keys have no room, how often and how long."""

    def __init__(self, told: dict[int, tuple[int, float]]) -> None:
        self.told = told
        self.calls: list[list[int]] = []
        self.times: list[float] = []

    async def __call__(self, keys: list[int]) -> list[Any]:
        self.calls.append(keys)
        self.times.append(time.monotonic())
        results: list[Any] = []
        for k in keys:
            times, seconds = self.told.get(k, (0, 0.0))
            self.told[k] = times - 1, seconds
            results.append(rs.RetryAfter(seconds) if times > 0 else k)
        return results


def test_keys_of_a_list_are_called_again_without_the_others() -> None:
    fn, metrics = Lists({3: (1, 0.001), 7: (3, 0.001)}), rs.Metrics()
    words: Any = {"batch": 5, "on_failure": rs.Failures("column", at_most=0), "metrics": metrics}
    with metrics:
        found = values(stages.made(rs.lookup, fn, pa.int64(), **words), 10)
        total = metrics.totals()
    assert [(row["value"], row["error"]) for row in found] == [(k, None) for k in range(10)]
    assert [row["attempts"] for row in found] == [1, 1, 1, 2, 1, 1, 1, 4, 1, 1]
    assert sum(map(len, fn.calls)) == 10 + 4
    assert (total.calls, total.throttled, total.failures) == (len(fn.calls), 4, 0)
    assert found[7]["seconds"] > 0.03  # waits are part of it


@pytest.mark.parametrize("words", ["a limit", "auto"])
def test_a_key_of_a_list_holds_all_calls_back(words: str, name: str) -> None:
    fn = Lists({0: (1, 0.2)})
    limited = {"limit": rs.Limit(name, concurrency=1)}
    more: dict[str, Any] = {"concurrency": "auto"} if words == "auto" else limited
    assert values(
        stages.made(rs.lookup, fn, pa.int64(), batch=rs.Batching(1, linger=0), **more), 200
    ) == list(range(200))
    assert fn.calls[0] == [0]
    within = sum(at < fn.times[0] + 0.198 for at in fn.times)  # a timer may be early by a tick
    # Those that ran beside it; without the hold all 200 would have.
    assert within <= (100 if words == "auto" else 1)


def test_the_patience_of_a_key_ends_with_the_others_answered() -> None:
    fn = Lists({1: (10**9, 0.02), 3: (10**9, 0.02)})
    words: Any = {"batch": 4, "retry": rs.Retry(9, backoff=0), "patience": 0.05}
    found = values(stages.made(rs.lookup, fn, pa.int64(), on_failure="column", **words), 4)
    assert [row["value"] for row in found] == [0, None, 2, None]
    assert [row["attempts"] for row in found] == [1, 4, 1, 4]
    assert found[1]["error"]["type"] == "RetryAfter"
    with pytest.raises(rs.RetryAfter) as raised:
        values(stages.made(rs.lookup, fn, pa.int64(), **words), 4)
    assert sum("all of its patience" in note for note in raised.value.__notes__) == 1


@pytest.mark.parametrize("on_failure", ["null", "column"])
def test_a_deadline_bounds_the_waits_of_a_key(on_failure: str) -> None:
    fn, metrics = Lists({1: (10**9, 100.0), 2: (10**9, 0.001)}), rs.Metrics()
    words: Any = {"batch": 4, "deadline": 0.2, "on_failure": on_failure, "metrics": metrics}
    with metrics:
        found = values(stages.made(rs.lookup, fn, pa.int64(), **words), 4)
        total = metrics.totals()
    if on_failure == "column":
        errors = [row["error"] and row["error"]["type"] for row in found]
        assert errors == [None, "TimeoutError", "TimeoutError", None]
        found = [row["value"] for row in found]
    assert found == [0, None, None, 3]
    assert (total.timeouts, total.failures) == (2, 2)


def test_a_date_is_the_time_until_then() -> None:
    in_a_minute = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    assert 50 < rs.RetryAfter(email.utils.format_datetime(in_a_minute, True)).seconds <= 60


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (2, 2.0),
        (0.25, 0.25),
        ("2", 2.0),
        (" 120 ", 120.0),
        (b"3", 3.0),
        (decimal.Decimal("1.5"), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7.0),
        (dt.timedelta(milliseconds=20), 0.02),
        (-1, 0.0),
        ("-1", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (None, 0.0),
    ],
    ids=str,
)
def test_seconds_are_taken_for_what_they_mean(given: Any, seconds: float) -> None:
    error = rs.RetryAfter(given, "too many")
    assert error.seconds == seconds
    assert str(error) == f"the service asks for no call for {seconds:g} s: too many"
    again = pickle.loads(pickle.dumps(error))
    assert (again.seconds, str(again)) == (seconds, str(error))


@pytest.mark.parametrize(
    "given",
    [
        *(math.nan, math.inf, "nan", "soon", "", 10**400, decimal.Decimal("sNaN")),
        "Mon, 01 Jan 2024 00:00:00 +9999999999999999",
        "Mon, 01 Jan 2024 9999999999:00:00 GMT",
        *(np.array([1.0, 2.0]), True, np.bool_(True), [2], dt.datetime.now(dt.UTC)),
    ],
    ids=str,
)
def test_seconds_that_mean_nothing_are_refused_by_name(given: Any) -> None:
    of_another_type = isinstance(given, bool | np.bool_ | list | dt.datetime)
    error = TypeError if of_another_type else ValueError
    with pytest.raises(error, match=r"RetryAfter\(seconds\) must be"):
        rs.RetryAfter(given)


def test_a_moment_that_is_taken_for_a_delay_is_pointed_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def asks_for_years(k: int) -> int:
        if not waited:
            waited.append(k)
            raise rs.RetryAfter(1.9e9)
        return k

    async def refuses(k: int) -> int:
        raise rs.RetryAfter(0.5)

    for _ in range(2):  # the second one says it no more
        waited: list[int] = []
        assert values(rs.lookup(rs.Policy(patience=0.02)(asks_for_years), pa.int64()), 1) == [0]
    with pytest.raises(rs.RetryAfter):  # one that may not wait is not said to wait
        values(rs.lookup(rs.Policy(patience=0)(refuses), pa.int64()), 1)
    (record,) = caplog.records
    assert "asks_for_years: RetryAfter(1.9e+09) asks for more than the patience" in record.message


@scopes
def test_a_wait_of_an_epoch_ends_within_patience_and_the_next_job_runs(
    scope: str, name: str
) -> None:
    answers: list[Any] = [rs.RetryAfter(1.9e9)] * 2 + [1] * 20

    async def look(k: int) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    limit = rs.Limit(name, concurrency=1, scope=scope)
    stage = rs.lookup(rs.Policy(patience=0.2, limit=limit)(look), pa.int64())
    begun = time.monotonic()
    with pytest.raises(rs.RetryAfter):
        values(stage, 1)
    assert values(stage, 20) == [1] * 20
    assert time.monotonic() - begun < DEADLINE


@scopes
@pytest.mark.parametrize("rate", [None, 2000.0])
def test_stages_that_are_told_to_wait_keep_within_their_limit(
    scope: str, rate: float | None, name: str
) -> None:
    """Their permits go to others while they wait, and none is lost or had twice."""
    limit = rs.Limit(name, concurrency=4, rate=rate, burst=4, scope=scope)
    service, random = stages.Service(), Random(7)

    async def look(k: int) -> int:
        with service.entered(k):
            if random.random() < 0.5:  # some in their first step, others later
                await asyncio.sleep(random.random() / 1000)
            if random.random() < 0.1:
                raise rs.RetryAfter(random.random() / 1000)
        return k

    def work(concurrency: int) -> list[int]:
        return values(
            rs.lookup(rs.Policy(limit=limit)(look), pa.int64(), concurrency=concurrency), 200
        )

    assert run_threads([partial(work, calls) for calls in (2, 4, 16)]) == [list(range(200))] * 3
    assert service.most <= 4
