"""What a function gives is cast to what was declared only where both say the same thing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rstreams_fast.spark.types import Columns, conform, keys_of


def conformed(array: pa.Array, kind: pa.DataType) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    column = conform(batch, pa.schema([("x", kind)]), "fn").column(0)
    assert column.type == kind
    values: list[Any] = column.to_pylist()
    return values


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
    columns = Columns(["x"], [pa.float32()])
    assert columns.arrays([1.0, None, float("inf")], str)[0].to_pylist() == [
        1.0,
        None,
        float("inf"),
    ]
    with pytest.raises(TypeError, match=r"column 'x'.*1: float 1e\+300"):
        columns.arrays([1.0, 1e300], str)


def test_keys_that_cannot_be_made_say_so() -> None:
    of_structs = pa.map_(A, pa.int64())
    with pytest.raises(TypeError, match="key column of map<"):
        keys_of(pa.array([[({"a": 1}, 2)]], of_structs))
