"""What a function gives is cast to what was declared only where both say the same thing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.worker.values.pandas_series import run_on_series
from tests.spark.stages import one


def through(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return what ``map_batches`` makes of a batch that its function gives."""

    def fn(_: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    (found,) = rs.map_batches(fn, schema).as_map_fn()(one(row=[0]))
    return found


def conformed(array: pa.Array, kind: pa.DataType) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    column = through(batch, pa.schema([("x", kind)]))["x"]
    assert column.type == kind
    return list(column.to_pylist())


def results(kind: pa.DataType, *values: Any) -> pa.Array:
    """Return the column ``x`` of a ``lookup`` whose function gives these."""
    stage = rs.lookup(lambda row: values[row], kind).as_map_fn(name="x")
    (found,) = stage(one(row=range(len(values))))
    assert found["x"].type == kind
    return found["x"]


A = pa.struct([("a", pa.int64())])
A_AND_B = pa.struct([("a", pa.int64()), ("b", pa.int64())])


@pytest.mark.parametrize(
    ("array", "kind", "says"),
    [
        (pa.array([{"a": 1, "b": 2}]), A, "x has the fields a, b instead of a"),
        (pa.array([{"p": 1}]), A, "x has the fields p instead of a"),
        (pa.array([{"a": 1}]), A_AND_B, "x has the fields a instead of a, b"),
        (pa.array([[{"p": 1}]]), pa.list_(A), "x.element has the fields p instead of a"),
        (pa.array([[1]]), pa.list_(pa.string()), "x.element is int64 instead of string"),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.string())]), "x.a is int64 instead of string"),
        (
            pa.array([[0]], pa.list_(pa.timestamp("us"))),
            pa.list_(pa.timestamp("us", "UTC")),
            "x.element: one has a time zone",
        ),
        (
            pa.array([[(1, "v")]], pa.map_(pa.int64(), pa.string())),
            pa.map_(pa.string(), pa.string()),
            "x.key is int64 instead of string",
        ),
    ],
)
def test_a_nested_value_that_says_something_else_is_refused_with_its_path(
    array: pa.Array, kind: pa.DataType, says: str
) -> None:
    with pytest.raises(TypeError, match="fn gave the column 'x'") as refused:
        conformed(array, kind)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([{"a": 1}, None]), pa.struct([("a", pa.int32())])),
        (pa.array([[1, None], None]), pa.list_(pa.int32())),
        (pa.array([{"b": 1, "a": 2}]), A_AND_B),
        (pa.array([None, None]), pa.list_(pa.int64())),
        (pa.array([1.5, None, float("inf")]), pa.float32()),
    ],
)
def test_another_width_of_the_same_is_cast(array: pa.Array, kind: pa.DataType) -> None:
    assert conformed(array, kind) == array.to_pylist()


def test_a_number_too_large_for_a_float_does_not_become_infinity() -> None:
    with pytest.raises(TypeError, match=r"at row 1 of the batch: 1e\+300"):
        conformed(pa.array([1.0, 1e300]), pa.float32())
    assert results(pa.float32(), 1.0, None, float("inf")).to_pylist() == [1.0, None, float("inf")]
    with pytest.raises(TypeError, match=r"column 'x'.*1: float 1e\+300"):
        results(pa.float32(), 1.0, 1e300)


def test_a_decimal_drops_no_digit_of_a_float() -> None:
    kind = pa.decimal128(5, 2)
    assert conformed(pa.array([1.24, None]), kind) == [Decimal("1.24"), None]
    with pytest.raises(TypeError, match=r"1\.239.* more digits than decimal"):
        conformed(pa.array([1.24, 1.239]), kind)


def test_pandas_makes_no_floats_of_the_integers_inside_of_a_key() -> None:
    """It does so beside a null; before PySpark 4.1 the keys of a lookup come from pandas."""
    found = list[Any]()

    def keys(*values: Any, kind: str) -> list[Any]:
        def run(batches: Iterator[Any]) -> Iterator[Any]:
            found[:] = [column.values for column in batches]
            yield from ()

        count = len(values)
        series = [pd.Series([[one] for one in values]), pd.Series([f"UTC|{kind}"] * count)]
        list(run_on_series(run, iter([(*series, pd.Series([[None]] * count))])))
        return list(found[0])

    kind = "struct<a:bigint,b:map<string,int>>"
    given = {"a": 2.0, "b": {"float": float("nan")}}
    assert keys(given, {"a": 3, "b": {}}, kind=kind) == [
        {"a": 2, "b": {"float": None}},
        {"a": 3, "b": {}},
    ]
    assert isinstance(keys(given, kind=kind)[0]["a"], int)
    assert isinstance(keys(given, kind="struct<a:double,b:map<string,int>>")[0]["a"], float)
    with pytest.raises(ValueError, match="pandas has lost digits of an integer"):
        keys({"a": 2.0**60, "b": {}}, kind=kind)


