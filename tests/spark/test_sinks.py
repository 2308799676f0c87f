"""``write`` and ``writer``: functions, subscribers and HTTP services as sinks, in Spark."""

from __future__ import annotations

import asyncio
import datetime as dt
import email.utils
import json
import os
import random
import secrets
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

import rstreams_fast.spark as rs
from rstreams_fast.spark.sinks.dead_letters import DeadLetterFile
from rstreams_fast.spark.sinks.functions import FunctionSink
from rstreams_fast.spark.sinks.sink import Frame, SinkOptions
from tests.helpers import run_threads
from tests.spark import sink_kills
from tests.spark.http_service import HttpService

pytestmark = pytest.mark.spark


def noted(place: Path) -> list[Any]:
    """What the functions below have noted, as JSON lines."""
    return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []


def note(place: Path, *lines: Any) -> None:
    """Note that a worker was given ``lines``; one ``write`` appends them."""
    with place.open("ab", buffering=0) as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def frame(spark: Any, rows: int = 1000, partitions: int = 2) -> Any:
    numbers = spark.range(0, rows, 1, partitions)
    return numbers.selectExpr("id n", "concat('x', id) text", "if(id % 10 = 3, null, id) part")


def sink_of(place: Path, *, is_async: bool, gets_batches: bool, fails: int = 0) -> Any:
    """Return a function that notes the numbers of its rows; every ``fails``-th fails."""
    inside = Counter[str]()

    def told(rows: list[Any]) -> list[Any] | None:
        assert rows[0].keys() == {"n", "text", "part"}
        assert all(row["text"] == f"x{row['n']}" for row in rows)
        assert all(row["part"] == (None if row["n"] % 10 == 3 else row["n"]) for row in rows)
        note(place, [[row["n"], rs.call_id(row)] for row in rows])
        if not fails:
            return None
        return [OSError("refused") if row["n"] % fails == 1 else "good" for row in rows]

    async def of_rows(rows: list[Any]) -> Any:
        inside["calls"] += 1
        assert inside["calls"] <= 4
        await asyncio.sleep(0.001)
        inside["calls"] -= 1
        return told(rows)

    async def of_batch(batch: pa.RecordBatch) -> Any:
        return await of_rows(batch.to_pylist())

    def plain_of_rows(rows: list[Any]) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return told(rows)

    def plain_of_batch(batch: pa.RecordBatch) -> Any:
        return plain_of_rows(batch.to_pylist())

    if is_async:
        return of_batch if gets_batches else of_rows
    return plain_of_batch if gets_batches else plain_of_rows


