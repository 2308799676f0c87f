"""Makes Arrow batches from the rows that the user's function of ``map_batches`` returns.

A pandas frame is converted to Arrow as Spark itself converts pandas frames.
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
"""A key in the metadata of the declared schema. Its value is the time zone of the Spark session."""

LENIENT: Final = b"lenient"
"""A key in the metadata of the declared schema: rows need not fit it exactly (``rs.lenient``)."""

_NAIVE: Final = frozenset(f"datetime64[{unit}]" for unit in ("D", "h", "m", "s", "ms", "us", "ns"))


def batches_of(rows: Any, schema: pa.Schema, label: str) -> list[Any] | None:
    """Return ``rows`` as record batches. If ``rows`` is Arrow data, it is not cast to ``schema``.

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
    """Return the columns of a pandas frame or a structured numpy array; else ``None``."""
    # Do not import numpy or pandas: values of their types exist only after their import.
    np, pd = sys.modules.get("numpy"), loaded_pandas()
    if pd is not None and isinstance(rows, pd.DataFrame):
        names = list(rows.columns)
        if not names and not len(rows):
            return {}
        if len(names) == len(schema) and not any(isinstance(name, str) for name in names):
            # A frame that was made from an array has numbers in place of column names. If no name
            # is a string, assign the columns by position.
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
    """Convert ``values``, a pandas Series or a numpy array, to the declared type of ``field``.

    Arrow converts the whole column, if its result is the same as Spark's. Otherwise the values are
    converted one by one, and an error names the row.
    """
    import pyarrow as pa

    try:
        return _convert_in_bulk(values, field, source, label)
    # pandas, pytz and Arrow raise many kinds of errors. After any of them, convert the values one
    # by one: then the error for a wrong value names the row.
    except Exception:
        if values.dtype.kind != "M" and pa.types.is_timestamp(field.type):
            # In a column of Python objects, datetimes without a zone are times in UTC, as in Spark.
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
        # When clocks are put back, an hour occurs twice. Choose the second hour, as Spark does.
        values = values.dt.tz_localize(source.zone, ambiguous=False)
    try:
        array = pa.array(values, kind, from_pandas=of_pandas)
    except pa.ArrowInvalid:
        return infer_and_cast()
    if pa.types.is_float32(kind) and infinities(array):
        return infer_and_cast()  # raises an error if a finite number became infinite in float32
    return array


def _to_list(values: Any) -> list[Any]:
    import pyarrow as pa

    if hasattr(values, "isnull"):
        pairs = zip(values, values.isnull(), strict=True)
        return [None if null else value for value, null in pairs]
    # Arrow refuses most ``datetime64`` and ``timedelta64`` objects in a list, but converts an array
    # of them. So convert the array to Python objects here.
    return pa.array(values).to_pylist() if values.dtype.kind in "Mm" else list(values)


def _parse(values: Any, kind: pa.DataType) -> pa.Array | None:
    """Parse ``values``, which are strings, as numbers or booleans, as Spark does.

    Return ``None`` if that fails, or if ``kind`` is no type of numbers or booleans.
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