def nested(kind: pa.DataType) -> list[pa.DataType]:
    """Each of the types that hold others, and two of them."""
    return [
        pa.struct([("a", pa.string()), ("x", kind)]),
        pa.list_(kind),
        pa.map_(pa.string(), kind),
        pa.list_(pa.struct([("x", pa.list_(kind))])),
    ]


def values_of(number: float) -> list[Any]:
    """A value of each of the ``nested`` types."""
    return [{"a": "", "x": number}, [None, number], {"c": number}, [None, {"x": [number]}]]


@pytest.mark.parametrize("place", range(4))
def test_nor_does_a_number_inside_of_another_value_become_infinity(place: int) -> None:
    kind, doubles = nested(pa.float32())[place], nested(pa.float64())[place]
    good, bad = values_of(-float("inf"))[place], values_of(1e300)[place]
    made = results(kind, None, good)
    assert "-inf" in str(made[1])
    with pytest.raises(TypeError, match=r"column 'x'.* for the key 1: .*too large for a float"):
        results(kind, good, bad, good)
    given = pa.array([None, good, bad, good], doubles)
    assert conformed(given.slice(0, 2), kind) == made.to_pylist()
    with pytest.raises(TypeError, match=r"column 'x'.* at row 1 of the batch.*too large for"):
        conformed(given.slice(1), kind)


@pytest.mark.parametrize(("kind", "exact"), [(pa.float32(), 2**24), (pa.float64(), 2**53)], ids=str)
def test_a_whole_number_that_a_float_cannot_hold_is_refused(kind: pa.DataType, exact: int) -> None:
    assert results(kind, exact, -exact).to_pylist() == [exact, -exact]
    with pytest.raises(TypeError, match=rf"column 'x'.* for the key 1: int {exact + 1}"):
        results(kind, exact, exact + 1)


NO_TEXT = pa.array([b"\xff"], pa.binary()).cast(pa.string(), safe=False)


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        (pa.array([2**62], pa.timestamp("us", "UTC")), ValueError, "a value that Python cannot"),
        (NO_TEXT, ValueError, "string has a value that Python cannot"),
        (
            pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
            ValueError,
            "a value that Python cannot",
        ),
        (pa.array([[({"a": 1}, 2)]], pa.map_(A, pa.int64())), TypeError, "map<"),
    ],
    ids=["a year beyond 9999", "no UTF-8", "a map with a key twice", "a map of structs"],
)
@pytest.mark.parametrize("on", [(), ("k",), ("k", "a")])
def test_keys_that_python_cannot_hold_name_their_column(
    keys: pa.Array, error: type[Exception], said: str, on: tuple[str, ...]
) -> None:
    inputs = one(k=keys, a=pa.array([1])) if on else one(k=keys)
    with pytest.raises(error, match=f"key column 'k' of .*{said}"):
        list(rs.lookup(print, pa.string()).as_map_fn(on)(inputs))


@pytest.mark.parametrize(
    ("values", "said"), [((10**5000,), "0: int <int "), ((pd.NA, "x"), "1: str 'x' cannot become")]
)
def test_a_result_is_named_if_it_cannot_be_written_out_and_not_for_another(
    values: Any, said: str
) -> None:
    with pytest.raises(TypeError, match=rf"'x' is declared int64, .*for the key {said}"):
        results(pa.int64(), *values)


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": "b"}])
@pytest.mark.parametrize("kind", [pa.string(), pa.int64()])
def test_a_text_is_no_list_of_its_characters(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=rf"column 'x'.*{type(value).__name__} is no list"):
        results(pa.list_(kind), value)
    assert results(pa.list_(kind), [], (), None).to_pylist() == [[], [], None]