@pytest.mark.parametrize("gets_batches", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_gets_each_row_and_a_failed_one_again_without_its_call(
    spark: Any, tmp_path: Path, is_async: bool, gets_batches: bool
) -> None:
    place, letters = tmp_path / "sent", tmp_path / "dead"
    fn = sink_of(place, is_async=is_async, gets_batches=gets_batches, fails=100)
    retry = rs.Policy(retry=rs.Retry(2, backoff=0.001))
    words: Any = {"concurrency": 4, "batch": rs.Batching(30, linger=0.02)}
    report = rs.write(frame(spark), retry(fn), on_failure=rs.dead_letters(letters), **words)
    sent = [row for rows in noted(place) for row in rows]
    assert Counter(n for n, _ in sent) == {n: 3 if n % 100 == 1 else 1 for n in range(1000)}
    assert len({name for _, name in sent}) == 1000
    assert max(map(len, noted(place))) == 30
    told = (report.rows, report.retried, report.dead, report.calls)
    assert told == (990, 20, 10, len(noted(place)))
    assert report.bytes > 1000 * 20
    assert not report.repeated
    dead = spark.read.parquet(str(letters)).orderBy("n").collect()
    assert [(row.n, row.text) for row in dead] == [(n, f"x{n}") for n in range(1, 1000, 100)]
    for row in dead:
        assert row.outcome.error.asDict() == {"type": "OSError", "message": "refused"}
        assert row.outcome.attempts == 3


def test_rows_that_are_sent_again_are_counted_until_the_budget_is_spent(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "sent"
    fn = sink_of(place, is_async=True, gets_batches=False, fails=2)
    budget = rs.Budget("rows sent again", calls=9)
    policy = rs.Policy(retry=rs.Retry(2, backoff=0.001), budget=budget)
    letters = rs.dead_letters(tmp_path / "dead")
    words: Any = {"batch": rs.Batching(4), "concurrency": 1, "on_failure": letters}
    report = rs.write(frame(spark, 40).coalesce(1), policy(fn), **words)
    sent = Counter(n for rows in noted(place) for n, _ in rows)
    assert len(sent) < 40
    assert report.retried == sent.total() - len(sent)


def test_without_dead_letters_the_job_fails_with_the_row(spark: Any, tmp_path: Path) -> None:
    fn = sink_of(tmp_path / "sent", is_async=True, gets_batches=False, fails=100)
    with pytest.raises(Exception, match=r"(?s)OSError: refused.* for the key n=\d*1, text='x"):
        rs.write(frame(spark), fn)
    letters = rs.dead_letters(tmp_path / "dead", at_most=2)
    with pytest.raises(Exception, match=r"3 of \d+ calls failed, and Failures\(at_most\) is 2"):
        rs.write(frame(spark), fn, on_failure=letters, job="again")
    assert not list((tmp_path / "dead").iterdir())
    healed = sink_of(tmp_path / "sent", is_async=True, gets_batches=False)
    letters = rs.dead_letters(tmp_path / "dead")
    for fails in (fn, healed):
        report = rs.write(frame(spark, 300), fails, on_failure=letters, job="again")
        assert report.dead == len(list((tmp_path / "dead").iterdir())) or report.dead == 3


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (
            lambda rows: [1],
            "must return nothing, or a list of as many results; it returned list of 1",
        ),
        (lambda rows: (row for row in rows), "it returned generator"),
        (lambda rows: [OSError for _ in rows], r"returned the class OSError .* OSError\(\.\.\.\)"),
    ],
)
def test_results_that_say_nothing_of_rows_are_refused(
    spark: Any, returns: Any, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        rs.write(frame(spark, 10, 1), returns)


async def _other(fn: Any, rows: list[Any]) -> Any:
    return await fn(rows)


def test_the_same_rows_have_the_same_ids_until_job_batch_key_or_sink_are_others(
    spark: Any, tmp_path: Path
) -> None:
    def ids(run: Callable[[Any], object]) -> dict[int, str]:
        place = tmp_path / f"sent-{len(list(tmp_path.iterdir()))}"
        run(sink_of(place, is_async=True, gets_batches=False))
        return {n: name for rows in noted(place) for n, name in rows}

    rows, other = frame(spark, 20), frame(spark, 20, 3)
    named = ids(lambda fn: rs.write(rows, fn, job="a"))
    assert ids(lambda fn: rs.write(other, fn, job="a", batch=3)) == named
    by_key = ids(lambda fn: rs.write(rows, fn, job="a", key="n"))
    unnamed = ids(lambda fn: rs.write(rows, fn))
    in_batch = ids(lambda fn: rs.writer(fn, job="a")(rows, 7))
    assert ids(lambda fn: rs.writer(fn, job="a")(other, 7)) == in_batch
    next_batch = ids(lambda fn: rs.writer(fn, job="a")(rows, 8))
    other_fn = ids(lambda fn: rs.write(rows, partial(_other, fn), job="a"))
    every = [named, by_key, unnamed, in_batch, next_batch, other_fn]
    assert len({each[0] for each in every}) == 6
    assert all(len(set(each.values())) == 20 for each in every)
    changed = rows.selectExpr("n", "text", "part").where("n >= 5")
    again = ids(lambda fn: rs.write(changed, fn, job="a", key="n"))
    assert again == {n: by_key[n] for n in range(5, 20)}


def test_only_a_write_with_a_name_is_repeated_under_the_same_ids(spark: Any) -> None:
    rows = frame(spark, 20)
    with HttpService() as service:
        sink = rs.sinks.http(service.url, id_field="id")
        for number in (1, 2):
            rs.write(rows, sink)
            assert list(service.seen()["ids"].values()) == [1] * 20 * number
        for number in (1, 2):
            rs.write(rows, sink, job="a")
            assert list(service.seen()["ids"].values()) == [1] * 40 + [number] * 20


def test_the_attempts_of_a_write_without_a_name_give_a_row_one_id(
    spark: Any, tmp_path: Path
) -> None:
    place, rows = tmp_path / "sent", frame(spark, 20, 1)
    fn = sink_of(place, is_async=True, gets_batches=False)
    drain = FunctionSink(fn, SinkOptions()).drain(Frame(rows.schema, "", uuid.uuid4().hex))
    task = cloudpickle.dumps(drain)
    for _ in range(2):  # Spark gives each attempt of a task the same pickle
        batch = pa.RecordBatch.from_pylist([row.asDict() for row in rows.collect()])
        list(cloudpickle.loads(task)(iter([batch])))
    first, second = noted(place)
    assert len(first) == 20
    assert first == second


def test_a_journal_sends_no_row_again_but_those_of_another_batch(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "sent"
    fn = sink_of(place, is_async=True, gets_batches=False, fails=10)
    kept = rs.Policy(journal=rs.Journal(tmp_path / "journal", version="1"))(fn)
    words: Any = {"job": "a", "on_failure": rs.dead_letters(tmp_path / "dead")}
    writer = rs.writer(kept, **words)
    for batch, again in ((1, 100), (1, 10), (2, 100)):
        before = sum(map(len, noted(place)))
        writer(frame(spark, 100), batch)
        assert writer.report is not None
        assert (writer.report.rows, writer.report.dead) == (90, 10)
        assert sum(map(len, noted(place))) - before == again
    # The answers of the batch before are removed.
    assert len(list((tmp_path / "journal").iterdir())) == 1


def test_attempts_with_one_process_id_write_whole_dead_letters(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"n": range(1000)})

    def attempt() -> None:
        with DeadLetterFile(rs.dead_letters(tmp_path), "dead") as letters:
            letters.put(rows)

    for _ in range(20):
        run_threads([attempt] * 4)
        assert pq.read_table(tmp_path / "dead.parquet").num_rows == 1000
    assert len(list(tmp_path.iterdir())) == 1


def test_sinks_of_a_batch_share_a_journal_and_dead_letters(spark: Any, tmp_path: Path) -> None:
    rows = frame(spark, 20, 1)
    letters = rs.dead_letters(tmp_path / "dead")
    kept = rs.Policy(journal=rs.Journal(tmp_path / "journal", version="1"))
    fails = sink_of(tmp_path / "sent", is_async=True, gets_batches=False, fails=10)
    with HttpService() as service:
        there = (rs.sinks.http(f"{service.url}?to={name}", id_field="id") for name in "ab")
        for sink in (fails, takes, *map(kept, there)):
            rs.writer(sink, job="a", on_failure=letters)(rows, 1)
        # A row has an id for each sink, or a service would take the second for the first again.
        assert list(service.seen()["ids"].values()) == [1] * 40
    assert pq.read_table(tmp_path / "dead").num_rows == 2


def test_a_batch_that_is_repeated_in_fewer_partitions_replaces_all_dead_letters(
    spark: Any, tmp_path: Path
) -> None:
    fails = sink_of(tmp_path / "sent", is_async=True, gets_batches=False, fails=10)
    writer = rs.writer(fails, job="a", on_failure=rs.dead_letters(tmp_path / "dead"))
    writer(frame(spark, 100, 2), 11)
    for partitions in (5, 2):
        writer(frame(spark, 100, partitions), 1)
        assert pq.read_table(tmp_path / "dead").num_rows == 20


def test_a_write_does_not_replace_the_dead_letters_that_it_reads(
    spark: Any, tmp_path: Path
) -> None:
    place, dead = tmp_path / "sent", tmp_path / "dead %20 letters"
    fails = sink_of(place, is_async=True, gets_batches=False, fails=10)
    words: Any = {"job": "a", "key": "n", "on_failure": rs.dead_letters(dead)}
    assert rs.write(frame(spark, 100), fails, **words).dead == 10
    rows = spark.read.parquet(str(dead)).drop("outcome")
    with pytest.raises(ValueError, match="which this write replaces: give another"):
        rs.write(rows, fails, **words)
    moved = rs.dead_letters(tmp_path / "other")
    for other in ({"on_failure": moved}, {"job": "b"}):
        assert rs.write(rows, fails, **words | other).dead == 10
    assert pq.read_table(dead).num_rows == 20


class Collects:
    """A subscriber that requests one batch after the other, and notes them."""

    def __init__(self, place: Path, mode: str = "") -> None:
        self._place, self._mode = place, mode

    def on_subscribe(self, subscription: Any) -> None:
        self._subscription = subscription
        subscription.request(1)

    def on_next(self, batch: pa.RecordBatch) -> None:
        if self._mode == "raises":
            raise OSError("no room")
        note(self._place, [batch.num_rows, *batch["n"].to_pylist()])
        if self._mode == "cancels":
            self._subscription.cancel()
        else:
            self._subscription.request(1)

    def on_error(self, error: BaseException) -> None:
        note(self._place, "error")

    def on_complete(self) -> None:
        note(self._place, "complete")


def test_a_subscriber_gets_batches_under_its_own_demand(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "sent"
    report = rs.write(frame(spark, 3000), partial(Collects, place))
    batches = [line for line in noted(place) if line != "complete"]
    assert sorted(n for batch in batches for n in batch[1:]) == list(range(3000))
    assert noted(place).count("complete") == 2
    assert (report.rows, report.calls) == (3000, len(batches))
    for mode, message in (("raises", "no room"), ("cancels", "Collects cancelled its subscr")):
        with pytest.raises(Exception, match=message):
            rs.write(frame(spark, 3000), partial(Collects, place, mode))


def test_a_batch_of_a_stream_has_the_ids_of_its_query(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "sent"
    frame(spark, 100).write.parquet(str(tmp_path / "source"))
    stream = spark.readStream.schema("n long, text string, part long")
    writer = rs.writer(sink_of(place, is_async=True, gets_batches=False))
    for _ in range(2):  # the second run repeats the batch, of which the checkpoint knows no end
        query = stream.parquet(str(tmp_path / "source")).writeStream.foreachBatch(writer)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        assert writer.report is not None
        assert writer.report.rows == 100
        for commit in (tmp_path / "checkpoint" / "commits").iterdir():
            commit.unlink()
    sent = [tuple(row) for rows in noted(place) for row in rows]
    assert len(sent) == 200
    assert len(set(sent)) == 100


def failing(answer: Any, rows: int) -> list[Any]:
    assert len(answer) == rows
    return [None if status == 200 else rs.sinks.HttpError(status) for status in answer]


@pytest.mark.parametrize("body", ["json", "ndjson", "elasticsearch-bulk"])
def test_a_service_has_each_row_once_whatever_it_answers(
    spark: Any, tmp_path: Path, body: Any
) -> None:
    with HttpService(fails=0.02, hopeless=100, secret="open", lame=2, busy=3) as service:
        asked = tmp_path / "asked"

        def headers() -> dict[str, str]:
            note(asked, os.getpid())  # the first secret of each worker is refused
            return {"Authorization": "open" if noted(asked).count(os.getpid()) > 1 else "shut"}

        partly = None if body == "elasticsearch-bulk" else failing
        words: Any = {"id_field": "id", "headers": headers, "partial": partly}
        sink = rs.sinks.http(service.url, batch=rs.Batching(25, linger=0.05), body=body, **words)
        patient = rs.Policy(timeout=20.0, retry=rs.Retry(3, backoff=0.001))(sink)
        letters = rs.dead_letters(tmp_path / "dead")
        report = rs.write(frame(spark, 2000), patient, on_failure=letters, concurrency=2)
        seen = service.seen()
    assert (report.rows, report.dead) == (1980, 20)
    assert report.retried >= 38
    assert list(seen["ids"].values()) == [1] * 1980
    assert max(map(int, seen["sizes"])) == 25
    assert seen["failed"] == 38
    assert seen["statuses"]["500"] == 2
    assert seen["statuses"]["429"] == 3
    assert seen["connections"] <= 2 * 2
    assert seen["statuses"].keys() == {"200", "401", "429", "500"}
    dead = spark.read.parquet(str(tmp_path / "dead"))
    assert {tuple(row) for row in dead.select("outcome.error.*").distinct().collect()} == {
        ("HttpError", "HTTP status 422" + ": null" * (body == "elasticsearch-bulk"))
    }


def test_only_statuses_that_may_change_are_asked_again(spark: Any, tmp_path: Path) -> None:
    """Each row says what the service answers at first; after that the service accepts the row."""
    hopeless = (301, 307, 400, 401, 403, 404, 405, 410, 413, 415, 422)
    passing = (408, 409, 423, 425, 429, 500, 502, 503, 504)
    with HttpService() as service:
        moment = email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=3))
        waits = {429: moment, 503: "1", 400: "9"}
        rows = [
            (status, waits.get(status), service.url if status < 400 or status == 413 else None)
            for status in (*hopeless, *passing)
        ]
        frame = spark.createDataFrame(rows, "status int, retry_after string, location string")
        policy = rs.Policy(retry=rs.Retry(2, backoff=0.001))
        letters = rs.dead_letters(tmp_path / "dead")
        sink = rs.sinks.http(service.url, id_field="id")
        report = rs.write(frame, policy(sink), on_failure=letters, concurrency=32)
        seen = service.seen()
        assert (report.rows, report.dead) == (len(passing), len(hopeless))
        assert seen["statuses"] == {**dict.fromkeys(map(str, hopeless + passing), 1), "200": 9}
        assert report.seconds > 0.9
        dead = spark.read.parquet(str(tmp_path / "dead")).select("status", "outcome.*").collect()
        assert {(row.status, row.attempts) for row in dead} == {(each, 1) for each in hopeless}
        said = {row.status: row.error.message for row in dead}
        assert said[301] == f"HTTP status 301: a redirect to {service.url}"
        assert said[413] == 'HTTP status 413: "as the row says"'
        many = frame.where("status = 413").crossJoin(spark.range(10)).coalesce(1)
        lists = policy(rs.sinks.http(service.url, batch=10))
        report = rs.write(many, lists, on_failure=rs.dead_letters(tmp_path / "lists"))
        assert (report.rows, report.dead, report.calls) == (0, 10, 1)
        asked = policy.__class__(retry=rs.Retry(1, on=rs.sinks.HttpError, backoff=0.001))
        assert rs.write(frame.where("status = 404"), asked(sink), job="on").calls == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"partial": lambda answer, rows: answer[1:]}, "partial must give a list .* gave list of "),
        ({"partial": lambda answer, rows: None}, "partial must give a list .* gave NoneType"),
        ({"body": "elasticsearch-bulk", "method": "GET"}, "the answer .* is none of Elasticsear"),
        (
            {"headers": lambda: {"Authorization": b"sesame"}},
            "Authorization must be a str, got bytes",
        ),
        ({"headers": lambda: "sesame"}, "headers must be a mapping, got str"),
    ],
)
def test_an_answer_or_a_header_that_does_not_fit_is_named(
    spark: Any, words: dict[str, Any], message: str
) -> None:
    with HttpService() as service, pytest.raises(Exception, match=message) as failed:
        rs.write(frame(spark, 9, 1), rs.sinks.http(service.url, batch=9, **words))
    assert "sesame" not in str(failed.value)


