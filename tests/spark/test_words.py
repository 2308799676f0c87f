"""A word that cannot be is refused by name, before anything runs. Needs no Spark."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, ByteType, StructField, StructType, YearMonthIntervalType

import rstreams_fast.spark as rs
from rstreams_fast.spark.declared import resolve_schema, resolve_type
from tests.helpers import run_python
from tests.spark.stages import K, doubled, made, parts, same


class LikeAColumn:
    """As Spark's ``Column``, which has the method to say that it cannot be iterated."""

    def __iter__(self) -> Any:
        raise TypeError("[NOT_ITERABLE] Column is not iterable.")


def max_of(a: int, b: int) -> int:
    return max(a, b)


def with_defaults(make: Callable[..., Any], **defaults: Any) -> Callable[..., Any]:
    return lambda **words: make(**{**defaults, **words})


LOOKUP = with_defaults(partial(made, rs.lookup), fn=doubled, returns="long")
ENRICH = with_defaults(partial(made, rs.enrich), fn=doubled, on="k", output="d long")
BATCHES = with_defaults(partial(made, rs.map_batches), fn=same, schema=K)
BOUNDS = rs.Bounds
FAILURES = with_defaults(rs.Failures, become="null")
RETRY = with_defaults(rs.Retry, times=3)
LIMIT = with_defaults(rs.Limit, name="x")
JOURNAL = with_defaults(rs.Journal, uri="/x", version="1")
POLICY = with_defaults(lambda fn, **words: rs.Policy(**words)(fn), fn=len)
NULL = {"on_failure": "null"}
AUTO = {"concurrency": "auto"}