ONE_FIELD = pa.struct([("x", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.string()), ["a", "b"]),
        (pa.list_(pa.int64()), [1, 2]),
        (pa.list_(pa.int64()), [1, 2.0]),  # one needs a conversion, which is another look at it
        (pa.list_(ONE_FIELD), [{"x": 1}, {"x": 2}]),
        (pa.list_(pa.list_(pa.int32())), [[1], [2]]),
        (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", 2)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_an_iterator_is_refused_whatever_its_elements_are(
    kind: pa.DataType, values: list[Any], nested: bool
) -> None:
    good, bad = values, iter(values)
    if nested:
        kind = pa.struct([("inside", kind)])
        good, bad = {"inside": values}, {"inside": iter(values)}  # type: ignore[assignment]
    results(kind, good)
    with pytest.raises(TypeError, match=r"column 'x'.* for the key 1: .*list_iterator is no"):
        results(kind, good, bad)


@pytest.mark.parametrize("nullable", [True, False])
def test_a_null_in_a_column_that_has_none_is_named(nullable: bool) -> None:
    """Spark would die of it in the JVM, or plan as if there were none."""
    given = pa.schema([pa.field("x", pa.int64(), nullable=nullable)])
    declared = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    good = pa.RecordBatch.from_arrays([pa.array([1, 2])], schema=given)
    assert through(good, declared)["x"].to_pylist() == [1, 2]
    bad = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=given)
    with pytest.raises(ValueError, match="'x', which is declared NOT NULL, a null at row 1"):
        through(bad, declared)


def never_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


X = pa.struct([("a", pa.string()), never_null("x", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "good", "bad", "path"),
    [
        (X, {"a": None, "x": 1}, {"a": "", "x": None}, "x.x"),
        (pa.list_(never_null("element", pa.int32())), [1, 2], [1, None], "x.element"),
        (pa.list_(never_null("item", X)), [{"a": "", "x": 1}], [None], "x.element"),
        (
            pa.list_(X),
            [{"a": "", "x": 1}, None],
            [{"a": "", "x": 1}, {"a": "", "x": None}],
            "x.element.x",
        ),
        (
            pa.map_(pa.string(), never_null("value", pa.int32())),
            {"k": 1},
            {"k": 1, "l": None},
            "x.value",
        ),
        (pa.map_(pa.string(), X), {"k": None}, {"l": {"a": "", "x": None}}, "x.value.x"),
    ],
    ids=lambda parameter: parameter if isinstance(parameter, str) else "",
)
def test_a_null_inside_of_a_value_is_named_by_its_path(
    kind: pa.DataType, good: Any, bad: Any, path: str
) -> None:
    assert len(results(kind, good, None, good)) == 3
    with pytest.raises(TypeError, match=rf"column 'x'.* for the key 2: .*{path} is declared NOT"):
        results(kind, good, None, bad, good)

    schema = pa.schema([("x", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array([bad, good, None, bad], kind)], schema=schema)
    assert through(batch.slice(1, 2), schema).num_rows == 2
    with pytest.raises(ValueError, match=rf"'{path}', which is declared NOT NULL, a null at row 2"):
        through(batch.slice(1), schema)


# -- values of numpy and pandas --------------------------------------------------------------------

DAY = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - local time, as a datetime without a zone is


@pytest.mark.parametrize(
    ("value", "kind", "becomes"),
    [
        *(
            (missing, kind, None)
            for missing in (pd.NA, pd.NaT)
            for kind in (pa.string(), pa.int64())
        ),
        (pd.NaT, pa.timestamp("us", "UTC"), None),
        (np.datetime64("NaT", "us"), pa.timestamp("us"), None),
        (pd.Timestamp(DAY), pa.timestamp("us", "UTC"), DAY.astimezone(dt.UTC)),
        (np.datetime64(DAY, "ns"), pa.timestamp("us", "UTC"), DAY.astimezone(dt.UTC)),
        (np.datetime64(DAY), pa.timestamp("us"), DAY),
        (np.datetime64("2020-01-01"), pa.date32(), DAY.date()),
        (np.timedelta64(3, "s"), pa.duration("us"), dt.timedelta(seconds=3)),
        (np.float32(1.5), pa.float64(), 1.5),
        ([1, pd.NA], pa.list_(pa.int64()), [1, None]),
        ({"a": pd.NA}, pa.struct([("a", pa.string())]), {"a": None}),
    ],
)
def test_a_value_of_numpy_or_pandas_is_a_result(
    value: Any, kind: pa.DataType, becomes: Any
) -> None:
    assert results(kind, value, None).to_pylist() == [becomes, None]
