"""Arrow at the ends of a stream, through its PyCapsule interface: whoever has the two methods
``__arrow_c_stream__`` or ``__arrow_c_array__`` is welcome, and no buffer is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.core._common import check_count
from rstreams_fast.errors import AlreadySubscribed
from rstreams_fast.streams.gathering import gather, gather_async
from rstreams_fast.streams.stream import Stream

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["from_arrow", "to_arrow", "to_arrow_async"]


def from_arrow(source: Any, /, *, chunk: int | None = None, schema: Any = None) -> Stream[Any]:
    """The record batches of any tabular Arrow data, as ``pyarrow.RecordBatch``, without a copy.

    ``source`` has ``__arrow_c_stream__`` (tables, readers, data frames of pandas, polars, DuckDB
    and others), whose batches are read as they are asked for, or ``__arrow_c_array__`` (one record
    batch). ``chunk``: no element has more rows than that; ``None``: they are as the source has
    them. ``schema``: what the source is asked to give, as far as it can.

    A table is read anew for each subscriber. A reader can be read once: a second subscriber gets
    a ``RuntimeError`` by ``on_error``. A reader is closed when the stream ends.
    """
    stream = hasattr(source, "__arrow_c_stream__")
    if not stream and not hasattr(source, "__arrow_c_array__"):
        raise TypeError(
            "source must have __arrow_c_stream__ or __arrow_c_array__ (the Arrow PyCapsule "
            f"interface), got {type(source).__name__}"
        )
    pa = _pyarrow("from_arrow")
    if isinstance(source, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(source.type):
        raise TypeError(f"source must be tabular: a table, say, not an array of {source.type}")
    rows = None if chunk is None else min(check_count("chunk", chunk, 1), UNBOUNDED)
    return Stream(_ArrowOrigin(source, stream, rows, schema))


class _ArrowOrigin:
    def __init__(self, source: Any, stream: bool, chunk: int | None, schema: Any) -> None:
        self._source = source
        self._stream = stream
        self._chunk = chunk
        self._schema = schema
        self._used = threading.Lock()  # taken by the first who reads a reader

    def open(self) -> Iterator[Any]:
        pa = _pyarrow("from_arrow")
        if not self._stream:
            batch = pa.record_batch(self._source, schema=self._schema)
            return iter([batch] if self._chunk is None else list(self._slices(batch)))
        one_shot = isinstance(self._source, pa.RecordBatchReader)
        if one_shot and not self._used.acquire(blocking=False):
            raise AlreadySubscribed(
                "§1.10: the source is a RecordBatchReader, which can be read once, and was "
                "subscribed before; give from_arrow a table"
            )
        return self._read(pa.RecordBatchReader.from_stream(self._source, self._schema))

    def _read(self, reader: Any) -> Iterator[Any]:
        with reader:
            for batch in reader:
                yield from [batch] if self._chunk is None else self._slices(batch)

    def _slices(self, batch: Any) -> Iterator[Any]:
        for at in range(0, batch.num_rows, self._chunk or 1):
            yield batch.slice(at, self._chunk)

    def describe(self) -> str:
        bound = "" if self._chunk is None else f", at most {self._chunk} rows each"
        return f"from_arrow({type(self._source).__name__}){bound}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._source, self._stream, self._chunk, self._schema))


def to_arrow(publisher: Publisher[Any], *, schema: Any = None) -> pa.Table:
    """Return the rows of all elements as one ``pyarrow.Table``, without a copy.

    The elements are tabular Arrow data: record batches, tables, whatever has
    ``__arrow_c_stream__`` or ``__arrow_c_array__``. They must have one schema: ``schema``, or that
    of the first. Else it is a ``ValueError``, and anything else a ``TypeError``; both cancel
    upstream. A stream without elements, as that of a table without rows may be, gives a table
    without rows: of ``schema``, or else without columns.

    Blocks; inside a running event loop that is a ``RuntimeError``: use :func:`to_arrow_async`
    there.
    """
    return gather("to_arrow", publisher, _Gathered(_pyarrow("to_arrow"), schema))


async def to_arrow_async(publisher: Publisher[Any], *, schema: Any = None) -> pa.Table:
    """Return all rows as one table, without blocking the loop; else as :func:`to_arrow`.

    At most 8 elements are asked for ahead. Cancelling the task cancels upstream, once.
    """
    return await gather_async(publisher, _Gathered(_pyarrow("to_arrow_async"), schema))


class _Gathered:
    def __init__(self, pa: Any, schema: Any) -> None:
        self._pa = pa
        self._schema = schema
        self._tables: list[Any] = []

    def add_all(self, elements: list[Any]) -> None:
        # Whoever makes a table of record batches has a look at all of them: at their schemas, too.
        try:
            table = self._pa.Table.from_batches(elements, self._schema)
        except Exception:
            for element in elements:  # one by one: what is none is welcome, or what is wrong named
                self.add(element)
        else:
            self._schema = table.schema
            self._tables.append(table)

    def add(self, element: Any) -> None:
        pa = self._pa
        if isinstance(element, pa.RecordBatch):
            batches = [element]
        elif isinstance(element, pa.Table):
            batches = element.to_batches()
        elif hasattr(element, "__arrow_c_stream__"):
            with pa.RecordBatchReader.from_stream(element) as reader:
                batches = list(reader)
                self._check(reader.schema)
        elif hasattr(element, "__arrow_c_array__"):
            batches = [pa.record_batch(element)]
        else:
            raise TypeError(
                f"to_arrow takes tabular Arrow data (record batches, tables), got "
                f"{type(element).__name__}"
            )
        if isinstance(element, pa.Table):
            self._check(element.schema)
        for batch in batches:
            self._check(batch.schema)
        if batches:
            self._tables.append(pa.Table.from_batches(batches, self._schema))

    def _check(self, schema: Any) -> None:
        if self._schema is None:
            self._schema = schema
        elif not schema.equals(self._schema):
            raise ValueError(
                f"to_arrow: all elements must have one schema; first {_fields(self._schema)}, "
                f"then {_fields(schema)}"
            )

    def result(self) -> Any:
        if self._tables:
            return self._pa.concat_tables(self._tables)
        schema = self._pa.schema([]) if self._schema is None else self._schema
        return self._pa.Table.from_batches([], schema)


def _fields(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise ImportError(
            f"{name} needs pyarrow, which is not installed: pip install pyarrow"
        ) from missing
    return pa
