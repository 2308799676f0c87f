"""Converts the results of calls to Arrow arrays, and back.

The journal of the user's ``Policy`` writes these arrays to files. A repeated task then reads the
results of earlier calls from the files, and does not make these calls again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.spark.worker.values.conversions import Columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchesForm", "ColumnForm"]


class ColumnForm:
    """Converts the results of ``lookup`` and ``enrich`` to an Arrow array, and back.

    With one declared column, a result is a value of this column. With several declared columns, a
    result is a row, and the elements of the array are structs.
    """

    def __init__(self, columns: Columns) -> None:
        import pyarrow as pa

        self._columns = columns
        fields = list(zip(columns.names, columns.types, strict=True))
        self._is_row = len(fields) > 1
        self.type = pa.struct(fields) if self._is_row else columns.types[0]
        self.text = str(fields) if self._is_row else str(self.type)

    def array(self, answers: list[Any]) -> pa.Array:
        """Return an Arrow array of ``answers``, the results of several calls."""
        import pyarrow as pa

        arrays = self._columns.arrays(answers, str)
        if not self._is_row:
            return arrays[0]
        nulls = pa.array([answer is None for answer in answers], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=nulls)

    def value(self, scalar: pa.Scalar) -> Any:
        """Convert ``scalar``, an element of an array that ``self.array`` returned, to Python."""
        return scalar.as_py()


class BatchesForm:
    """Converts the results of ``map_batches`` to an Arrow array, and back.

    A result is a list of record batches. All record batches have the same schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._schema = schema
        self.type = pa.large_binary()
        self.text = f"batches of {schema.to_string(show_schema_metadata=False)}"

    def array(self, answers: list[Any]) -> pa.Array:
        """Return an Arrow array with one binary value per call: an IPC stream of its batches."""
        import pyarrow as pa

        streams = []
        for batches in answers:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            streams.append(sink.getvalue().to_pybytes())
        return pa.array(streams, self.type)

    def value(self, scalar: pa.Scalar) -> Any:
        """Return the record batches of one call, which ``scalar`` contains as an IPC stream."""
        import pyarrow as pa

        with pa.ipc.open_stream(scalar.as_buffer()) as reader:
            return list(reader)
