"""``from_arrow``: a source of tabular Arrow data, read through Arrow's PyCapsule interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from rstreams_fast._checks import check_count
from rstreams_fast._third_parties import pyarrow_for, reader_of
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.errors import AlreadySubscribedError

__all__ = ["ArrowSource", "arrow_source"]


def arrow_source(source: Any, chunk: int | None, schema: Any) -> ArrowSource:
    stream = hasattr(source, "__arrow_c_stream__")
    if not stream and not hasattr(source, "__arrow_c_array__"):
        raise TypeError(
            "source must have __arrow_c_stream__ or __arrow_c_array__ (the Arrow PyCapsule "
            f"interface), got {type(source).__name__}"
        )
    pa = pyarrow_for("from_arrow")
    if isinstance(source, pa.Array | pa.ChunkedArray) and not pa.types.is_struct(source.type):
        raise TypeError(f"source must be tabular: a table, say, not an array of {source.type}")
    rows = None if chunk is None else min(check_count("chunk", chunk, 1), UNBOUNDED)
    return ArrowSource(source, stream, rows, schema)


class ArrowSource:
    is_sequence: Final = False

    def __init__(self, source: Any, stream: bool, chunk: int | None, schema: Any) -> None:
        self._source = source
        self._stream = stream
        self._chunk = chunk
        self._schema = schema
        # An iterator, such as a RecordBatchReader, can be read only once. So its first subscriber
        # acquires ``_used``, a lock, and never releases it. Then ``open`` refuses any other
        # subscriber. Arrow has no mark for sources that can be read once and are no iterators.
        self._used = threading.Lock()

    def open(self) -> Iterator[Any]:
        pa = pyarrow_for("from_arrow")
        if not self._stream:
            batch = pa.record_batch(self._source, schema=self._schema)
            return iter([batch] if self._chunk is None else list(self._slices(batch)))
        one_shot = hasattr(self._source, "__next__")
        if one_shot and not self._used.acquire(blocking=False):
            raise AlreadySubscribedError(
                f"§1.10: the source is of type {type(self._source).__name__}, which can be read "
                "once, and was subscribed before; give from_arrow a table"
            )
        return self._read(reader_of(self._source, self._schema))

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