Row = tuple[Callable[..., Any], dict[str, Any], type[Exception], str]
REFUSED: list[Row] = [
    (LOOKUP, {"concurrency": 0}, ValueError, "concurrency must be >= 1"),
    (LOOKUP, {"concurrency": 1.5}, TypeError, "concurrency must be an int"),
    (LOOKUP, {"concurrency": True}, TypeError, "concurrency must be an int"),
    (LOOKUP, {"concurrency": 2**31 + 1}, ValueError, "concurrency must be <= 2147483648"),
    (LOOKUP, {"bounds": 3}, TypeError, "bounds must be a Bounds, got int"),
    (BOUNDS, {"rows": 2**40}, ValueError, r"Bounds\(rows\) must be <= 2147483648"),
    (BOUNDS, {"rows": "3"}, TypeError, r"Bounds\(rows\) must be an int"),
    (LOOKUP, {"bounds": rs.Bounds(rows=3)}, ValueError, r"=3\) is less than concurrency=64"),
    (BOUNDS, {"bytes": 2**63}, ValueError, r"Bounds\(bytes\) must be <= "),
    (BOUNDS, {"bytes": 0}, ValueError, r"Bounds\(bytes\) must be >= 1"),
    (LOOKUP, {"on_null": "drop"}, ValueError, "on_null must be 'skip' or 'call'"),
    (LOOKUP, {"on_failure": "drop"}, ValueError, "must be 'raise' or 'null' or 'column'"),
    (LOOKUP, {"timeout": 0}, ValueError, "timeout must be > 0"),
    (LOOKUP, {"timeout": 10**400}, ValueError, "timeout must be <= "),
    (LOOKUP, {"deadline": 0}, ValueError, "deadline must be > 0"),
    (BOUNDS, {"seconds": 0}, ValueError, r"Bounds\(seconds\) must be > 0"),
    (LOOKUP, {"timeout": "1"}, TypeError, "timeout must be a number of seconds"),
    (LOOKUP, {"fn": abs, "timeout": 1}, ValueError, "timeout needs an async fn"),
    (LOOKUP, {"fn": abs, **AUTO}, ValueError, "concurrency='auto' needs an async fn: abs"),
    (LOOKUP, {"fn": 3}, TypeError, "fn must be callable"),
    (LOOKUP, {"retry": 3}, TypeError, "retry must be a Retry"),
    (LOOKUP, {"using": 3}, TypeError, "using must be a factory"),
    (LOOKUP, {"metrics": "/path"}, TypeError, "metrics must be a Metrics, got str"),
    (LOOKUP, {"cache": 3}, TypeError, "cache must be a Cache, got int"),
    (LOOKUP, {"limit": 5}, TypeError, "limit must be a Limit, got int"),
    (LOOKUP, {"circuit": 5}, TypeError, "circuit must be a Circuit"),
    (LOOKUP, {"journal": "/x"}, TypeError, "journal must be a Journal, got str"),
    (LOOKUP, {"loop_factory": "uvloop"}, TypeError, "loop_factory must be a factory, got str"),
    (LOOKUP, {"dedupe": 1}, TypeError, "dedupe must be a bool"),
    (LOOKUP, {"ordered": False}, ValueError, r"lookup\(ordered=False\)"),
    (LOOKUP, {"serialize_by": 0}, TypeError, "serialize_by must be the name of a parameter"),
    (LOOKUP, {"serialize_by": "x"}, ValueError, "'x' is no parameter of fn that gets a key"),
    (LOOKUP, {"serialize_by": "k", "using": len}, ValueError, "there are none"),
    (LOOKUP, {"batch": 0}, ValueError, "batch must be >= 1"),
    (LOOKUP, {"batch": 1.5}, TypeError, "batch must be an int"),
    (rs.Batching, {"rows": 0}, ValueError, r"Batching\(rows\) must be >= 1"),
    (rs.Batching, {"rows": 3, "weight": 9}, ValueError, r"weight\) and .* need each other"),
    (rs.Batching, {"rows": 3, "linger": -1}, ValueError, r"Batching\(linger\) must be > 0"),
    (LOOKUP, {"batch": 10, "bounds": rs.Bounds(rows=100)}, ValueError, "concurrency=64 of 10 keys"),
    (
        LOOKUP,
        {"batch": 8, "bounds": rs.Bounds(rows=7), **AUTO},
        ValueError,
        "concurrency=1 of 8 keys",
    ),
    (FAILURES, {"become": "raise"}, ValueError, r"Failures\(become\) must be 'null' or"),
    (FAILURES, {"at_most": -1}, ValueError, r"Failures\(at_most\) must be an int >= 0"),
    (FAILURES, {"at_most": 1.5}, ValueError, "a share of the calls up to 1.0"),
    (FAILURES, {"at_most": "1"}, TypeError, "a number or a share, got str"),
    (LOOKUP, {"on_failure": rs.Failures("drop")}, ValueError, "on_failure must be 'raise' or"),
    (ENRICH, {"on": []}, TypeError, "on must name at least one column"),
    (ENRICH, {"fn": max, "serialize_by": "k"}, ValueError, "the parameters of fn are not known"),
    (ENRICH, {"serialize_by": "k", "batch": 3}, ValueError, "serialize_by and batch"),
    (BATCHES, {"fn": 3}, TypeError, "fn must be callable"),
    (BATCHES, {"concurrency": 0}, ValueError, "concurrency must be >= 1"),
    (BATCHES, AUTO, TypeError, "concurrency must be an int, got str"),
    (BATCHES, {"on_failure": "null"}, ValueError, "on_failure must be .*drop"),
    (BATCHES, {"loop_factory": "uvloop"}, TypeError, "loop_factory must be a factory, got str"),
    (BATCHES, {"fn": len, "deadline": 1}, ValueError, "needs an async fn"),
    (rs.stage, {"build": 3, "schema": K}, TypeError, "build must be callable"),
    (rs.PerWorker, {"factory": 5}, TypeError, r"PerWorker\(factory\) must be a factory"),
    *((RETRY, {"on": on}, TypeError, r"Retry\(on\) must be") for on in (("x",), 3, "ValueError")),
    (RETRY, {"times": 0}, ValueError, "times"),
    (RETRY, {"jitter": 2}, ValueError, "jitter"),
    *(
        (RETRY, {name: value}, ValueError, rf"Retry\({name}\) must be finite and >= ")
        for name in ("backoff", "factor", "max_backoff", "jitter")
        for value in (math.inf, math.nan, 10**400, -1)
    ),
    (RETRY, {"budget": -0.1}, ValueError, r"Retry\(budget\) must be"),
    (RETRY, {"budget": 1.5}, ValueError, r"Retry\(budget\) must be"),
    (RETRY, {"budget": "1"}, TypeError, r"Retry\(budget\) must be"),
    (POLICY, {"patience": -1}, ValueError, "patience must be >= 0"),
    (POLICY, {"patience": math.nan}, ValueError, "patience must be >= 0"),
    (POLICY, {"patience": "5"}, TypeError, "patience must be a number"),
    (rs.Circuit, {"failures": 0}, ValueError, r"Circuit\(failures\) must be"),
    (rs.Circuit, {"failures": 1.5}, ValueError, r"Circuit\(failures\) must be"),
    (rs.Circuit, {"failures": "3"}, TypeError, r"Circuit\(failures\) must be"),
    (rs.Circuit, {"reset": 0}, ValueError, r"Circuit\(reset\) must be"),
    (rs.Circuit, {"on": 3}, TypeError, r"Circuit\(on\) must be"),
    (rs.Cache, {"entries": 0}, ValueError, r"Cache\(entries\) must be >"),
    (rs.Cache, {"bytes": 0}, ValueError, r"Cache\(bytes\) must be >"),
    (rs.Cache, {"ttl": 0}, ValueError, r"Cache\(ttl\) must be >"),
    (rs.Cache, {"null_ttl": -1}, ValueError, r"Cache\(null_ttl\) must be >= 0"),
    (LIMIT, {"name": 5}, TypeError, r"Limit\(name\) must be a str"),
    (LIMIT, {"name": ""}, ValueError, r"Limit\(name\) is empty"),
    (LIMIT, {}, ValueError, "bounds nothing"),
    (LIMIT, {"concurrency": 0}, ValueError, r"Limit\(concurrency\) must be from 1"),
    (LIMIT, {"concurrency": True}, TypeError, r"Limit\(concurrency\) must be an int"),
    (LIMIT, {"rate": 0}, ValueError, r"Limit\(rate\) must be finite and > 0"),
    (LIMIT, {"rate": "5"}, TypeError, r"Limit\(rate\) must be a number"),
    (LIMIT, {"rate": math.inf}, ValueError, r"Limit\(rate\) must be finite"),
    (LIMIT, {"rate": 5, "burst": 0}, ValueError, r"Limit\(burst\) must be from 1"),
    (LIMIT, {"rate": 5, "scope": "world"}, ValueError, r"Limit\(scope\) must be"),
    (JOURNAL, {"uri": "here"}, ValueError, "uri.*absolute"),
    (JOURNAL, {"uri": ""}, ValueError, "uri.*empty"),
    (JOURNAL, {"uri": 3}, TypeError, "uri.*str"),
    (JOURNAL, {"version": ""}, ValueError, "version.*empty"),
    (JOURNAL, {"version": 1}, TypeError, "version.*str"),
    (JOURNAL, {"max_bytes": 0}, ValueError, "max_bytes.*>= 1"),
    *(
        (rs.Metrics, {"path": path}, TypeError, f"path must be .*, got {type(path).__name__}")
        for path in (5, True, b"metrics")
    ),
    (rs.Metrics, {"path": ""}, ValueError, "path is empty"),
    (BATCHES, {"bounds": rs.Bounds(rows=3)}, ValueError, "rows are not called one by one"),
    (POLICY, {"key": 3}, TypeError, "key must be callable"),
    (POLICY, {"fn": 3, "retry": rs.Retry(2)}, TypeError, "fn must be callable"),
]


