"""Converts the results of the user's function to Arrow arrays of exactly the declared types.

If a value does not fit its declared type, the error names the column and the row.
"""

from __future__ import annotations

import datetime as dt
import inspect
import numbers
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from rstreams_fast.spark.worker.keys import fields_of, own_names, to_plain
from rstreams_fast.spark.worker.values.arrow_parts import (
    LIST,
    cast_safely,
    decode,
    family_of,
    forbidden_null,
    forbids_nulls,
    infinities,
    is_encoded,
    with_doubles,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "ValueSource", "cast_column", "check_names", "conform", "shorten"]

Converter = Callable[[Any], Any]

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200
_repr.maxtuple = _repr.maxlist = _repr.maxdict = 20


def shorten(value: object) -> str:
    """Return the ``repr`` of ``value``, shortened for an error message."""
    try:
        return _repr.repr(value)
    except ValueError:  # Python refuses to convert an int of thousands of digits to text
        return f"<{type(value).__name__} without a repr>"


class ValueSource(NamedTuple):
    """Where the values of a column come from. This decides how they are converted."""

    zone: dt.tzinfo | None = None
    """The zone that a datetime without a zone gets if it is from a pandas frame, a numpy array or a
    text: the time zone of the Spark session. Other datetimes without a zone get the time zone of
    the worker process. If this field is ``None``, all get the zone of the worker process."""
    is_frame: bool = False
    """Whether the values come from a pandas frame or a numpy array. As in Spark, NaN and missing
    fields then become null. If the declared type needs it, numbers become booleans, booleans
    become numbers, datetimes become dates, and datetimes with a zone become UTC without a zone.
    """
    lenient: bool = False
    """Whether undeclared fields are dropped, missing fields become null, and texts become times."""


# -- converting Python results to Arrow arrays -----------------------------------------------------