def test_the_only_column_may_be_a_struct(spark: Any, tmp_path: Path) -> None:
    async def send(rows: list[Any]) -> None:
        note(tmp_path / "sent", [rs.call_id(), rs.call_id(rows[0])])

    rs.write(frame(spark, 2).selectExpr("struct(n, text) both"), send, batch=1)
    assert [len(set(ids)) for ids in noted(tmp_path / "sent")] == [1, 1]


def test_a_row_by_itself_has_its_id_in_a_header(spark: Any) -> None:
    with HttpService() as service:
        rows = frame(spark, 20).selectExpr("n", "if(n = 7, double('nan'), n) value")
        keys = "map(now(), array(map(date'2024-01-01', 1, date'2024-01-02', n))) m"
        good = rows.where("n != 7").selectExpr("n", "cast(n as decimal(9, 2)) d", "now() t", keys)
        assert rs.write(good, rs.sinks.http(service.url, id_field="id")).calls == 19
        seen = service.seen()
        assert seen["keys"] == seen["ids"]
        with pytest.raises(Exception, match="Out of range float values are not JSON compliant"):
            rs.write(rows, rs.sinks.http(service.url))


def test_a_row_without_a_form_in_json_fails_in_its_first_attempt(
    spark: Any, tmp_path: Path
) -> None:
    rows = frame(spark, 20, 1).selectExpr("n", "if(n = 7, double('nan'), n) value")
    with HttpService() as service:
        sink = rs.Policy(retry=rs.Retry(2, backoff=0.001))(rs.sinks.http(service.url, batch=20))
        report = rs.write(rows, sink, on_failure=rs.dead_letters(tmp_path / "dead"))
    assert (report.rows, report.dead, report.retried) == (19, 1, 0)
    dead = spark.read.parquet(str(tmp_path / "dead")).first()
    assert dead.n == 7
    assert dead.outcome.attempts == 1
    assert "Out of range float values are not JSON compliant" in dead.outcome.error.message