@pytest.mark.parametrize(("make", "words", "error", "message"), REFUSED)
def test_a_bad_word_is_named(
    make: Callable[..., Any], words: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**words)


@pytest.mark.parametrize("names", [3, None, b"k", [1], LikeAColumn(), [LikeAColumn()]], ids=str)
def test_what_names_no_column_is_refused(names: Any) -> None:
    message = "on must be a column's name or several names, got"
    with pytest.raises(TypeError, match=message):
        rs.enrich(doubled, on=names, output="d long")
    with pytest.raises(TypeError, match=message):
        rs.lookup(doubled, pa.int64()).as_map_fn(on=names)


def test_columns_must_be_there_and_new_ones_must_not() -> None:
    with pytest.raises(ValueError, match=r"on: no column x; there are k"):
        list(rs.lookup(doubled, pa.int64()).as_map_fn(on="x")(parts(3, 3)))
    with pytest.raises(ValueError, match="serialize_by: there are only 1 key columns"):
        rs.lookup(max_of, "long", serialize_by="b")("k")
    with pytest.raises(TypeError, match="schema must name its columns"):
        rs.map_batches(same, pa.int64()).as_map_fn()
    for on in ((), ("k",)):
        look = rs.lookup(doubled, pa.int64())
        for name in (None, 5):
            with pytest.raises(TypeError, match=f"name must be a column's name, got {name}"):
                look.as_map_fn(on, name)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="name: there is a column k already"):
            list(look.as_map_fn(on, "k")(parts(3, 3)))
    with pytest.raises(ValueError, match="output: there is a column k already"):
        list(rs.enrich(doubled, on="k", output=K).as_map_fn()(parts(3, 3)))


