"""Converts the keys of ``lookup`` and ``enrich`` to Python values for the user's function."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
import math
import sys
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rstreams_fast.calls.memory.sizes import bytes_of
from rstreams_fast.spark.worker.values.python_values import python_values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PythonColumn",
    "as_argument",
    "fields_of",
    "hashable_keys",
    "keys_of",
    "loaded_pandas",
    "own_names",
    "to_plain",
]


class PythonColumn:
    """A key column that is a list of Python objects, with the interface of an Arrow array.

    It has only those methods of an Arrow array that stages use.
    """

    def __init__(self, values: list[Any], kind: str = "") -> None:
        """``kind`` is Spark's name for the type of the keys, such as ``timestamp``."""
        self.values = values
        self.type = kind
        self.null_count = values.count(None)

    def __len__(self) -> int:
        return len(self.values)

    def get_total_buffer_size(self) -> int:
        """Return an estimate of the memory that the keys take, in bytes."""
        return sum(map(bytes_of, self.values))

    def slice(self, start: int, rows: int) -> PythonColumn:
        return PythonColumn(self.values[start : start + rows], self.type)

    def is_valid(self) -> pa.Array:
        import pyarrow as pa

        return pa.array([value is not None for value in self.values], pa.bool_())

    def filter(self, mask: pa.Array) -> PythonColumn:
        return PythonColumn(list(itertools.compress(self.values, mask.to_pylist())), self.type)


def keys_of(array: pa.Array | PythonColumn, name: str) -> list[Any]:
    """Return the values of ``array``, the key column ``name``, as Python objects.

    Raises ``TypeError`` or ``ValueError``, which names the column, if Python cannot hold a value.
    """
    if isinstance(array, PythonColumn):
        return array.values
    kind = array.type
    try:
        return _to_list(array)
    except TypeError as unhashable:
        raise TypeError(
            f"the key column {name} of {kind} has map keys that are no keys of a dict "
            f"({unhashable})"
        ) from unhashable
    # pyarrow raises NotImplementedError if a struct or a list contains an interval of months.
    except NotImplementedError as unknown:
        raise TypeError(
            f"the key column {name} of {kind} has a part that Python has no value for ({unknown})"
        ) from unknown
    except (KeyError, OverflowError, ValueError) as refused:
        raise ValueError(
            f"the key column {name} of {kind} has a value that Python cannot hold ({refused!r})"
        ) from refused


class _KeyList(list[Any]):
    """A list that can be the key of a dict. Its hash is computed once, when the list is made."""

    __slots__ = ("hash",)

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.hash = hash(tuple(self))

    def __hash__(self) -> int:  # type: ignore[override]
        return self.hash

    def __reduce_ex__(self, protocol: object) -> Any:
        return list, (list(self),)  # a copy or a pickle of this object is a plain list