@pytest.mark.slow
def test_kills_of_workers_lose_no_row_and_give_none_two_ids() -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}", sink_kills.run(3000, 300, 3, random.Random(seed)))


async def takes(rows: list[Any]) -> None: ...


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"on_failure": "null"}, TypeError, r"on_failure must be 'raise' or dead_letters\(path\)"),
        ({"key": "m"}, ValueError, "key: the frame has no column m; it has n, text, part"),
        ({"key": 3}, TypeError, "key must be a column's name or several names"),
        ({"concurrency": 0}, ValueError, "concurrency must be >= 1"),
        ({"batch": 0}, ValueError, "batch must be >= 1"),
        ({"job": ""}, TypeError, "job must be a name"),
        ({"metrics": 3}, TypeError, "metrics must be a Metrics"),
        ({"bounds": 3}, TypeError, "bounds must be a Bounds"),
        ({"bounds": rs.Bounds(rows=3)}, ValueError, r"Bounds\(rows=3\) is less than"),
        ({"using": 3}, TypeError, "using must be a factory"),
        ({"sink": 3}, TypeError, "sink must be a function, a class of subscrib"),
        ({"sink": Collects, "batch": 3}, ValueError, "batch does not suit the subscriber Collects"),
        ({"sink": rs.Policy(cache=rs.Cache())(takes)}, ValueError, "a sink takes no cache"),
        ({"sink": rs.sinks.http("http://a"), "using": dict}, ValueError, "using does not suit"),
    ],
    ids=str,
)
def test_words_that_say_nothing_are_refused(
    spark: Any, words: dict[str, Any], error: type[Exception], message: str
) -> None:
    sink = words.pop("sink", takes)
    with pytest.raises(error, match=message):
        rs.write(frame(spark), sink, **words)


