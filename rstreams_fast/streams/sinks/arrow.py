"""``to_arrow``: makes one Arrow table of all elements, without a copy of any buffer.

An element is a record batch, a table, or an object with ``__arrow_c_stream__`` or
``__arrow_c_array__``, the methods of Arrow's PyCapsule interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstreams_fast._third_parties import pyarrow_for, reader_of
from rstreams_fast.api import Publisher
from rstreams_fast.streams.sinks.collector import collect, collect_async

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["to_arrow", "to_arrow_async"]


def to_arrow(publisher: Publisher[Any], *, schema: Any = None) -> pa.Table:
    """Return the rows of all elements as one table: see ``Stream.to_arrow``."""
    collector = _TableCollector(pyarrow_for("to_arrow"), schema)
    return collect("to_arrow", publisher, collector, in_lists=True)


async def to_arrow_async(publisher: Publisher[Any], *, schema: Any = None) -> pa.Table:
    """Return the same table as ``to_arrow``, but await the end of the stream."""
    return await collect_async(publisher, _TableCollector(pyarrow_for("to_arrow_async"), schema))


class _TableCollector:
    def __init__(self, pa: Any, schema: Any) -> None:
        self._pa = pa
        self._schema = schema
        self._tables: list[Any] = []

    def add_all(self, elements: list[Any]) -> None:
        try:
            table = self._pa.Table.from_batches(elements, self._schema)
        except Exception:
            # ``from_batches`` accepts only record batches with the same schema. The slower method
            # ``add`` accepts other Arrow data, such as tables, too, and its error message describes
            # an element that does not fit.
            for element in elements:
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
            self._check(element.schema)
        elif hasattr(element, "__arrow_c_stream__"):
            with reader_of(element) as reader:
                batches = list(reader)
                self._check(reader.schema)
        elif hasattr(element, "__arrow_c_array__"):
            batches = [pa.record_batch(element)]
        else:
            raise TypeError(
                f"to_arrow takes tabular Arrow data (record batches, tables), got "
                f"{type(element).__name__}"
            )
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
        schema = self._pa.schema([]) if self._schema is None else self._schema
        if self._tables and len(schema):
            return self._pa.concat_tables(self._tables)
        # For tables without columns, ``concat_tables`` would lose the number of rows.
        batches = [batch for table in self._tables for batch in table.to_batches()]
        return self._pa.Table.from_batches(batches, schema)


def _fields(schema: Any) -> str:
    return ", ".join(map(_field, schema)) or "no columns"


def _field(field: Any) -> str:
    return f"{field.name}: {field.type}{'' if field.nullable else ' not null'}"
