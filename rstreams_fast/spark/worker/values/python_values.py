"""Converts Arrow arrays to lists of Python values."""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.worker.values.arrow_parts import fields_of, pyarrow_version
from rstreams_fast.spark.worker.values.zones import zone_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["python_values"]

_MAPS_AS_PYDICTS: Final = 20
"""The first pyarrow version whose ``Array.to_pylist`` can return maps as dicts."""


def python_values(array: pa.Array) -> list[Any]:
    """Return the elements of ``array`` as Python values: maps as dicts, times in their time zone.

    Raises ``ValueError`` if a map has a key twice, or if Python does not know the time zone.
    """
    kind = array.type
    name = _zone_of_type(kind)
    if name is None or _has_zoneinfo(name):
        return _to_pylist(array, kind)
    zone = zone_of(name)
    utc_kind = _type_in_utc(kind)
    return [_value_in_zone(value, zone) for value in _to_pylist(array.cast(utc_kind), utc_kind)]


def _to_pylist(array: pa.Array, kind: pa.DataType) -> list[Any]:
    import pyarrow as pa

    if not pa.types.is_nested(kind):
        return list(array.to_pylist())
    if pyarrow_version() >= _MAPS_AS_PYDICTS:
        return list(array.to_pylist(maps_as_pydicts="strict"))
    return [_with_dicts(value, kind) for value in array.to_pylist()]


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return ``value``, an element of a ``to_pylist`` result, with a dict for each list of pairs.

    ``Array.to_pylist`` makes a list of pairs from each Arrow map.
    """
    import pyarrow as pa

    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        key, item = kind.key_type, kind.item_type
        pairs = [(_with_dicts(k, key), _with_dicts(v, item)) for k, v in value]
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError(f"a map has a key twice: {pairs}")
        return found
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in fields_of(kind)}
    return [_with_dicts(one, kind.value_type) for one in value]


def _zone_of_type(kind: pa.DataType) -> str | None:
    """Return the time zone of the timestamps in the type ``kind``; ``None`` without a time zone."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        zone: str | None = kind.tz
        return zone
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return next(filter(None, map(_zone_of_type, parts)), None)


@functools.cache
def _has_zoneinfo(name: str) -> bool:
    """Return whether pyarrow makes datetimes with exact offsets in the time zone ``name``.

    pyarrow does not know some of Spark's zones. Before version 25 pyarrow prefers pytz, which
    rounds offsets to minutes: before the introduction of standard time, most offsets have seconds.
    """
    import pyarrow as pa

    try:
        zone = pa.lib.string_to_tzinfo(name)
    except (KeyError, ValueError):
        return False
    return isinstance(zone, zoneinfo.ZoneInfo | dt.timezone)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type ``kind`` with UTC in place of the time zones of timestamps in it."""
    import pyarrow as pa

    def field_in_utc(place: int) -> pa.Field:
        field = kind.field(place)
        return field.with_type(_type_in_utc(field.type))

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(list(map(field_in_utc, range(kind.num_fields))))
    if pa.types.is_map(kind):
        return pa.map_(_type_in_utc(kind.key_type), _type_in_utc(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.list_ if pa.types.is_list(kind) else pa.large_list)(field_in_utc(0))
    return kind


def _value_in_zone(value: Any, zone: dt.tzinfo) -> Any:
    if isinstance(value, dt.datetime):
        return value if value.tzinfo is None else value.astimezone(zone)
    if isinstance(value, dict):
        return {_value_in_zone(key, zone): _value_in_zone(one, zone) for key, one in value.items()}
    return [_value_in_zone(one, zone) for one in value] if isinstance(value, list) else value
