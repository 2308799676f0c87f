"""From Python values to Arrow: what a function returned becomes exactly the declared type, or an
error that names the column and the row.
"""

from __future__ import annotations

import datetime as dt
import inspect
import numbers
import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from rstreams_fast.spark.worker.keys import loaded_pandas, own_names, plain

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Columns",
    "batches_of",
    "conform",
    "shorten",
]

Converter = Callable[[Any], Any]

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200
_repr.maxtuple = _repr.maxlist = _repr.maxdict = 20


def shorten(value: object) -> str:
    """Return a ``repr`` that fits into a message."""
    try:
        return _repr.repr(value)
    except ValueError:  # an int that Python will not write out: it has thousands of digits
        return f"<{type(value).__name__} without a repr>"


# -- results: from Python to Arrow -----------------------------------------------------------------


class Columns:
    """The declared output columns; turns a list of results into one Arrow array per column.

    With one column a result is its value; with several it is a tuple in their order, a dict, a
    ``Row`` or a named tuple with exactly their names, or ``None``, which makes all of them null.
    """

    def __init__(self, names: Sequence[str], kinds: Sequence[pa.DataType]) -> None:
        self.names = list(names)
        self.types = list(kinds)
        self._rules = [_rule(kind) for kind in self.types]
        self._nulls = (None,) * len(self.names)
        self._known = set(self.names)

    def arrays(self, results: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        """Return the columns of ``results``; ``key_at`` names the key of a result for a message."""
        if len(self.names) == 1:
            return [self._array(0, results, key_at)]
        return self.arrays_of_rows(results, key_at)

    def arrays_of_rows(self, rows: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        """Return the columns of ``rows``, which are rows also where there is one column."""
        columns = self._split(rows, key_at)
        return [self._array(index, column, key_at) for index, column in enumerate(columns)]

    def _split(self, results: list[Any], key_at: Callable[[int], str]) -> list[list[Any]]:
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
                    pass  # the slow way finds the row
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
        if isinstance(row, dict):
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

    def _array(self, index: int, values: list[Any], key_at: Callable[[int], str]) -> pa.Array:
        import pyarrow as pa

        refusals = (pa.ArrowException, TypeError, ValueError, OverflowError)
        try:
            return self._converted(index, values)
        except refusals as refused:
            try:  # Arrow takes most of numpy's and pandas' values as they are, but not all
                return self._converted(index, [plain(value) for value in values])
            except refusals:
                raise self._mismatch(index, values, key_at, refused) from refused

    def _converted(self, index: int, values: list[Any]) -> pa.Array:
        rule = self._rules[index]
        whole = values if rule is None else rule.many(values)
        return _array_of(whole, self.types[index], self.names[index])

    def _mismatch(
        self, index: int, values: list[Any], key_at: Callable[[int], str], refused: Exception
    ) -> TypeError:
        import pyarrow as pa

        kind = self.types[index]
        where, why = "", str(refused)
        for row, value in enumerate(values):
            try:
                self._converted(index, [plain(value)])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as culprit:
                where = f" for {key_at(row)}: {type(value).__name__} {shorten(value)}"
                why = _reason(value, kind) or str(culprit)
                break
        return TypeError(
            f"column {self.names[index]!r} is declared {kind}, which the result{where} "
            f"cannot become ({why})"
        )


def _reason(value: object, kind: pa.DataType) -> str:
    """Say why ``value`` is no ``kind``, where what Arrow says is about something else."""
    import pyarrow as pa

    if inspect.isawaitable(value):
        return "the function has to await it"
    if pa.types.is_string(kind) and not isinstance(value, str):
        return f"{type(value).__name__} is no string"
    return ""


def _array_of(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    import pyarrow as pa

    array = pa.array(values, kind)
    if _infinities(array) and _infinities(array) != _infinities(pa.array(values, _wide(kind))):
        raise ValueError("a finite number is too large for a float")
    if where := _forbidden_null(array, pa.field(name, kind)):
        raise ValueError(f"{where} is declared NOT NULL and has a null")
    return array


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with doubles for its floats, of which Arrow makes infinity unasked."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_float32(kind):
        return pa.float64()
    if is_.is_struct(kind):
        return pa.struct([(field.name, _wide(field.type)) for field in _fields(kind)])
    if is_.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    if is_.is_list(kind) or is_.is_large_list(kind):
        return pa.list_(_wide(kind.value_type))
    return kind


class _Rule(NamedTuple):
    """What is done to values before Arrow sees them, which alone would take too much."""

    plain: frozenset[type]
    """Exact types that need nothing."""
    convert: Converter
    """Returns what Arrow takes, or raises."""

    def many(self, values: Any) -> Any:
        """Return ``values`` with every one converted, if any needs it."""
        if self.plain.issuperset(map(type, values)):
            return values
        convert = self.convert
        return [None if value is None else convert(value) for value in values]


_NO_PLAIN: Final[frozenset[type]] = frozenset()
_LISTS: Final[frozenset[type]] = frozenset({list, tuple, type(None)})
_NO_LISTS: Final = (str, bytes, bytearray, memoryview, dict)


def _rule(kind: pa.DataType) -> _Rule | None:
    """Return what is to be done to values that shall become ``kind``; ``None``: nothing."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_integer(kind):
        return _Rule(frozenset({int, type(None)}), _integer)
    if is_.is_date(kind):
        return _Rule(frozenset({dt.date, type(None)}), _instance(dt.date, but_no=dt.datetime))
    if is_.is_timestamp(kind):
        return _Rule(_NO_PLAIN, _with_zone if kind.tz is not None else _without_zone)
    if is_.is_duration(kind):
        return _Rule(frozenset({dt.timedelta, type(None)}), _instance(dt.timedelta))
    if is_.is_time(kind):
        return _Rule(frozenset({dt.time, type(None)}), _instance(dt.time))
    if is_.is_struct(kind):
        return _Rule(_NO_PLAIN, _struct_converter(kind))
    if is_.is_map(kind):
        return _Rule(_NO_PLAIN, _map_converter(kind))
    if is_.is_list(kind) or is_.is_large_list(kind):
        element = _rule(kind.value_type)
        plain = _LISTS if element is None else _NO_PLAIN
        return _Rule(plain, _list_converter(element))
    return None


def _integer(value: Any) -> Any:
    # Arrow would cut a fraction off.
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return value
    if isinstance(value, float | Decimal | numbers.Real) and not isinstance(value, bool):
        whole = int(cast(float, value))
        if whole == value:
            return whole
        raise ValueError(f"{shorten(value)} is no whole number")
    raise TypeError(f"{type(value).__name__} is no integer")


def _instance(wanted: type, but_no: type | None = None) -> Converter:
    # Arrow would take a number for one of its units, and a datetime for its date.
    def convert(value: Any) -> Any:
        if isinstance(value, wanted) and not (but_no and isinstance(value, but_no)):
            return value
        raise TypeError(f"{type(value).__name__} is no {wanted.__name__}")

    return convert


def _with_zone(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        raise TypeError(f"{type(value).__name__} is no datetime")
    # Without a zone it is local time, as in Spark's own functions; Arrow would take it for UTC.
    return value.astimezone() if value.tzinfo is None else value


def _without_zone(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        raise TypeError(f"{type(value).__name__} is no datetime")
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, the column has none (timestamp_ntz)")
    return value


def _list_converter(element: _Rule | None) -> Converter:
    def convert(value: Any) -> Any:
        # Of a text or a dict Arrow would take the characters or keys for the elements; an iterator
        # gives its elements once, and they are looked at more often.
        if not isinstance(value, Sized) or isinstance(value, _NO_LISTS):
            raise TypeError(f"{type(value).__name__} is no list")
        return value if element is None else element.many(value)

    return convert


def _struct_converter(kind: pa.StructType) -> Converter:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    rules = [_rule(kind.field(i).type) for i in range(kind.num_fields)]
    known = set(names)

    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):  # a Row, a named tuple, a plain one
            own = own_names(value) or names
            if len(own) != len(value) or len(value) != len(names):
                raise ValueError(f"{len(value)} values for the {len(names)} fields of {kind}")
            value = dict(zip(own, value, strict=True))
        if not isinstance(value, dict):
            raise TypeError(f"a struct must be a dict or a tuple, got {type(value).__name__}")
        if value.keys() != known:
            raise ValueError(f"fields {sorted(map(str, value))} instead of {names}")
        return {
            name: value[name] if rule is None or value[name] is None else rule.convert(value[name])
            for name, rule in zip(names, rules, strict=True)
        }

    return convert


def _map_converter(kind: pa.MapType) -> Converter:
    of_keys, of_items = _rule(kind.key_type), _rule(kind.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, Iterator):  # as with lists
            raise TypeError(f"{type(value).__name__} is no map")
        pairs: list[Any] = list(value.items() if isinstance(value, dict) else value)
        keys: Any = [key for key, _ in pairs]
        items: Any = [item for _, item in pairs]
        if of_keys is not None:
            keys = of_keys.many(keys)
        if of_items is not None:
            items = of_items.many(items)
        return list(zip(keys, items, strict=True))

    return convert


# -- whole batches: as the schema declares ---------------------------------------------------------


def batches_of(rows: Any, schema: pa.Schema, label: str) -> list[Any] | None:
    """Return ``rows`` as Arrow batches, their columns not conformed; ``None`` if they are none."""
    import pyarrow as pa

    np, pd = sys.modules.get("numpy"), loaded_pandas()  # else there are no such rows
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if isinstance(rows, pa.Table):
        return list(rows.to_batches())
    if pd is not None and isinstance(rows, pd.DataFrame):
        return [pa.RecordBatch.from_pandas(rows, preserve_index=False)]
    if np is not None and isinstance(rows, np.ndarray) and rows.dtype.names:
        names = rows.dtype.names
        return [pa.RecordBatch.from_arrays([pa.array(rows[name]) for name in names], names)]
    if isinstance(rows, list) and (not rows or isinstance(rows[0], dict)):

        def at(row: int) -> str:
            return f"row {row} of what {label} gave"

        arrays = Columns(schema.names, schema.types).arrays_of_rows(rows, at)
        return [pa.RecordBatch.from_arrays(arrays, schema=schema)]
    return None


def conform(batch: Any, schema: pa.Schema, label: str) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema``, matched by name and cast.

    Spark takes columns by position and dies in the JVM on a type it did not expect; so both are
    settled here.
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
    names = batch.schema.names
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
    arrays = [_cast(batch.column(field.name), field, label) for field in schema]
    conformed = pa.RecordBatch.from_arrays(arrays, schema=schema)
    _check_nulls(conformed, label)
    return conformed


def _check_nulls(batch: pa.RecordBatch, label: str) -> None:
    for place, field in enumerate(batch.schema):
        if field.nullable and not _forbids_nulls(field.type):
            continue  # which costs less than an object for the array
        array = batch.column(place)
        if _forbidden_null(array, field):
            for row in range(len(array)):
                if where := _forbidden_null(array.slice(row, 1), field):
                    raise ValueError(
                        f"{label} gave the column {where!r}, which is declared NOT NULL, "
                        f"a null at row {row} of the batch"
                    )


def _forbidden_null(array: pa.Array, field: pa.Field) -> str | None:
    """Return the path of the first part of ``field`` that is NOT NULL and has a null."""
    if not field.nullable and array.null_count:
        return str(field.name)
    if not _forbids_nulls(field.type):
        return None
    parts = zip(_parts_of(array), _fields(field.type), strict=True)
    inner = next(filter(None, (_forbidden_null(*part) for part in parts)), None)
    return inner and f"{field.name}.{inner}"


def _forbids_nulls(kind: pa.DataType) -> bool:
    return any(not part.nullable or _forbids_nulls(part.type) for part in _fields(kind))


def _cast(array: pa.Array, field: pa.Field, label: str) -> pa.Array:
    import pyarrow as pa

    kind = field.type
    if array.type == kind:
        return array
    if why := _difference(array.type, kind, field.name):
        raise TypeError(
            f"{label} gave the column {field.name!r} as {array.type}, declared is {kind}: {why}"
        )
    try:
        return _cast_safely(array, kind)
    except (pa.ArrowException, TypeError, ValueError) as refused:
        raise TypeError(
            f"{label} gave the column {field.name!r} as {array.type}, which cannot become the "
            f"declared {kind}{_first_refused(array, kind)} ({refused})"
        ) from refused


def _cast_safely(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast, and refuse what Arrow's own checks let pass: a number too large for a float."""
    cast_array = array.cast(kind, safe=True)
    if (infinite := _infinities(cast_array)) and infinite != _infinities(array):
        raise ValueError(f"a finite number is too large for {kind}")
    return cast_array


def _infinities(array: pa.Array) -> int:
    """Count the infinite numbers in ``array``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type):
        return pc.sum(pc.is_inf(array)).as_py() or 0
    if pa.types.is_dictionary(array.type):
        return _infinities(array.dictionary_decode())
    if not pa.types.is_nested(array.type):
        return 0
    return sum(map(_infinities, _parts_of(array)))


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields inside of a nested type, called as paths to them are."""
    import pyarrow as pa

    if not pa.types.is_nested(kind):
        return []
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        # That no key is null is Arrow's business.
        return [pa.field("key", kind.key_type), kind.item_field.with_name("value")]
    if _family(kind) == _LIST:
        return [kind.value_field.with_name("element")]
    return []


def _parts_of(array: pa.Array) -> list[pa.Array]:
    """Return the values of each of the ``_fields`` in ``array``, those in a null left out."""
    import pyarrow as pa

    array = array.drop_null()
    if pa.types.is_map(array.type):  # which gives the keys and items of the whole, not of a slice
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [part.slice(first, last - first) for part in (array.keys, array.items)]
    parts: Any = array.flatten()
    return parts if pa.types.is_struct(array.type) else [parts]


def _difference(given: pa.DataType, declared: pa.DataType, path: str) -> str | None:
    """Say why a cast, though Arrow may make it, would not say the same thing; ``None``: it would.

    Arrow casts structs by filling in, and leaving out, whatever fields they do not share.
    """
    import pyarrow as pa

    is_ = pa.types
    if given == declared or is_.is_null(given):
        return None
    if _family(given) != _family(declared):
        return f"{path} is {given} instead of {declared}"
    if is_.is_timestamp(declared):
        if (given.tz is None) != (declared.tz is None):
            return f"{path}: one has a time zone, the other has none (timestamp or timestamp_ntz?)"
    elif is_.is_struct(declared):
        own = [given.field(i).name for i in range(given.num_fields)]
        names = [declared.field(i).name for i in range(declared.num_fields)]
        if sorted(own) != sorted(names):
            return f"{path} has the fields {', '.join(own)} instead of {', '.join(names)}"
        parts = [(given.field(n).type, declared.field(n).type, f"{path}.{n}") for n in names]
        return _first_difference(parts)
    elif is_.is_map(declared):
        keys = (given.key_type, declared.key_type, f"{path}.key")
        return _first_difference([keys, (given.item_type, declared.item_type, f"{path}.value")])
    elif _family(declared) == _LIST:
        return _difference(given.value_type, declared.value_type, f"{path}.element")
    return None


def _first_difference(parts: list[tuple[pa.DataType, pa.DataType, str]]) -> str | None:
    return next(filter(None, (_difference(*part) for part in parts)), None)


_TEXT: Final = "text"
_LIST: Final = "list"


def _family(kind: pa.DataType) -> str:
    """Group the types between which a checked cast says the same thing in another width."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    is_ = pa.types
    families: tuple[tuple[str, bool], ...] = (
        (_TEXT, is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind)),
        (
            "bytes",
            is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind),
        ),
        ("number", is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind)),
        (_LIST, is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind)),
        ("date", is_.is_date(kind)),
        ("time", is_.is_time(kind)),
    )
    for name, matches in families:
        if matches:
            return name
    return str(kind.id)


def _first_refused(array: pa.Array, kind: pa.DataType) -> str:
    import pyarrow as pa

    for row in range(len(array)):
        try:
            _cast_safely(array.slice(row, 1), kind)
        except (pa.ArrowException, TypeError, ValueError):
            return f" at row {row} of the batch: {shorten(array[row].as_py())}"
    return ""
