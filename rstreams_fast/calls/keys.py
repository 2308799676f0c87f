"""Makes texts and digests of keys.

A key has the same text and digest in every process and every version of Python and pyarrow. Keys
consist of plain values: ``None``, numbers, texts, bytes, dates and times, ``Decimal``, ``UUID``,
record batches, and lists, tuples and dicts of these.
"""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import sys
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

__all__ = ["KEY_BYTES", "KeyDigest", "Keywords", "checked_key", "may_change", "own_copy", "text_of"]

KEY_BYTES: Final = 16
"""The length of a digest, in bytes."""


class Keywords(dict[str, Any]):
    """Keyword arguments in a key. This type makes the keys of fn(x=1) and fn({"x": 1}) differ."""


_PLAIN: Final = frozenset({bool, bytes, float, int, str, type(None)})
"""Types for which ``ascii()`` returns an exact and stable text. ``repr()`` is not stable: which
characters it escapes depends on Python's version of Unicode."""


class KeyDigest:
    """Makes digests of the keys of one function. A key has the same digest in each process."""

    def __init__(self, label: str, version: str) -> None:
        begun = hashlib.blake2b(ascii((label, version)).encode(), digest_size=KEY_BYTES)
        self._begin = begun.copy

    def __call__(self, key: tuple[Any, ...]) -> bytes:
        """Return the digest of ``key``, which is a tuple of values."""
        return self.many((key,))[0]

    def many(self, keys: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Return the digests of ``keys``, in half the time of a separate call for each key."""
        begin, digests = self._begin, []
        for key in keys:
            value = key[0] if len(key) == 1 else key
            try:
                text = ascii(value) if type(value) in _PLAIN else text_of(value)
            except ValueError:
                text = text_of(value)
            digest = begin()
            digest.update(text.encode())
            digests.append(digest.digest())
        return digests


def text_of(value: Any) -> str:
    """Return a text that only equal values share. Raises ``TypeError`` if ``value`` is no plain
    value.
    """
    if type(value) in _PLAIN:
        try:
            return ascii(value)
        except ValueError:  # an int of more digits than ``sys.get_int_max_str_digits()``
            return hex(value)
    for kind, text in _TEXTS_BY_TYPE:
        if isinstance(value, kind):
            return text(value)
    if (pa := sys.modules.get("pyarrow")) and isinstance(value, pa.RecordBatch):
        return f"b{_batch_digest(value)}"
    raise TypeError(f"a key of {type(value).__name__} has no form that lasts")


def _batch_digest(batch: Any) -> str:
    """Return a digest of the column names, the types and the values of a record batch.

    A slice of a larger batch has the same digest as a copy of the slice. The bytes that Arrow
    stores for a null value do not change the digest.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Without columns, two batches differ only in the number of rows.
    begin = b"" if batch.num_columns else ascii(batch.num_rows).encode()
    digest = hashlib.blake2b(begin, digest_size=KEY_BYTES)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind, there = field.type, column.drop_null()
        nulls = len(column) - len(there)
        # If there are nulls, the bytes of ``is_valid`` follow the header. The header contains the
        # number of nulls, so that no column without nulls has the same bytes.
        header = (field.name, str(kind), len(column), *((nulls,) if nulls else ()))
        digest.update(ascii(header).encode())
        if nulls:
            digest.update(_bytes_of_numbers(column.is_valid().cast(pa.uint8())))
        if "time64[ns]" in str(kind):
            there = there.cast(_exact_type(kind))
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            digest.update(_bytes_of_numbers(pc.binary_length(there)))
            ends = memoryview(there.buffers()[1]).cast("i")[there.offset :] if len(there) else [0]
            text = memoryview(there.buffers()[2] or b"")
            digest.update(text[ends[0] : ends[len(there)]])
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            digest.update(_bytes_of_numbers(there))
        else:
            digest.update(text_of(there.to_pylist()).encode())
    return digest.hexdigest()


def _exact_type(kind: Any) -> Any:
    """Return the Arrow type ``kind`` with int64 for time64[ns], also within lists and structs.

    ``to_pylist()`` would drop the nanoseconds of time64[ns].
    """
    import pyarrow as pa

    def exact(field: Any) -> Any:
        return field.with_type(_exact_type(field.type))

    if kind == pa.time64("ns"):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(exact(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(exact(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(exact(kind.value_field), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([exact(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(exact(kind.key_field), exact(kind.item_field))
    if pa.types.is_dictionary(kind):
        return _exact_type(kind.value_type)
    return kind


def _bytes_of_numbers(array: Any) -> memoryview:
    """Return the bytes of ``array``, an Arrow array of numbers without nulls."""
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    content = memoryview(b"" if buffer is None else buffer)
    return content[array.offset * width : (array.offset + len(array)) * width]


def checked_key(key: tuple[Any, ...], label: str) -> tuple[Any, ...]:
    """Return ``key`` if all its values are plain; else raise a ``TypeError`` about ``label``."""
    for place, value in enumerate(key):
        try:
            text_of(value)
        except TypeError as refused:
            raise TypeError(
                f"{label}: caches, journals and call_id know a call by plain values, and argument "
                f"{place + 1} has none: {refused}; say what it is known by with Policy(key=...)"
            ) from None
    return key


def may_change(value: Any) -> bool:
    """Return whether ``value`` is a list or a dict, or a tuple that contains a list or a dict."""
    if isinstance(value, tuple):
        return any(type(item) not in _PLAIN and may_change(item) for item in value)
    return isinstance(value, dict | list)


def own_copy(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``key``, or a deep copy if a function could change a list or a dict in ``key``."""
    for value in key:
        if type(value) not in _PLAIN and may_change(value):
            return copy.deepcopy(key)
    return key


def _datetime_text(value: dt.datetime) -> str:
    if value.tzinfo is None or (offset := value.utcoffset()) is None:
        return f"t{_clock_text(value)}"
    try:  # convert to UTC, so that equal instants have equal texts
        return f"t{value.astimezone(dt.UTC).isoformat()}"
    except OverflowError:  # in UTC the instant is before year 1 or after year 9999
        shown = value.replace(tzinfo=dt.UTC) - dt.datetime.min.replace(tzinfo=dt.UTC)
        return f"t{(shown - offset) // dt.timedelta(microseconds=1)}"


def _clock_text(value: dt.datetime | dt.time) -> str:
    """Return the local time of ``value`` as text, with its ``fold`` and its time zone."""
    text = value.isoformat() + "f" * value.fold
    if value.tzinfo is None or value.utcoffset() is not None:
        return text
    # Without a date, a zone with daylight saving time has no UTC offset: use the zone's name.
    zone = getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "zone", None)
    if not isinstance(zone, str):
        raise TypeError(
            f"a key cannot hold a time zone of {type(value.tzinfo).__name__}: the zone has no name"
        )
    return text + ascii(zone)


def _timedelta_text(value: dt.timedelta) -> str:
    nanoseconds = getattr(value, "nanoseconds", 0)  # pandas.Timedelta has nanoseconds
    text = f"i{value.days}:{value.seconds}:{value.microseconds}"
    return f"{text}:{nanoseconds}" if nanoseconds else text


def _tuple_text(value: tuple[Any, ...]) -> str:
    # A named tuple equals a plain tuple with the same values, but must be a different key.
    text, fields = f"({', '.join(map(text_of, value))})", getattr(type(value), "_fields", None)
    return text if fields is None else f"{(type(value).__qualname__, fields)!a}{text}"


def _items_text(value: dict[Any, Any]) -> str:
    pairs = sorted((text_of(key), text_of(item)) for key, item in value.items())
    return f"{{{', '.join(map(': '.join, pairs))}}}"


_TEXTS_BY_TYPE: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (Keywords, lambda value: f"**{_items_text(value)}"),
    (dict, _items_text),
    (list, lambda value: f"[{', '.join(map(text_of, value))}]"),
    (tuple, _tuple_text),
    (dt.datetime, _datetime_text),
    (dt.date, lambda value: f"d{value.isoformat()}"),
    (dt.time, lambda value: f"c{_clock_text(value)}"),
    (dt.timedelta, _timedelta_text),
    (Decimal, lambda value: f"n{value}"),
    (uuid.UUID, lambda value: f"u{value}"),
)
