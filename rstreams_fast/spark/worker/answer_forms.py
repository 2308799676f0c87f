"""How a journal stores the answers of stages: in their declared types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast.spark.worker.values.conversions import Columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnForm"]


class ColumnForm:
    """The answers are values of one declared column, or rows of several."""

    def __init__(self, columns: Columns) -> None:
        import pyarrow as pa

        self._columns = columns
        fields = list(zip(columns.names, columns.types, strict=True))
        self._is_row = len(fields) > 1
        self.type = pa.struct(fields) if self._is_row else columns.types[0]
        self.text = str(fields) if self._is_row else str(self.type)

    def array(self, answers: list[Any]) -> pa.Array:
        """Return the column of ``answers``."""
        import pyarrow as pa

        arrays = self._columns.arrays(answers, str)
        if not self._is_row:
            return arrays[0]
        nulls = pa.array([answer is None for answer in answers], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=nulls)

    def value(self, scalar: pa.Scalar) -> Any:
        """Return the answer that became ``scalar``."""
        return scalar.as_py()
