"""Counts the bytes that a user's value keeps alive, and replaces views by copies."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import functools
import gc
import operator
import sys
import types
import uuid
from collections import deque
from typing import Any, Final, cast

__all__ = ["bytes_of", "without_views"]

MOST_PARTS: Final = 100_000
"""The most parts of objects of unknown types that ``bytes_of`` visits."""

OBJECT_BYTES: Final = 300
"""About how many bytes an Arrow object takes, besides its buffers."""

PANDAS_BYTES: Final = 1600
"""About how many bytes pandas takes for all columns of one type, besides their values."""

_PARTLESS: Final = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray),
        *(decimal.Decimal, dt.date, dt.datetime, dt.time, dt.timedelta, uuid.UUID),
    }
)
"""The types for which ``sys.getsizeof`` returns the whole size."""

_CONTAINERS: Final = frozenset({list, tuple, set, frozenset, deque})

_SHARED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
)
"""Types of objects that many objects share: ``bytes_of`` does not count such objects."""


def _loaded_module(name: str) -> Any:
    """Return a module if its import is complete, else ``None``."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return None if spec is None or getattr(spec, "_initializing", False) else sys.modules[name]


@functools.lru_cache(256)
def _is_plain(kind: type) -> bool:
    if kind in _PARTLESS:
        return True
    np = _loaded_module("numpy")
    return np is not None and issubclass(kind, np.number | np.bool_ | np.datetime64)


def without_views(value: Any) -> Any:
    """Return ``value`` with views replaced by copies, also in lists, tuples and dict values.

    A view keeps its base alive: a row of a matrix keeps the whole matrix in memory.
    """
    kind: Any = type(value)
    if _is_plain(kind):
        return value
    if kind is list or isinstance(value, tuple):
        if all(map(_is_plain, set(map(type, value)))):
            return value
        parts = list(map(without_views, value))
        if all(map(operator.is_, parts, value)):
            return value
        return parts if kind is list else _tuple_as(value, parts)
    if kind is dict:
        if all(map(_is_plain, set(map(type, value.values())))):
            return value
        return dict(zip(value, map(without_views, value.values()), strict=True))
    if kind is memoryview:
        return _owned_memory(value)
    if (np := _loaded_module("numpy")) and isinstance(value, np.ndarray | np.void):
        return value if value.base is None else value.copy()
    if (pa := _loaded_module("pyarrow")) and isinstance(value, pa.Scalar | pa.Array):
        return _owned_arrow(value)
    if (pd := _loaded_module("pandas")) and isinstance(value, pd.Series | pd.DataFrame | pd.Index):
        return value.copy(deep=True)
    return value


def _tuple_as(value: tuple[Any, ...], parts: list[Any]) -> Any:
    """Return ``parts`` as a tuple of the type of ``value``, such as a ``Row`` or a named tuple."""
    copied = tuple.__new__(type(value), parts)
    with contextlib.suppress(AttributeError):  # most tuples have no __dict__
        copied.__dict__.update(value.__dict__)
    return copied


def _owned_memory(view: memoryview) -> memoryview:
    copied = memoryview(view.tobytes())
    if view.format == "B" and view.ndim == 1:
        return copied
    try:
        return copied.cast(cast(Any, view.format), cast(Any, view.shape))
    except (TypeError, ValueError):  # memoryview cannot cast to every format: return the view
        return view


def _owned_arrow(value: Any) -> Any:
    import pyarrow as pa

    # pyarrow cannot copy values of some types: return such a value itself.
    with contextlib.suppress(pa.ArrowException):
        if isinstance(value, pa.Scalar):
            return pa.repeat(value, 1)[0]
        # The buffers may belong to a large numpy array. concat_arrays copies only the part in use.
        return pa.concat_arrays([value])
    return value


def bytes_of(value: Any, most: int = sys.maxsize) -> int:
    """Return about how many bytes ``value`` keeps alive. The count stops above ``most``.

    A view counts as much as its base. An object with more than ``MOST_PARTS`` parts counts as more
    than ``most``: it may refer to a large part of the program.
    """
    kind: Any = type(value)
    if _is_plain(kind):
        return sys.getsizeof(value)
    size, visited = 0, 0
    left, seen = [value], set[int]()
    while left and size <= most:
        part = left.pop()
        kind = type(part)
        if _is_plain(kind):
            size += sys.getsizeof(part)
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        if kind is dict:
            size += sys.getsizeof(part)
            left.extend(part)
            left.extend(part.values())
        elif kind in _CONTAINERS:
            size += sys.getsizeof(part)
            left.extend(part)
        elif (known := _size_and_parts(part)) is not None:
            size += known[0]
            left.extend(known[1])
        elif not isinstance(part, _SHARED):
            size += sys.getsizeof(part)
            parts = gc.get_referents(part)
            visited += len(parts)
            if visited > MOST_PARTS:
                return most + 1
            left.extend(parts)
    return size


def _size_and_parts(value: Any) -> tuple[int, list[Any]] | None:
    """Return the bytes of ``value`` itself, and its parts; ``None`` if its type is not known."""
    if type(value) is memoryview:
        return sys.getsizeof(value), [value.obj]
    if (np := _loaded_module("numpy")) and isinstance(value, np.ndarray | np.generic):
        size = sys.getsizeof(value)
        if isinstance(value, np.ndarray | np.void) and value.base is not None:
            return size, [value.base]
        return size, list(value.flat) if value.dtype == object else []
    if (pa := _loaded_module("pyarrow")) is not None:
        if isinstance(value, pa.Scalar):
            return OBJECT_BYTES + pa.repeat(value, 1).get_total_buffer_size(), []
        if isinstance(value, pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table):
            return OBJECT_BYTES + value.get_total_buffer_size(), []
        if isinstance(value, pa.Buffer):
            return OBJECT_BYTES + value.size, []
    if (pd := _loaded_module("pandas")) and isinstance(value, pd.Series | pd.DataFrame | pd.Index):
        # Measure a shallow copy, because getsizeof makes a DataFrame cache its columns permanently.
        bare = value.copy(deep=False)
        kinds = len(set(bare.dtypes)) if isinstance(bare, pd.DataFrame) else 1
        # Return no parts: the size that pandas returns includes them.
        return sys.getsizeof(bare) + PANDAS_BYTES * kinds, []
    return None
