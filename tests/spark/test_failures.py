"""``on_failure="column"``, ``split_failures`` and ``max_failures``."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import D, as_async, batches, in_or_out_of_order, made, outputs
from tests.spark.stages import values as outcomes

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

ON_FAILURE: Any = {"on_failure": "column"}


def rows(stage: Any, *keys: list[Any]) -> list[dict[str, Any]]:
    return outputs(stage, batches(*keys)).to_pylist()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


def half_sync(k: int) -> int:
    if k % 2:
        raise ValueError(f"odd: {k} \udc80")
    return k // 2


async def half(k: int) -> int:
    if k == 9:
        raise Unspeakable
    return half_sync(k)


async def halves(keys: list[int]) -> list[Any]:
    if 2 in keys:
        raise OSError("down")
    return [ValueError("odd") if k % 2 else k // 2 for k in keys]


@in_or_out_of_order
@pytest.mark.parametrize("fn", [half, half_sync])
def test_a_column_tells_why_there_is_no_value(fn: Any, ordered: bool) -> None:
    words: Any = {"retry": rs.Retry(2, backoff=0), "ordered": ordered, **ON_FAILURE}
    stage = made(rs.enrich, fn, on="k", output=D, **words)
    found = {row["k"]: row for row in rows(stage, [4, 7, None], [None], [])}
    assert found[None] == {"k": None, "d": None, "outcome": None}
    good, bad = found[4], found[7]
    assert (good["d"], bad["d"]) == (2, None)
    assert good["outcome"].pop("seconds") >= 0
    assert good["outcome"] == {"error": None, "attempts": 1}
    assert bad["outcome"]["error"] == {"type": "ValueError", "message": "odd: 7 ?"}
    assert bad["outcome"]["attempts"] == 3


def test_a_struct_holds_value_and_error_of_a_column() -> None:
    found = outcomes(made(rs.lookup, half, pa.int64(), **ON_FAILURE), [4, 7, None, 9])
    assert found[2] is None
    assert [value and value["value"] for value in found] == [2, None, None, None]
    assert found[1]["error"]["type"] == "ValueError"
    nothing = {"type": "Unspeakable", "message": "<Unspeakable without a message>"}
    assert found[3]["error"] == nothing


def test_rows_of_a_list_have_their_own_outcome() -> None:
    stage = made(rs.lookup, rs.Policy(cache=rs.Cache())(halves), pa.int64(), batch=2, **ON_FAILURE)
    for attempts, errors in (
        (1, [None, "ValueError", "OSError", "OSError"]),
        (0, [None, "OSError", "OSError", None]),  # what is in the cache is in no list
    ):
        found = outcomes(stage, [4, 7], [2, 6])
        assert [value["error"] and value["error"]["type"] for value in found] == errors
        assert [value["value"] for value in found] == [
            None if error else k // 2 for k, error in zip([4, 7, 2, 6], errors, strict=True)
        ]
        assert found[0]["attempts"] == attempts
    wrong = made(rs.lookup, lambda _: 3, pa.int64(), batch=2, **ON_FAILURE)
    assert [it["error"]["type"] for it in outcomes(wrong, [1, 2])] == ["TypeError"] * 2


async def numbered(k: int) -> Any:
    return "N/A" if k == 7 else k


@pytest.mark.parametrize("words", [{}, {"batch": 2}, {"cache": rs.Cache()}])
def test_an_answer_that_is_not_as_declared_is_a_failure_of_its_row(words: Any) -> None:
    async def of_keys(keys: list[int]) -> list[Any]:
        return [await numbered(k) for k in keys]

    fn = of_keys if "batch" in words else numbered
    found = outcomes(made(rs.lookup, fn, pa.int64(), **ON_FAILURE, **words), [4, 7, 2])
    (error,) = (value["error"] for value in found if value["error"])
    assert error["type"] == "TypeError"
    assert "the key 7: str 'N/A' cannot become" in error["message"]


@in_or_out_of_order
def test_a_row_that_is_not_as_declared_is_a_failure(ordered: bool) -> None:
    output = pa.schema([("d", pa.int64()), ("e", pa.int64())])

    async def row_of(k: int) -> dict[str, Any]:
        return {"e": k} if k == 7 else {"d": k, "e": 0}

    enrich = made(rs.enrich, row_of, on="k", output=output, ordered=ordered, **ON_FAILURE)
    found = {row["k"]: row for row in rows(enrich, [4, 7, None])}
    assert found[4]["d"] == 4
    assert found[7]["d"] is found[None]["d"] is found[None]["outcome"] is None
    assert "missing: d" in found[7]["outcome"]["error"]["message"]


def test_answers_that_are_not_as_declared_count_among_the_failures() -> None:
    lookup = made(rs.lookup, numbered, pa.int64(), **ON_FAILURE)
    assert len(outcomes(lookup, [4, 7, 2])) == 3
    most = rs.lookup(numbered, pa.int64(), on_failure=rs.Failures("column", at_most=1))
    with pytest.raises(RuntimeError, match=r"2 of 3 calls failed, and Failures\(at_most\) is 1"):
        outcomes(most, [4, 7, 7])


@pytest.mark.parametrize(("fits", "told"), [(0, 1), (1, 0)])
def test_it_is_told_if_no_answer_is_as_declared(
    fits: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def unfit(k: int) -> Any:
        return k if k < fits else "N/A"

    unfit.__qualname__ = unfit.__name__ = f"unfit_{fits}"
    found = outcomes(made(rs.lookup, unfit, pa.int64(), **ON_FAILURE), range(200))
    assert sum(value["error"] is None for value in found) == fits
    texts = [record.getMessage() for record in caplog.records]
    assert ["the first 100 calls have all failed with TypeError" in it for it in texts] == (
        [True] * told
    )


async def forgets(_: int) -> Any:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("on_failure", ["raise", "null"])
@pytest.mark.parametrize(
    ("fn", "kind", "words"),
    [
        (numbered, pa.int64(), "for the key 7: str 'N/A' .*declared int64|declared int64"),
        (half, pa.string(), r"int 3 cannot become \(int is no string\)"),
        (forgets, pa.int64(), "the function has to await it"),
    ],
)
def test_an_answer_that_is_not_as_declared_is_not_made_null(
    fn: Any, kind: pa.DataType, words: str, on_failure: str
) -> None:
    with pytest.raises(TypeError, match=words) as raised:
        outcomes(rs.lookup(fn, kind, on_failure=on_failure), [6, 7] if fn is numbered else [6])
    assert raised.value.__notes__ == [f"rstreams_fast: returned by {fn.__name__}"]


# -- map_batches -----------------------------------------------------------------------------------
def doubled(batch: pa.RecordBatch) -> Any:
    if 7 in batch["k"].to_pylist():
        raise ValueError("no seven")
    return [{"d": 2 * k} for k in batch["k"].to_pylist()]


DOUBLED = pa.schema([pa.field("d", pa.int64(), nullable=False)])


def test_rows_that_are_not_as_declared_are_a_failure_of_their_batch() -> None:
    def undeclared(batch: pa.RecordBatch) -> Any:
        return [{"q": 1}] if 7 in batch["k"].to_pylist() else doubled(batch)

    found = rows(made(rs.map_batches, undeclared, DOUBLED, **ON_FAILURE), [1], [7])
    assert [row["d"] for row in found] == [2, None]
    assert "unknown: q" in found[1]["outcome"]["error"]["message"]
    assert found[1]["outcome"]["input"] == {"k": 7}


@pytest.mark.parametrize("fn", [doubled, as_async(doubled)])
def test_the_rows_of_a_batch_whose_call_failed_stand_beside_the_error(fn: Any) -> None:
    words: Any = {"retry": rs.Retry(1, backoff=0), "on_failure": rs.Failures("column", at_most=1)}
    with rs.Metrics() as metrics:
        stage = made(rs.map_batches, fn, DOUBLED, metrics=metrics, **words)
        found = rows(stage, [1, 2], [6, 7, 8], [9])
        assert metrics.totals().failures == 1
    assert [row["d"] for row in found] == [2, 4, None, None, None, 18]
    good, bad = found[0]["outcome"], [row["outcome"] for row in found[2:5]]
    assert (good["error"], good["attempts"], good["input"]) == (None, 1, None)
    assert [told["input"] for told in bad] == [{"k": 6}, {"k": 7}, {"k": 8}]
    assert {told["attempts"] for told in bad} == {2}
    assert all(told["error"] == {"type": "ValueError", "message": "no seven"} for told in bad)


@pytest.mark.parametrize("fn", [doubled, as_async(doubled)])
@pytest.mark.parametrize("on_failure", ["drop", "column"])
def test_more_batches_than_allowed_fail_the_task(fn: Any, on_failure: str) -> None:
    stage = rs.map_batches(
        fn, DOUBLED, on_failure=rs.Failures(on_failure, at_most=1), concurrency=1
    )
    with pytest.raises(RuntimeError, match=r"2 of 3 calls failed, and Failures\(at_most\) is 1"):
        rows(stage, [7], [1], [7], [2])


# -- max_failures ----------------------------------------------------------------------------------
@pytest.mark.parametrize("on_failure", ["null", "column"])
def test_more_failures_than_allowed_fail_the_task(on_failure: str) -> None:
    def run(keys: list[int], most: float) -> list[Any]:
        words: Any = {"on_failure": rs.Failures(on_failure, at_most=most), "concurrency": 1}
        return rows(made(rs.enrich, half, on="k", output=D, **words), keys)

    odd = list(range(1, 400, 2))
    assert len(run([1, 3, 2], 2)) == 3
    with pytest.raises(
        RuntimeError, match=r"3 of 4 calls failed, and Failures\(at_most\) is 2"
    ) as caught:
        run([1, 3, 2, 5], 2)
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(run([1, 2, 4, 6], 0.25)) == 4
    assert len(run(list(range(400)), 0.5)) == 400
    assert len(run(odd[:50], 0.5)) == 50  # half of the hundred that there may have been
    with pytest.raises(
        RuntimeError, match=r"51 of 51 calls failed, and Failures\(at_most\) is 0\.5"
    ):
        run(odd[:60], 0.5)
    with pytest.raises(
        RuntimeError, match=r"61 of 121 calls failed, and Failures\(at_most\) is 0\.5"
    ):
        run([*range(120), 1], 0.5)


@pytest.mark.parametrize("on_failure", ["null", "column"])
def test_a_failure_that_the_cache_repeats_is_no_failure_of_a_call(on_failure: str) -> None:
    metrics = rs.Metrics()
    policy = rs.Policy(cache=rs.Cache(failure_ttl=60))
    stage = rs.lookup(policy(half), pa.int64(), on_failure=on_failure, metrics=metrics)
    with metrics:
        outcomes(stage, [1, 2, 3], [1, 1, 2, 3])
        totals = metrics.totals()
    assert (totals.calls, totals.failures, totals.cache_hits) == (3, 2, 4)
    assert totals.failure_types == {"ValueError": 2}


# -- frames ----------------------------------------------------------------------------------------
@pytest.mark.spark
def test_good_rows_and_dead_letters_of_frames(spark: Any) -> None:
    numbers = spark.range(0, 8, 1, 2)
    with_column = numbers.withColumn("a.b", rs.lookup(half, "long", on_failure="column")("id"))
    good, bad = rs.split_failures(with_column, "a.b")
    assert sorted(tuple(row) for row in good.collect()) == [(0, 0), (2, 1), (4, 2), (6, 3)]
    assert sorted(row["a.b"].error.message for row in bad.collect()) == [
        f"odd: {k} ?" for k in (1, 3, 5, 7)
    ]
    assert bad.schema == with_column.schema

    enriched = numbers.transform(
        rs.enrich(rs.Policy(timeout=60)(half), on="id", output="d long", on_failure="column")
    )
    good, bad = rs.split_failures(enriched)
    assert rs.split_failures(enriched, "Outcome")[0].columns == good.columns  # as Spark does
    assert good.columns == ["id", "d"]
    assert good.count() == bad.count() == 4
    with pytest.raises(TypeError, match=r"'id' is no column of outcomes.*there are id, d, outcome"):
        rs.split_failures(enriched, "id")
    message = "on_failure='column': the frame has a column 'outcome' already"
    with pytest.raises(ValueError, match=message):
        enriched.transform(rs.enrich(half, on="id", output="x long", on_failure="column"))
    for output in ("outcome long", "d long, Outcome long"):
        with pytest.raises(ValueError, match="on_failure='column': output names the column"):
            numbers.transform(rs.enrich(half, on="id", output=output, on_failure="column"))


@pytest.mark.spark
def test_dead_letters_of_batches_can_be_worked_on_again(spark: Any) -> None:
    def fails_beyond(most: int) -> Any:
        def fn(batch: pa.RecordBatch) -> Any:
            if max(batch["id"].to_pylist()) > most:
                raise OSError("away")
            return [{"d": 2 * k, "t": t} for k, t in zip(*batch.to_pydict().values(), strict=True)]

        return fn

    schema = "d long NOT NULL, t timestamp"
    when = "timestamp'2020-01-01' as `when.it is`"
    numbers = spark.range(0, 2500, 1, 1).selectExpr("id", when)  # batches of 1000
    told = numbers.transform(rs.map_batches(fails_beyond(999), schema, on_failure="column"))
    good, bad = rs.split_failures(told)
    assert good.columns == ["d", "t"]
    assert [row.d for row in good.collect()] == list(range(0, 2000, 2))
    again = bad.select("outcome.input.*")
    assert again.schema.simpleString() == numbers.schema.simpleString()
    worked = again.transform(rs.map_batches(fails_beyond(9999), schema))
    assert [row.d for row in worked.orderBy("d").collect()] == list(range(2000, 5000, 2))
    assert worked.select("t").distinct().collect() == numbers.selectExpr(when).distinct().collect()
    with pytest.raises(ValueError, match="schema: 'outcome' is the column that on_failure"):
        numbers.transform(rs.map_batches(doubled, "Outcome long", on_failure="column"))


@pytest.mark.parametrize("sync", [False, True])
def test_a_function_that_exits_is_no_failed_row(sync: bool) -> None:
    def exits(k: int) -> int:
        raise SystemExit(k)

    stage = made(rs.enrich, exits if sync else as_async(exits), on="k", output=D, **ON_FAILURE)
    with pytest.raises((SystemExit, RuntimeError)) as raised:
        rows(stage, [4])
    assert "SystemExit" in repr(raised.value)