def test_frames_that_cannot_be_written_are_refused(spark: Any, tmp_path: Path) -> None:
    rows, letters = frame(spark), rs.dead_letters(tmp_path)
    for wrong, message in (
        (rows.select("n", "n"), "the frame has two columns 'n'"),
        (rows.select(), "the frame has no columns"),
        (rows.withColumn("outcome", rows.n), "a column 'outcome', which dead letters add"),
        (spark.readStream.format("rate").load(), "write takes no stream"),
    ):
        with pytest.raises(ValueError, match=message):
            rs.write(wrong, takes, on_failure=letters)
    with pytest.raises(ValueError, match="a journal needs job="):
        rs.write(rows, rs.Policy(journal=rs.Journal(tmp_path / "j", version="1"))(takes))
    with pytest.raises(ValueError, match="id_field: the frame has a column 'text'"):
        rs.write(rows, rs.sinks.http("http://a", id_field="text"))
    for path, words, error in (("here", {}, ValueError), (3, {}, TypeError)):
        with pytest.raises(error, match=r"dead_letters\(path\)"):
            rs.dead_letters(path, **words)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="url holds a key or a password"):
        rs.sinks.http("https://me:secret@example.org")
    with pytest.raises(ValueError, match="url must begin with http:// or https://"):
        rs.sinks.http("a.org/x")
    with pytest.raises(Exception, match="dead_letters: '/dev/null/a' cannot be used"):
        rs.write(rows, takes, on_failure=rs.dead_letters("/dev/null/a"))