class Columns:
    """Converts a list of results to one Arrow array for each declared output column.

    With one column, a result is a value of this column. With several columns, a result is a row: a
    tuple in the order of the columns; a dict, ``Row``, named tuple, data class or model whose
    fields have exactly the names of the columns; or ``None``, which makes all columns null.
    """

    def __init__(
        self,
        names: Sequence[str],
        kinds: Sequence[pa.DataType],
        source: ValueSource | None = None,
    ) -> None:
        self.names = list(names)
        self.types = list(kinds)
        self._source = source or ValueSource()
        self._rules = [_rule_for(kind, self._source) for kind in self.types]
        self._nulls = (None,) * len(self.names)
        self._known = set(self.names)

    def arrays(self, results: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        """Return the columns of ``results``. Errors name a result by the text ``key_at(index)``."""
        if len(self.names) == 1:
            return [self.array(0, results, key_at)]
        return self.arrays_of_rows(results, key_at)

    def arrays_of_rows(self, rows: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        """Return one array per column. Each row is a tuple or a dict, even if there is one column.

        If a value does not fit, the error names its row by the text ``key_at(index)``.
        """
        columns = self._columns_of(rows, key_at)
        return [self.array(index, column, key_at) for index, column in enumerate(columns)]

    def _columns_of(self, results: list[Any], key_at: Callable[[int], str]) -> list[list[Any]]:
        width = len(self.names)
        kinds = set(map(type, results))
        kinds.discard(type(None))
        if kinds <= {tuple}:
            rows = [self._nulls if row is None else row for row in results]
        elif kinds == {dict}:
            missing = dict.fromkeys(self.names)
            whole = [missing if row is None else row for row in results]
            if set(map(len, whole)) == {width}:
                try:
                    return [[row[name] for row in whole] for name in self.names]
                except KeyError:
                    pass  # a dict lacks a column: below, ``_row`` raises an error with its name
            rows = [self._row(row, index, key_at) for index, row in enumerate(results)]
        else:
            rows = [self._row(row, index, key_at) for index, row in enumerate(results)]
        if not set(map(len, rows)) <= {width}:
            for index, row in enumerate(rows):
                self._row(row, index, key_at)
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in self.names]

    def _row(self, row: Any, index: int, key_at: Callable[[int], str]) -> tuple[Any, ...]:
        if row is None:
            return self._nulls
        names = ", ".join(self.names)
        if own := own_names(row):
            row = dict(zip(own, row, strict=True))
        elif not isinstance(row, dict | tuple) and (fields := fields_of(row)) is not None:
            row = fields
        if isinstance(row, dict):
            if self._source.lenient:
                return tuple(map(row.get, self.names))
            if row.keys() == self._known:
                return tuple(row[name] for name in self.names)
            parts = []
            if unknown := sorted(map(str, row.keys() - self._known)):
                parts.append(f"unknown: {', '.join(unknown)}")
            if missing := sorted(self._known - row.keys()):
                parts.append(f"missing: {', '.join(missing)}")
            raise ValueError(
                f"the result for {key_at(index)} does not have the declared columns {names} "
                f"({'; '.join(parts)}); a missing value is None"
            )
        if not isinstance(row, tuple):
            raise TypeError(
                f"the result for {key_at(index)} must be a tuple or a dict of {names}, "
                f"got {type(row).__name__}: {shorten(row)}"
            )
        if len(row) != len(self.names):
            raise ValueError(
                f"the result for {key_at(index)} has {len(row)} values "
                f"for the {len(self.names)} columns {names}"
            )
        return row

    def array(self, index: int, values: list[Any], key_at: Callable[[int], str]) -> pa.Array:
        """Convert ``values`` to the declared type of the column with this ``index``.

        If a value does not fit, the error names its row by the text ``key_at(row)``.
        """
        try:
            return self._convert_values(index, values)
        except _refusal_types() as refused:
            raise self._mismatch(index, values, key_at, refused) from refused

    def _convert_values(self, index: int, values: list[Any]) -> pa.Array:
        try:
            return self._convert(index, values)
        except _NanosecondsError:
            # Do not go on with ``to_plain``, which would drop the nanoseconds of the values.
            raise
        except _refusal_types() as refused:
            # Arrow refuses some values of numpy and pandas types. ``to_plain`` converts them.
            try:
                return self._convert(index, [to_plain(value) for value in values])
            except _refusal_types():
                raise refused from None

    def _convert(self, index: int, values: list[Any]) -> pa.Array:
        rule = self._rules[index]
        whole = values if rule is None else rule.convert_all(values)
        return _array_of(whole, self.types[index], self.names[index], self._source)

    def _mismatch(
        self, index: int, values: list[Any], key_at: Callable[[int], str], refused: Exception
    ) -> TypeError:
        kind = self.types[index]
        where, why = "", str(refused)
        for row, value in enumerate(values):
            try:
                self._convert_values(index, [value])
            except _refusal_types() as culprit:
                where = f" for {key_at(row)}: {type(value).__name__} {shorten(value)}"
                why = _reason(value, kind) or str(culprit)
                break
        return TypeError(
            f"column {self.names[index]!r} is declared {kind}, which the result{where} "
            f"cannot become ({why})"
        )


class _NanosecondsError(ValueError):
    """Raised for a pandas time or interval that has nanoseconds: Spark has only microseconds."""


def _refusal_types() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return pa.ArrowException, TypeError, ValueError, OverflowError


def _reason(value: object, kind: pa.DataType) -> str:
    """Return why ``value`` does not fit ``kind``; empty if Arrow's own error message says why."""
    import pyarrow as pa

    if inspect.isawaitable(value):
        return "the function has to await it"
    if pa.types.is_string(kind) and not isinstance(value, str):
        return f"{type(value).__name__} is no string"
    return ""


def _array_of(values: Any, kind: pa.DataType, name: str, source: ValueSource) -> pa.Array:
    import pyarrow as pa

    array = pa.array(values, kind, from_pandas=source.is_frame)
    if infinities(array) and infinities(array) != infinities(pa.array(values, with_doubles(kind))):
        raise ValueError("a finite number is too large for a float")
    if where := forbidden_null(array, pa.field(name, kind)):
        raise ValueError(f"{where} is declared NOT NULL and has a null")
    return array


class _ConversionRule(NamedTuple):
    """Checks and converts the values of a column, because Arrow accepts some wrong values."""

    plain: frozenset[type]
    """Values of exactly these types can be passed to Arrow unchanged."""
    convert: Converter
    """Returns a value that can be passed to Arrow, or raises an error for a wrong value."""

    def convert_all(self, values: Any) -> Any:
        """Convert each value. If all types are in ``plain``, return ``values`` without a change."""
        if self.plain.issuperset(map(type, values)):
            return values
        convert = self.convert
        return [None if value is None else convert(value) for value in values]


_NO_TYPES: Final[frozenset[type]] = frozenset()
_LIST_TYPES: Final[frozenset[type]] = frozenset({list, tuple, type(None)})
_NON_LIST_TYPES: Final = (str, bytes, bytearray, memoryview, dict)


def _rule_for(kind: pa.DataType, source: ValueSource) -> _ConversionRule | None:
    """Return the rule for the declared type ``kind``; ``None``: Arrow alone converts correctly."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_boolean(kind) and source.is_frame:
        return _ConversionRule(frozenset({bool, type(None)}), _bool_or_null)
    if is_.is_integer(kind):
        integer = _integer_or_nan if source.is_frame else _integer
        return _ConversionRule(frozenset({int, type(None)}), integer)
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return _ConversionRule(frozenset({bytes, type(None)}), _copy_of_view)
    if is_.is_date(kind):
        date = _date_of if source.is_frame else _require_type(dt.date, but_no=dt.datetime)
        if source.lenient:
            date = _or_parse(dt.date.fromisoformat, date)
        return _ConversionRule(frozenset({dt.date, type(None)}), date)
    if is_.is_timestamp(kind):
        timestamp = _with_zone(source.zone if source.is_frame else None)
        if kind.tz is None:
            timestamp = _naive_in_utc if source.is_frame else _without_zone
        if source.lenient:
            parse = partial(_parse_timestamp, zone=None if kind.tz is None else source.zone)
            timestamp = _or_parse(parse, timestamp)
        return _ConversionRule(
            _NO_TYPES, _refuse_nanoseconds(timestamp) if source.is_frame else timestamp
        )
    if is_.is_duration(kind):
        duration = _require_type(dt.timedelta)
        if source.is_frame:
            duration = _refuse_nanoseconds(duration)
        return _ConversionRule(frozenset({dt.timedelta, type(None)}), duration)
    if is_.is_time(kind):
        return _ConversionRule(frozenset({dt.time, type(None)}), _require_type(dt.time))
    if is_.is_struct(kind):
        return _ConversionRule(_NO_TYPES, _struct_converter(kind, source))
    if is_.is_map(kind):
        return _ConversionRule(_NO_TYPES, _map_converter(kind, source))
    if is_.is_list(kind) or is_.is_large_list(kind):
        element = _rule_for(kind.value_type, source)
        plain = _LIST_TYPES if element is None else _NO_TYPES
        return _ConversionRule(plain, _list_converter(element))
    return None


def _integer(value: Any) -> Any:
    # Refuse a number with a fraction: Arrow would silently drop the fraction.
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return value
    if isinstance(value, float | Decimal | numbers.Real) and not isinstance(value, bool):
        whole = int(cast(float, value))
        if whole == value:
            return whole
        raise ValueError(f"{shorten(value)} is no whole number")
    raise TypeError(f"{type(value).__name__} is no integer")


def _integer_or_nan(value: Any) -> Any:
    if value != value:  # noqa: PLR0124 - only NaN is not
        return None
    return int(value) if isinstance(value, bool) else _integer(value)


def _bool_or_null(value: Any) -> Any:
    if not isinstance(value, numbers.Number):
        return value
    return None if value != value else bool(value)  # noqa: PLR0124 - only NaN is not


def _date_of(value: Any) -> Any:
    return value.date() if isinstance(value, dt.datetime) else _require_type(dt.date)(value)


def _copy_of_view(value: Any) -> Any:
    # Copy the bytes of a memoryview: Arrow would never release the memory of the view itself.
    return value.tobytes() if isinstance(value, memoryview) else value


def _require_type(wanted: type, but_no: type | None = None) -> Converter:
    # Without this check Arrow would accept a number as a time or a date, and a datetime as a date.
    def convert(value: Any) -> Any:
        if isinstance(value, wanted) and not (but_no and isinstance(value, but_no)):
            return value
        raise TypeError(f"{type(value).__name__} is no {wanted.__name__}")

    return convert


def _with_zone(zone: dt.tzinfo | None) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, dt.datetime):
            raise TypeError(f"{type(value).__name__} is no datetime")
        if value.tzinfo is not None:
            return value
        # A datetime without a zone is local time, as in Spark's functions; Arrow would assume UTC.
        return value.astimezone() if zone is None else value.replace(tzinfo=zone)

    return convert


def _without_zone(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        raise TypeError(f"{type(value).__name__} is no datetime")
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, the column has none (timestamp_ntz)")
    return value


def _or_parse(parse: Callable[[str], Any], convert: Converter) -> Converter:
    return lambda value: convert(parse(value) if isinstance(value, str) else value)


def _parse_timestamp(text: str, zone: dt.tzinfo | None) -> dt.datetime:
    timestamp = dt.datetime.fromisoformat(text)
    return timestamp.replace(tzinfo=zone) if timestamp.tzinfo is None else timestamp


def _naive_in_utc(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return _without_zone(value)


def _refuse_nanoseconds(convert: Converter) -> Converter:
    def converted(value: Any) -> Any:
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # only in pandas
            raise _NanosecondsError("it has nanoseconds, and Spark has none")
        return convert(value)

    return converted


def _list_converter(element: _ConversionRule | None) -> Converter:
    def convert(value: Any) -> Any:
        # Refuse a text, because Arrow would make a list of its characters, and a dict, because
        # Arrow would make a list of its keys. Refuse an iterator: it can be read only once.
        if not isinstance(value, Sized) or isinstance(value, _NON_LIST_TYPES):
            raise TypeError(f"{type(value).__name__} is no list")
        return value if element is None else element.convert_all(value)

    return convert


def _struct_converter(kind: pa.StructType, source: ValueSource) -> Converter:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    rules = [_rule_for(kind.field(i).type, source) for i in range(kind.num_fields)]
    known = set(names)

    def parts_of(value: Any) -> Iterable[Any]:
        if source.is_frame and isinstance(value, list | tuple) and not own_names(value):
            value = (*value, *[None] * (len(names) - len(value)))
        if source.lenient and (own := own_names(value)):
            value = dict(zip(own, value, strict=True))
        if isinstance(value, tuple):  # the value is a Row, a named tuple or a plain tuple
            own = own_names(value) or names
            if len(own) != len(value) or len(value) != len(names):
                raise ValueError(f"{len(value)} values for the {len(names)} fields of {kind}")
            if list(own) == names:
                return value
            if len(known) != len(names) or len(set(own)) != len(own):
                raise ValueError(f"fields {list(own)} instead of {names}")
            value = dict(zip(own, value, strict=True))
        elif not isinstance(value, dict) and (fields := fields_of(value)) is not None:
            value = fields
        if not isinstance(value, dict):
            raise TypeError(f"a struct must be a dict or a tuple, got {type(value).__name__}")
        if len(known) != len(names):
            raise ValueError(f"a dict does not tell the fields {names} apart; a tuple does")
        whole = source.lenient or value.keys() == known
        if not whole and not (source.is_frame and value.keys() <= known):
            raise ValueError(f"fields {sorted(map(str, value))} instead of {names}")
        return map(value.get, names)

    def convert(value: Any) -> tuple[Any, ...]:
        # Return a tuple and not a dict: two fields of the struct may have the same name, and Arrow
        # assigns the values of a tuple by position.
        return tuple(
            [
                part if rule is None or part is None else rule.convert(part)
                for part, rule in zip(parts_of(value), rules, strict=True)
            ]
        )

    return convert


def _map_converter(kind: pa.MapType, source: ValueSource) -> Converter:
    of_keys, of_items = _rule_for(kind.key_type, source), _rule_for(kind.item_type, source)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Iterator):  # refuse an iterator, which can be read only once
            raise TypeError(f"{type(value).__name__} is no map")
        pairs: list[Any] = list(value.items() if isinstance(value, dict) else value)
        keys: Any = [key for key, _ in pairs]
        items: Any = [item for _, item in pairs]
        if not isinstance(value, dict):
            _check_unique(keys)
        if of_keys is not None:
            keys = of_keys.convert_all(keys)
        if of_items is not None:
            items = of_items.convert_all(items)
        return list(zip(keys, items, strict=True))

    return convert


def _check_unique(keys: list[Any]) -> None:
    try:
        twice = len(set(keys)) != len(keys)
    except TypeError:  # lists and dicts have no hash: compare each key with all earlier keys
        twice = any(key in keys[:place] for place, key in enumerate(keys))
    if twice:
        raise ValueError("a map has a key twice")


# -- converting whole batches to the declared schema -----------------------------------------------


def conform(batch: Any, schema: pa.Schema, label: str) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema``: matched by name, cast to the declared types.

    Spark would match columns by position, and a column of an unexpected type crashes the JVM.
    """
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(
            f"{label} must give pyarrow.RecordBatch objects, got {type(batch).__name__}: "
            f"{shorten(batch)}"
        )
    if batch.schema.equals(schema, check_metadata=False):
        _check_nulls(batch, label)
        return batch
    check_names(batch.schema.names, schema, label)
    arrays = [cast_column(batch.column(field.name), field, label) for field in schema]
    conformed = pa.RecordBatch.from_arrays(arrays, schema=schema)
    _check_nulls(conformed, label)
    return conformed


def check_names(names: Sequence[str], schema: pa.Schema, label: str) -> None:
    """Raise an error unless ``names``, the columns of a batch, are the names in ``schema``."""
    if sorted(names) != sorted(schema.names):
        parts = []
        if missing := [name for name in schema.names if name not in names]:
            parts.append(f"missing: {', '.join(missing)}")
        if unknown := [name for name in names if name not in schema.names]:
            parts.append(f"unknown: {', '.join(unknown)}")
        if not parts:
            parts.append("a name comes twice")
        raise ValueError(
            f"{label} gave a batch with the columns {', '.join(names)}, declared are "
            f"{', '.join(schema.names)} ({'; '.join(parts)})"
        )


def _check_nulls(batch: pa.RecordBatch, label: str) -> None:
    for place, field in enumerate(batch.schema):
        if field.nullable and not forbids_nulls(field.type):
            continue  # nulls are allowed: do not call ``batch.column``, which is slow
        array = batch.column(place)
        if forbidden_null(array, field):
            for row in range(len(array)):
                if where := forbidden_null(array.slice(row, 1), field):
                    raise ValueError(
                        f"{label} gave the column {where!r}, which is declared NOT NULL, "
                        f"a null at row {row} of the batch"
                    )


def cast_column(array: pa.Array, field: pa.Field, label: str) -> pa.Array:
    """Cast ``array`` to the type of ``field``. Raises ``TypeError`` if a value does not fit it."""
    import pyarrow as pa

    kind = field.type
    if array.type == kind:
        return array
    if is_encoded(array.type):
        array = decode(array)
    if why := _difference(array.type, kind, field.name):
        raise TypeError(
            f"{label} gave the column {field.name!r} as {array.type}, declared is {kind}: {why}"
        )
    try:
        return cast_safely(array, kind)
    except (pa.ArrowException, TypeError, ValueError) as refused:
        raise TypeError(
            f"{label} gave the column {field.name!r} as {array.type}, which cannot become the "
            f"declared {kind}{_first_refused_value(array, kind)} ({refused})"
        ) from refused


def _difference(given: pa.DataType, declared: pa.DataType, path: str) -> str | None:
    """Return why a cast from ``given`` to ``declared`` would change the meaning of values.

    Return ``None`` if the cast keeps the meaning. Arrow does not refuse casts that change it: it
    fills missing fields of structs with nulls, and drops unknown fields, for example.
    """
    import pyarrow as pa

    is_ = pa.types
    if given == declared or is_.is_null(given):
        return None
    if family_of(given) != family_of(declared):
        return f"{path} is {given} instead of {declared}"
    if is_.is_timestamp(declared):
        if (given.tz is None) != (declared.tz is None):
            return f"{path}: one has a time zone, the other has none (timestamp or timestamp_ntz?)"
    elif is_.is_struct(declared):
        own = [given.field(i).name for i in range(given.num_fields)]
        names = [declared.field(i).name for i in range(declared.num_fields)]
        if sorted(own) != sorted(names):
            return f"{path} has the fields {', '.join(own)} instead of {', '.join(names)}"
        if own != names and len(set(names)) != len(names):
            return f"{path} has the fields {', '.join(own)} in another order, and one name twice"
        places = range(len(names)) if own == names else map(given.get_field_index, names)
        parts = [
            (given.field(there).type, declared.field(here).type, f"{path}.{names[here]}")
            for here, there in enumerate(places)
        ]
        return _first_difference(parts)
    elif is_.is_map(declared):
        keys = (given.key_type, declared.key_type, f"{path}.key")
        return _first_difference([keys, (given.item_type, declared.item_type, f"{path}.value")])
    elif family_of(declared) == LIST:
        return _difference(given.value_type, declared.value_type, f"{path}.element")
    return None


def _first_difference(parts: list[tuple[pa.DataType, pa.DataType, str]]) -> str | None:
    return next(filter(None, (_difference(*part) for part in parts)), None)


def _first_refused_value(array: pa.Array, kind: pa.DataType) -> str:
    import pyarrow as pa

    for row in range(len(array)):
        try:
            cast_safely(array.slice(row, 1), kind)
        except (pa.ArrowException, TypeError, ValueError):
            return f" at row {row} of the batch: {shorten(array[row].as_py())}"
    return ""
