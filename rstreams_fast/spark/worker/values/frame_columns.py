"""Makes Arrow batches from the rows that a function of ``map_batches`` returns.

Frames of pandas are converted as Spark itself converts them.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.worker.keys import fields_of, loaded_pandas
from rstreams_fast.spark.worker.values.arrow_parts import TEXT, family_of, infinities
from rstreams_fast.spark.worker.values.conversions import (
    Columns,
    ValueSource,
    cast_column,
    check_names,
)
from rstreams_fast.spark.worker.values.zones import zone_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LENIENT", "ZONE", "batches_of"]

ZONE: Final = b"zone"
"""The key of the session's time zone in the metadata of a schema."""

LENIENT: Final = b"lenient"
"""A key of a schema's metadata. If set, rows may lack declared fields, and have undeclared ones."""

_NAIVE: Final = frozenset(f"datetime64[{unit}]" for unit in ("D", "h", "m", "s", "ms", "us", "ns"))


def batches_of(rows: Any, schema: pa.Schema, label: str) -> list[Any] | None:
    """Return ``rows`` as record batches. Their schema may still differ from ``schema``.

    ``None`` if ``rows`` is no record batch, table, list of rows, pandas frame or structured array.
    """
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if isinstance(rows, pa.Table):
        return list(rows.to_batches())

    def row_name(row: int) -> str:
        return f"row {row} of what {label} gave"

    if isinstance(rows, list) and (
        not rows or isinstance(rows[0], dict) or fields_of(rows[0]) is not None
    ):
        is_lenient = LENIENT in (schema.metadata or {})
        source = ValueSource(_zone(schema) if is_lenient else None, lenient=is_lenient)
        arrays = Columns(schema.names, schema.types, source).arrays_of_rows(rows, row_name)
        return [pa.RecordBatch.from_arrays(arrays, schema=schema)]
    columns = _columns_by_name(rows, schema, label)
    if columns is None:
        return None
    if not columns:
        return []
    source = ValueSource(_zone(schema), is_frame=True)
    arrays = [_column(columns[field.name], field, source, label, row_name) for field in schema]
    return [pa.RecordBatch.from_arrays(arrays, schema=schema)]


def _columns_by_name(rows: Any, schema: pa.Schema, label: str) -> dict[str, Any] | None:
    """Return the columns of a frame or a structured array; ``None`` for any other value."""
    # Do not import numpy and pandas: if they are not imported yet, ``rows`` is not of their types.
    np, pd = sys.modules.get("numpy"), loaded_pandas()
    if pd is not None and isinstance(rows, pd.DataFrame):
        names = list(rows.columns)
        if not names and not len(rows):
            return {}
        if len(names) == len(schema) and not any(isinstance(name, str) for name in names):
            # A frame that is made from an array has numbers as column names. If no name is a
            # string, match columns by position.
            names = schema.names
        names = list(map(str, names))
        check_names(names, schema, label)
        return {name: rows.iloc[:, place] for place, name in enumerate(names)}
    if np is not None and isinstance(rows, np.ndarray) and rows.dtype.names:
        check_names(rows.dtype.names, schema, label)
        return {name: rows[name] for name in rows.dtype.names}
    return None


def _zone(schema: pa.Schema) -> dt.tzinfo | None:
    zone = (schema.metadata or {}).get(ZONE)
    return None if zone is None else zone_of(zone.decode())


def _column(
    values: Any, field: pa.Field, source: ValueSource, label: str, row_name: Callable[[int], str]
) -> pa.Array:
    """Convert a column of a frame, Series or numpy array to its declared type.

    If Arrow can convert the whole column as Spark would, Arrow does it at once. Otherwise each
    value is converted alone, and an error names the row.
    """
    import pyarrow as pa

    try:
        return _convert_in_bulk(values, field, source, label)
    # pandas, pytz and Arrow raise many kinds of errors. After any of them, convert value by
    # value: a wrong value then raises an error that names its row.
    except Exception:
        if values.dtype.kind != "M" and pa.types.is_timestamp(field.type):
            # In a column of Python objects, Spark reads times without a zone as UTC.
            source = source._replace(zone=dt.UTC)
        columns = Columns([field.name], [field.type], source)
        try:
            return columns.array(0, _to_list(values), row_name)
        except TypeError as mismatch:
            found = _parse(values, field.type)
            if found is None:
                raise mismatch from mismatch.__cause__
            return found


def _convert_in_bulk(values: Any, field: pa.Field, source: ValueSource, label: str) -> pa.Array:
    import pyarrow as pa

    kind, dtype = field.type, values.dtype
    of_pandas = hasattr(values, "array")

    def infer_and_cast() -> pa.Array:
        return cast_column(pa.array(values, from_pandas=of_pandas), field, label)

    if dtype.kind not in "biufmM" or kind.num_fields:
        return infer_and_cast()
    if pa.types.is_timestamp(kind) and kind.tz and str(dtype) in _NAIVE:
        if source.zone is None or not of_pandas:
            raise ValueError("its values have a zone each")
        # If clocks are put back, an hour occurs twice. Choose the second one, as Spark does.
        values = values.dt.tz_localize(source.zone, ambiguous=False)
    try:
        array = pa.array(values, kind, from_pandas=of_pandas)
    except pa.ArrowInvalid:
        return infer_and_cast()
    if pa.types.is_float32(kind) and infinities(array):
        return infer_and_cast()  # infer_and_cast() refuses finite numbers that became infinite
    return array


def _to_list(values: Any) -> list[Any]:
    import pyarrow as pa

    if hasattr(values, "isnull"):
        pairs = zip(values, values.isnull(), strict=True)
        return [None if null else value for value, null in pairs]
    # Arrow converts a whole array of numpy's times, but refuses most single times of numpy.
    return pa.array(values).to_pylist() if values.dtype.kind in "Mm" else list(values)


def _parse(values: Any, kind: pa.DataType) -> pa.Array | None:
    """Parse strings as numbers or booleans, as Spark does.

    ``None`` if ``values`` cannot be parsed so, or if ``kind`` is another type.
    """
    import pyarrow as pa

    is_ = pa.types
    if not (is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind)):
        return None
    try:
        array = pa.array(values, from_pandas=True)
        return array.cast(kind, safe=True) if family_of(array.type) == TEXT else None
    except (pa.ArrowException, TypeError, ValueError):
        return None
