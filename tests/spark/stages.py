"""What goes into stages as plain iterator functions, and what comes out. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

K = pa.schema([("k", pa.int64())])
D = pa.schema([("d", pa.int64())])
V = pa.schema([("v", pa.int64())])


def batches(*keys: Iterable[Any], kind: pa.DataType = K[0].type) -> Iterator[pa.RecordBatch]:
    """Yield a batch of a column ``k`` for each of these."""
    for some in keys:
        yield pa.RecordBatch.from_pydict({"k": pa.array(some, kind)})


def parts(rows: int, size: int) -> list[pa.RecordBatch]:
    """Return batches of the keys 0, 1, ..., of so many each."""
    return list(batches(*(range(i, min(i + size, rows)) for i in range(0, rows, size))))


def outputs(stage: Any, inputs: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return all that a stage makes of some batches."""
    return pa.Table.from_batches(list(stage.as_map_fn()(iter(inputs))))


def values(stage: Any, *keys: Iterable[Any], **words: Any) -> list[Any]:
    """Return the last column of what a stage makes of keys."""
    made = stage.as_map_fn()(batches(*keys, **words))
    return [value for batch in made for value in batch.column(-1).to_pylist()]
