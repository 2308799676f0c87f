"""Runs ``lookup`` as a pandas UDF: PySpark before 4.1 has no Arrow UDFs.

pandas turns integers beside a null into floats, and a null struct into a struct of nulls. So each
key and each result is wrapped in an array of one value (null: an empty array), and a Series
contains these arrays. Inside of a nested key pandas still turns integers beside a null into floats;
this module turns them back. Timestamps come as texts in UTC, because pandas lacks some of Spark's
time zones, and cannot distinguish the two hours with the same local time when clocks are put back.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.worker.keys import PythonColumn, to_plain
from rstreams_fast.spark.worker.values.python_values import python_values
from rstreams_fast.spark.worker.values.zones import zone_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["run_on_series"]

_INTEGER: Final = re.compile(r"\b(tinyint|smallint|int|bigint)\b(?!:)")
_FRACTION: Final = re.compile(r"\b(float|double)\b(?!:)")
"""Like ``_INTEGER``, matches type names, and no field names, in texts like ``struct<a:bigint>``."""

MOST_EXACT: Final = 2**53
"""The largest number up to which a float represents every integer exactly."""


def run_on_series(
    run: Callable[[Iterator[Any]], Iterator[Any]], batches: Iterator[tuple[pd.Series, ...]]
) -> Iterator[pd.Series]:
    """Pass the keys of each batch to ``run``, and yield each array of results as a Series.

    The user's function is called with a key for each row. A batch is a tuple of Series: first, one
    Series for each key column; then, a Series with the time zone of the Spark session and the types
    of the key columns; last, a Series with one array for each row. The array has an element for
    each key column: the key as a text if its type is timestamp; otherwise a null.
    """
    import pandas as pd

    outputs = run(map(_keys_of, batches))
    try:
        for array in outputs:
            lists = [[] if value is None else [value] for value in python_values(array)]
            yield pd.Series(lists, dtype=object)
    finally:
        outputs.close()  # type: ignore[attr-defined]


def _keys_of(series: tuple[pd.Series, ...]) -> Any:
    *keys, kinds, timestamps = series
    zone, *types = kinds.iloc[0].split("|") if len(kinds) else ("UTC", *("" for _ in keys))
    columns = []
    for place, (key, kind) in enumerate(zip(keys, types, strict=True)):
        if kind == "timestamp":
            own_zone = zone_of(zone)
            values = [_parse_timestamp(texts[place], own_zone) for texts in timestamps]
        else:
            values = [to_plain(one[0]) if len(one) else None for one in key]
            if "<" in kind and _INTEGER.search(kind) and not _FRACTION.search(kind):
                values = [_with_integers(value) for value in values]
        columns.append(PythonColumn(values, kind))
    return columns[0] if len(columns) == 1 else tuple(columns)


def _with_integers(value: Any) -> Any:
    """Return ``value``, a nested key, with the integers and nulls that pandas turned into floats.

    The type of the key has no floats, so that each float in ``value`` was an integer or a null.
    """
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 - only NaN is not
            return None
        if abs(value) > MOST_EXACT:
            raise ValueError(
                "pandas has lost digits of an integer inside of a key, beside a null: before "
                "PySpark 4.1 a lookup gets its keys from pandas; enrich does not"
            )
        return int(value)
    if isinstance(value, list):
        return [_with_integers(one) for one in value]
    if isinstance(value, dict):
        return {_with_integers(key): _with_integers(one) for key, one in value.items()}
    return value


def _parse_timestamp(text: str | None, zone: dt.tzinfo) -> dt.datetime | None:
    if text is None:
        return None
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).astimezone(zone)