@pytest.mark.parametrize(
    "stage", [ENRICH(), BATCHES(fn=doubled), rs.stage(doubled, "d long")], ids=str
)
def test_what_is_no_frame_is_named(stage: Any) -> None:
    with pytest.raises(TypeError, match=r"doubled.* takes a Spark DataFrame, got pyarrow.*Table"):
        stage(pa.table({"k": [1]}))


# -- types and schemas -----------------------------------------------------------------------------
def test_without_a_session_ddl_says_to_start_one() -> None:
    script = (
        "import rstreams_fast.spark as rs\n"
        "try:\n"
        "    rs.lookup(print, 'interactive lang').as_map_fn()\n"
        "except RuntimeError as refused:\n"
        "    print(refused)\n"
    )
    said = run_python("-c", script, env={"SPARK_REMOTE": None}).stdout
    assert "returns='interactive lang' is a DDL string, and only a running SparkSession" in said


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (YearMonthIntervalType(), "YearMonthIntervalType"),
        (ArrayType(YearMonthIntervalType()), "YearMonthIntervalType"),
        (pa.uint8(), "uint8"),
        (pa.list_(pa.float16()), "halffloat"),
    ],
    ids=str,
)
def test_a_type_that_only_one_side_has_names_the_argument(declared: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^returns has a type that Spark does not .*{named}"):
        resolve_type(declared, "returns")
    if isinstance(declared, pa.DataType):
        schema = pa.schema([("good", pa.int8()), ("bad", declared)])
    else:
        schema = StructType([StructField("good", ByteType()), StructField("bad", declared)])
    with pytest.raises(TypeError, match=f"^output: the column 'bad' has a type that .*{named}"):
        resolve_schema(schema, "output")


# -- bounds ----------------------------------------------------------------------------------------
DESCRIBED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"concurrency": 9, "bounds": rs.Bounds(rows=99, bytes=12345), "timeout": 2},
        ("doubled", "at most 9 at once", "at most 99 rows", "12345 bytes", "2.0 s"),
    ),
    ({"batch": 10}, ("64 at once, of up to 10 keys each",)),
    ({"concurrency": "auto", "batch": 8, "bounds": rs.Bounds(rows=100)}, ("at most 6 at once",)),
    (
        {"concurrency": "auto", "limit": rs.Limit("x", concurrency=7)},
        ("at most 7 at once, on the loop, as many as answers show to be right",),
    ),
    (
        {"limit": rs.Limit("registry", concurrency=32, rate=500, burst=4)},
        ("limit 'registry': at most 32 calls at once, 500 a second, 4 of them at once",),
    ),
    (
        {"circuit": rs.Circuit(0.5), "deadline": 3, "bounds": rs.Bounds(seconds=60)},
        (
            "circuit: opens for 30 s when 50% of 100 attempts fail, in each worker",
            "deadline: 3 s for each row",
            "deadline: 60 s for the partition",
        ),
    ),
]


@pytest.mark.parametrize(("words", "said"), DESCRIBED)
def test_describe_says_every_bound(words: dict[str, Any], said: tuple[str, ...]) -> None:
    text = LOOKUP(**words).describe()
    assert [part for part in said if part not in text] == []
