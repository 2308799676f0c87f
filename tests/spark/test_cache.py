"""The bytes of a cache: what results keep, with all that they are a part of."""

from __future__ import annotations

import array
import asyncio
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import one, outputs, values

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pytest.importorskip("cachetools")

BYTES = 128 << 10
ROW_BYTES = 8 << 10
ROWS = 4
"""Results that a call gives at once, of one matrix."""
KEYS = 32


class Row(NamedTuple):
    v: Any


@dataclass
class Data:
    v: Any


@dataclass(slots=True)
class Slotted:
    v: Any


class Marked(bytes):
    """Bytes with an attribute."""

    extra: Any


def marked(row: Any) -> Marked:
    found = Marked(b"")
    found.extra = row.tobytes()
    return found


#: Makes the result of a row of a matrix.
RESULTS: dict[str, Callable[[Any], Any]] = {
    "view": lambda row: row,
    "column of a transposed matrix": lambda row: row.reshape(2, -1).T,
    "own": lambda row: row.copy(),
    "tuple": lambda row: (1, row),
    "named tuple": Row,
    "dict": lambda row: {"v": row},
    "dict of lists": lambda row: {"v": [[row[: len(row) // 2]], [row[len(row) // 2 :]]]},
    "objects": lambda row: np.array([{"v": row.tolist()[: len(row) // 4]}], object),
    "memoryview": memoryview,
    "part of a memoryview": lambda row: memoryview(row.tobytes() * 4).cast("d")[: len(row)],
    "bytes": lambda row: row.tobytes(),
    "bytearray": lambda row: bytearray(row.tobytes()),
    "marked bytes": marked,
    "array": lambda row: array.array("d", row.tobytes()),
    "buffer of Arrow": lambda row: pa.py_buffer(row.tobytes()),
    "array of Arrow": pa.array,
    "slice of Arrow": lambda row: pa.array(np.tile(row, 4)).slice(0, len(row)),
    "scalar of Arrow": lambda row: pa.array([row] * 4)[1],
    "bytes of Arrow": lambda row: pa.array([row.tobytes()] * 4)[1],
    "struct of Arrow": lambda row: pa.StructArray.from_arrays([pa.array([row] * 4)], ["v"])[1],
    "Series": pd.Series,
    "Series of a part": lambda row: pd.Series(np.tile(row, 4))[: len(row)],
    "DataFrame": lambda row: {"v": pd.DataFrame({"v": row})},
    "record": lambda row: row.view([("a", "f8"), ("b", "f8", (len(row) - 1,))])[0],
    "list": lambda row: row.tolist()[: len(row) // 4],  # of floats, 32 bytes each with its place
    "deque": lambda row: deque([row.tobytes()]),
    "set": lambda row: {row.tobytes()},
    "data class": lambda row: Data(row.copy()),
    "with slots": lambda row: Slotted(row.copy()),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_cache_keeps_no_more_than_its_bytes(kind: str, tmp_path: Any) -> None:
    matrices = list[Any]()
    again = False

    async def fetch(keys: list[int]) -> list[Any]:
        await asyncio.sleep(0)
        if again:
            return [None] * len(keys)
        matrix = np.random.rand(len(keys), ROW_BYTES // 8)
        matrices.append(weakref.ref(matrix))
        return list(map(RESULTS[kind], matrix))

    cache = rs.Cache(bytes=BYTES, null_ttl=0)

    def run() -> int:
        """Return how many results were found in the cache."""
        metrics = rs.Metrics(tmp_path / str(again))
        stage = rs.lookup(
            rs.Policy(cache=cache)(fetch),
            pa.list_(pa.float64()),
            batch=ROWS,
            metrics=metrics,
            on_failure="column",
        )
        assert len(values(stage, range(KEYS))) == KEYS
        return metrics.totals().cache_hits

    assert run() == 0
    gc.collect()
    assert sum(matrix() is not None for matrix in matrices) <= 1  # that of the local names
    again = True
    kept = run()
    assert BYTES // 4 < kept * ROW_BYTES <= BYTES


def test_a_view_that_cannot_be_copied_counts_as_what_it_is_a_part_of(tmp_path: Any) -> None:
    async def fetch(k: int) -> Any:
        return Data(np.zeros(BYTES // 16)[:1])  # half of the cache

    metrics = rs.Metrics(tmp_path)
    cache = rs.Cache(bytes=BYTES)
    for _ in range(2):
        stage = rs.lookup(
            rs.Policy(cache=cache)(fetch), pa.int64(), on_failure="column", metrics=metrics
        )
        values(stage, [1, 2, 3, 4])
    assert metrics.totals().cache_hits <= 1


class Odd:
    """What says nothing about its size."""

    def __sizeof__(self) -> int:
        raise OSError("no size")


@pytest.mark.parametrize("make", [Odd, lambda: Data(sys.modules)])
def test_what_cannot_be_measured_fails_no_call(make: Callable[[], Any]) -> None:
    async def fetch(k: int) -> Any:
        return k or make()

    stage = rs.lookup(rs.Policy(cache=rs.Cache())(fetch), pa.int64(), on_failure="column")
    for _ in range(2):
        assert [value["value"] for value in values(stage, [0, 1])] == [None, 1]


MADE, RAW = np.arange(12.0).reshape(3, 4), bytes(range(64))
KEPT: list[tuple[Any, list[Any], list[Any]]] = [
    (
        pa.list_(pa.float64()),
        [
            *(MADE[1], MADE.T[1], pa.array([MADE[0], MADE[1]])[1]),
            *(pa.array(np.tile(MADE[1], 3)).slice(4, 4), pd.Series(MADE[1])),
            [np.float64(1), np.float32(2)],
        ],
        [MADE[1].tolist(), MADE.T[1].tolist(), *[MADE[1].tolist()] * 3, [1.0, 2.0]],
    ),
    (
        pa.binary(),
        [memoryview(RAW)[8:24], memoryview(bytearray(RAW))[:8], pa.array([RAW, RAW])[1]],
        [RAW[8:24], RAW[:8], RAW],
    ),
]


@pytest.mark.parametrize(("kind", "results", "expected"), KEPT)
def test_what_is_kept_is_what_was_returned(
    kind: pa.DataType, results: list[Any], expected: list[Any]
) -> None:
    async def fetch(k: int) -> Any:
        return results[k]

    stage = rs.lookup(rs.Policy(cache=rs.Cache())(fetch), kind)
    for _ in range(2):
        assert values(stage, range(len(results))) == expected


class Two(NamedTuple):
    b: Any
    a: int


def test_rows_are_kept_as_they_were_returned() -> None:
    from pyspark.sql import Row as SparkRow

    async def fetch(k: int) -> Any:
        b = MADE[1]
        return [(k, b), {"b": b, "a": k}, SparkRow(b=b, a=k), Two(b, k)][k]

    output = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float64()))])
    stage = rs.enrich(rs.Policy(cache=rs.Cache())(fetch), on="k", output=output)
    for _ in range(2):
        found = outputs(stage, one(k=range(4)))
        assert found["a"].to_pylist() == [0, 1, 2, 3]
        assert found["b"].to_pylist() == [MADE[1].tolist()] * 4


class Text(bytearray):
    """Bytes that a weak reference can point to."""


@pytest.mark.parametrize("kind", [pa.binary(), pa.binary(4), pa.list_(pa.binary())], ids=str)
def test_nothing_keeps_the_bytes_of_a_memoryview(kind: pa.DataType) -> None:
    texts = list[Any]()

    async def fetch(k: int) -> Any:
        text = Text(b"text")
        texts.append(weakref.ref(text))
        return [memoryview(text)] if pa.types.is_list(kind) else memoryview(text)

    expected = [b"text"] if pa.types.is_list(kind) else b"text"
    assert values(rs.lookup(fetch, kind), [1, 2]) == [expected] * 2
    gc.collect()
    assert [text() for text in texts] == [None, None]