class _KeyDict(dict[Any, Any]):
    """A dict that can be the key of a dict. Its hash is computed once, when the dict is made."""

    __slots__ = ("hash",)

    def __init__(self, items: Iterable[tuple[Any, Any]]) -> None:
        super().__init__(items)
        self.hash = hash(frozenset(self.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return self.hash

    def __reduce_ex__(self, protocol: object) -> Any:
        return dict, (dict(self),)  # a copy or a pickle of this object is a plain dict


def hashable_keys(keys: list[Any], array: pa.Array | PythonColumn) -> list[Any]:
    """Return ``keys``, the values of ``array``, as objects that can be the keys of a dict.

    Two of these objects are equal if Spark considers the keys equal. Dicts and lists become dicts
    and lists that have a hash. All NaNs become the same object. When clocks are put back, a local
    time occurs twice: the datetimes of these two times become unequal.
    """
    import pyarrow as pa

    kind = None if isinstance(array, PythonColumn) else array.type
    if kind is None or pa.types.is_nested(kind) or pa.types.is_timestamp(kind):
        return list(map(_hashable, keys))
    return list(map(_same_nan, keys)) if pa.types.is_floating(kind) else keys


def _same_nan(value: Any) -> Any:
    return value if value == value else math.nan  # noqa: PLR0124 - only NaN is not


def _with_fold_zone(value: dt.datetime) -> dt.datetime:
    """Return ``value``. If it has ``fold=1``, return a copy with another object for the time zone.

    When clocks are put back, a local time occurs twice: the second time has ``fold=1``. Python
    ignores ``fold`` when it compares two datetimes that have the same zone object. With two zone
    objects, the two times are unequal.
    """
    zone = value.tzinfo
    if not value.fold or not isinstance(zone, zoneinfo.ZoneInfo):
        return value
    return value.replace(tzinfo=_fold_zone(zone.key))


@functools.cache
def _fold_zone(zone: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo.no_cache(zone)


def as_argument(value: Any) -> Any:
    """Undo the changes that ``hashable_keys`` made, so that the user's function gets plain values.

    ``hashable_keys`` gave datetimes with ``fold=1`` another zone object, and replaced lists and
    dicts by lists and dicts that have a hash.
    """
    if type(value) is dt.datetime:
        zone = value.tzinfo
        if value.fold and isinstance(zone, zoneinfo.ZoneInfo):
            return value.replace(tzinfo=zoneinfo.ZoneInfo(zone.key))
        return value
    if isinstance(value, dict):
        return {as_argument(key): as_argument(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(as_argument, value))
    return tuple(map(as_argument, value)) if type(value) is tuple else value


def _hashable(value: Any) -> Any:
    make = _MAKE_HASHABLE.get(type(value))
    return value if make is None else make(value)


_MAKE_HASHABLE: dict[type, Callable[[Any], Any]] = {
    float: _same_nan,
    dt.datetime: _with_fold_zone,
    list: lambda values: _KeyList(map(_hashable, values)),
    dict: lambda items: _KeyDict(
        (_hashable(key), _hashable(value)) for key, value in items.items()
    ),
}


def own_names(value: Any) -> Sequence[str] | None:
    """Return the field names of a ``Row`` or named tuple; ``None`` for any other value."""
    if isinstance(value, tuple) and type(value) is not tuple:
        return getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    return None


@functools.cache
def _names_in(kind: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    # Classes of the libraries msgspec and pydantic have their field names in these attributes.
    for names in ("__struct_fields__", "model_fields", "__fields__"):
        found = getattr(kind, names, None)
        if isinstance(found, dict if names != "__struct_fields__" else tuple):
            return tuple(found)
    attributes = getattr(kind, "__attrs_attrs__", None)  # set on classes of the library attrs
    return None if attributes is None else tuple(each.name for each in attributes)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a data class or of a msgspec, pydantic or attrs object, by name.

    Return ``None`` for any other value.
    """
    kind: Any = type(value)
    names = _names_in(kind)
    return None if names is None else {name: getattr(value, name) for name in names}


def loaded_pandas() -> Any:
    """Return the module pandas if its import is complete, else ``None``.

    Before the import is complete, no value of a pandas type exists.
    """
    pandas = sys.modules.get("pandas")
    # pandas defines ``DataFrame`` at the end of its import, so then the import is complete.
    return pandas if hasattr(pandas, "DataFrame") else None


def to_plain(value: Any) -> Any:
    """Convert a value of a numpy, pandas or Spark type to a Python value that Arrow can convert.

    The elements of lists, tuples and dicts are converted, too. Other values are unchanged.
    """
    # The attribute ``__UDT__`` exists on values of a user-defined type of Spark.
    if (udt := getattr(value, "__UDT__", None)) is not None:
        return to_plain(udt.serialize(value))
    # Do not import numpy or pandas: values of their types exist only after their import.
    np, pd = sys.modules.get("numpy"), loaded_pandas()
    if np is not None and isinstance(value, np.datetime64):
        day = value.item()
        value = value.astype("M8[us]").item() if isinstance(day, int) else day
    elif np is not None and isinstance(value, np.timedelta64):
        value = value.astype("m8[us]").item()
    elif np is not None and isinstance(value, np.generic):
        value = value.item()
    elif pd is not None and (value is pd.NA or value is pd.NaT):
        value = None
    elif pd is not None and isinstance(value, pd.Timestamp):
        value = value.to_pydatetime(warn=False)
    elif pd is not None and isinstance(value, pd.Timedelta):
        value = value.to_pytimedelta()
    elif isinstance(value, list) or (np is not None and isinstance(value, np.ndarray)):
        return [to_plain(one) for one in value]
    elif isinstance(value, tuple):
        names, values = own_names(value), tuple(map(to_plain, value))
        if names is None or len(set(names)) != len(names):
            return values
        return dict(zip(names, values, strict=True))
    elif isinstance(value, dict):
        return {to_plain(key): to_plain(one) for key, one in value.items()}
    elif (fields := fields_of(value)) is not None:
        return to_plain(fields)
    elif type(value).__name__ == "VariantVal":  # Spark's class for variants, since Spark 4.0
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    return value


def _to_list(array: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        # To make a datetime with a time zone takes microseconds. Many timestamps of a column are
        # equal, so make only one datetime for equal timestamps.
        encoded = array.dictionary_encode()
        values = python_values(encoded.dictionary)
        if encoded.null_count:
            return [None if i is None else values[i] for i in encoded.indices.to_pylist()]
        return [values[i] for i in encoded.indices.to_pylist()]
    return python_values(array)
