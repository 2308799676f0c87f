"""Functions for Arrow types and arrays, also nested ones: decode, cast, and find their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BYTES",
    "LIST",
    "TEXT",
    "cast_safely",
    "decode",
    "family_of",
    "fields_of",
    "forbidden_null",
    "forbids_nulls",
    "infinities",
    "is_encoded",
    "parts_of",
    "pyarrow_version",
    "with_doubles",
]


TEXT: Final = "text"
BYTES: Final = "bytes"
LIST: Final = "list"

_FAMILIES: Final = {
    TEXT: ("string", "large_string", "string_view"),
    BYTES: ("binary", "large_binary", "fixed_size_binary", "binary_view"),
    "number": ("integer", "floating", "decimal"),
    LIST: ("list", "large_list", "fixed_size_list", "list_view", "large_list_view"),
    "date": ("date",),
    "time": ("time",),
}


def family_of(kind: pa.DataType) -> str:
    """Return the name of the family of an Arrow type. For example, all text types are one family.

    A cast with ``safe=True`` between two types of a family keeps the meaning of the values.
    """
    if _is(kind, "dictionary"):
        return family_of(kind.value_type)
    for name, members in _FAMILIES.items():
        if any(_is(kind, member) for member in members):
            return name
    return str(kind.id)


def _is(kind: pa.DataType, name: str) -> bool:
    import pyarrow as pa

    # An older pyarrow may lack the function ``pa.types.is_...``. Then it lacks the type, too.
    test = getattr(pa.types, f"is_{name}", None)
    return test is not None and bool(test(kind))


def is_encoded(kind: pa.DataType) -> bool:
    """Return whether Arrow casts arrays of ``kind`` wrongly, so that ``decode`` must come first.

    Examples are run-end encoded types, list views and extension types, also within other types.
    """
    import pyarrow as pa

    if _is(kind, "run_end_encoded") or _is(kind, "list_view") or _is(kind, "large_list_view"):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if _is(kind, "fixed_size_binary"):
        return pyarrow_version() < _CASTS_SLICES_OF_BINARY
    if _is(kind, "dictionary"):
        value = kind.value_type
        return value.num_fields > 0 or _is(value, "string_view") or _is(value, "binary_view")
    return any(is_encoded(kind.field(place).type) for place in range(kind.num_fields))


def decode(array: pa.Array) -> pa.Array:
    """Return ``array`` without list views, extension types, run-end and dictionary encodings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.bool8":
            return array.cast(pa.bool_())
        return decode(array.storage)
    if _is(kind, "run_end_encoded"):
        values = decode(array.values)
        places = pa.array(range(len(values)), pa.int64())
        ends, length = array.run_ends, array.offset + len(array)
        kind = pa.run_end_encoded(ends.type, places.type)
        # Do not use RunEndEncodedArray.from_arrays, which raises an error before pyarrow 15.
        places = pa.RunEndEncodedArray.from_buffers(kind, length, [None], 0, 0, [ends, places])
        return values.take(pc.run_end_decode(places.slice(array.offset, len(array))))
    if _is(kind, "dictionary"):
        return decode(array.dictionary).take(array.indices)
    if _is(kind, "string_view") or _is(kind, "binary_view"):
        return array.cast(pa.large_string() if _is(kind, "string_view") else pa.large_binary())
    if not is_encoded(kind):
        return array
    if _is(kind, "fixed_size_binary"):
        return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
    if _is(kind, "struct"):
        parts = [decode(array.field(place)) for place in range(kind.num_fields)]
        fields = [kind.field(place).with_type(part.type) for place, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    return _decode_list(array)


def _decode_list(array: pa.Array) -> pa.Array:
    """Decode an array of lists, list views or maps: return lists or maps of decoded elements."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, count = array.type, len(array)
    if _is(kind, "list_view") or _is(kind, "large_list_view"):
        sizes = pc.if_else(array.is_valid(), array.sizes, 0).cast(pa.int64())
        offsets = pa.array([0, *pc.cumulative_sum(sizes).to_pylist()], pa.int64())
        # ``from_arrays`` needs offsets and sizes that begin at the same position in their buffers.
        # The sizes begin at the start of a buffer. Adding 0 copies the offsets to such a start.
        starts = pc.add(array.offsets.cast(pa.int64()), 0)
        views = pa.LargeListViewArray.from_arrays(starts, sizes, decode(array.values))
        parts = [views.flatten()]
    elif _is(kind, "fixed_size_list"):
        size = kind.list_size
        offsets = pa.array(range(0, (count + 1) * size, size) if size else [0] * (count + 1))
        parts = [decode(array.values.slice(array.offset * size, count * size))]
    else:
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        offsets = pc.subtract(array.offsets, first)
        whole = [array.keys, array.items] if _is(kind, "map") else [array.values]
        parts = [decode(part.slice(first, last - first)) for part in whole]
    mask = array.is_null()
    if _is(kind, "map"):
        return pa.MapArray.from_arrays(offsets, *parts, mask=mask)
    return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), *parts, mask=mask)


def pyarrow_version() -> int:
    import pyarrow as pa

    return int(pa.__version__.split(".")[0])


_CASTS_SLICES_OF_BINARY: Final = 17
"""Versions of pyarrow before 17 crash when they cast a slice of a ``fixed_size_binary`` array."""


def infinities(array: pa.Array) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(array.type):
        return pc.sum(pc.is_inf(array)).as_py() or 0
    if pa.types.is_dictionary(array.type):
        return infinities(array.dictionary_decode())
    if not pa.types.is_nested(array.type):
        return 0
    return sum(map(infinities, parts_of(array)))


def cast_safely(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast ``array`` to ``kind``. Raises an error if a number would become another number."""
    import pyarrow as pa

    cast_array = array.cast(kind, safe=True)
    of_floats = pa.types.is_decimal(kind) and pa.types.is_floating(array.type)
    if of_floats and not cast_array.cast(array.type).equals(array):
        raise ValueError(f"a number has more digits than {kind} keeps")
    if (infinite := infinities(cast_array)) and infinite != infinities(array):
        raise ValueError(f"a finite number is too large for {kind}")
    return cast_array


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type. Error messages use the names of these fields.

    A map has the fields ``key`` and ``value``, a list has the field ``element``.
    """
    import pyarrow as pa

    if not pa.types.is_nested(kind):
        return []
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        # Declare ``key`` as nullable, so that ``forbidden_null`` does not search it for nulls: it
        # has none, because Arrow refuses null map keys.
        return [pa.field("key", kind.key_type), kind.item_field.with_name("value")]
    if family_of(kind) == LIST:
        return [kind.value_field.with_name("element")]
    return []


def parts_of(array: pa.Array) -> list[pa.Array]:
    """Return an array of the values for each field that ``fields_of(array.type)`` returns.

    Elements of ``array`` that are null have no values in these arrays.
    """
    import pyarrow as pa

    array = array.drop_null()
    # If ``array`` is a slice of a map array, its ``keys`` and ``items`` are not sliced: do it here.
    if pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [part.slice(first, last - first) for part in (array.keys, array.items)]
    parts: Any = array.flatten()
    return parts if pa.types.is_struct(array.type) else [parts]


def forbidden_null(array: pa.Array, field: pa.Field) -> str | None:
    """Return the path (``a.b``) of the first NOT NULL field that has a null, or ``None``."""
    if not field.nullable and array.null_count:
        return str(field.name)
    if not forbids_nulls(field.type):
        return None
    parts = zip(parts_of(array), fields_of(field.type), strict=True)
    inner = next(filter(None, (forbidden_null(*part) for part in parts)), None)
    return inner and f"{field.name}.{inner}"


def forbids_nulls(kind: pa.DataType) -> bool:
    return any(not part.nullable or forbids_nulls(part.type) for part in fields_of(kind))


def with_doubles(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with float64 in place of float32, in which large numbers become infinite."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_float32(kind):
        return pa.float64()
    if is_.is_struct(kind):
        return pa.struct([(field.name, with_doubles(field.type)) for field in fields_of(kind)])
    if is_.is_map(kind):
        return pa.map_(with_doubles(kind.key_type), with_doubles(kind.item_type))
    if is_.is_list(kind) or is_.is_large_list(kind):
        return pa.list_(with_doubles(kind.value_type))
    return kind
