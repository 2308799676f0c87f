"""Keys and results as pandas Series, where Spark has no Arrow UDFs (before 4.1).

A key is an array of one element, or of none for null; so is a result.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rstreams_fast.spark.worker.keys import PythonColumn, plain

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["run_on_series"]


def run_on_series(
    run: Callable[[Iterator[Any]], Iterator[Any]], batches: Iterator[tuple[pd.Series, ...]]
) -> Iterator[pd.Series]:
    """Yield a Series for each array of ``run``; the last of the inputs says what the keys are."""
    import pandas as pd

    outputs = run(map(_keys_of, batches))
    try:
        for array in outputs:
            values = array.to_pylist(maps_as_pydicts="strict")
            yield pd.Series([[] if value is None else [value] for value in values], dtype=object)
    finally:
        outputs.close()  # type: ignore[attr-defined]


def _keys_of(series: tuple[pd.Series, ...]) -> Any:
    *keys, kinds = series
    zone, *types = kinds.iloc[0].split("|") if len(kinds) else ("UTC", *("" for _ in keys))
    columns = []
    for key, kind in zip(keys, types, strict=True):
        own_zone = _zone(zone) if kind == "timestamp" else None
        values = [plain(one[0], own_zone) if len(one) else None for one in key]
        columns.append(PythonColumn(values, kind))
    return columns[0] if len(columns) == 1 else tuple(columns)


def _zone(name: str) -> dt.tzinfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):  # "+01:00"
        sign, hours, minutes = name[-6], int(name[-5:-3]), int(name[-2:])
        offset = dt.timedelta(hours=hours, minutes=minutes)
        return dt.timezone(-offset if sign == "-" else offset)
