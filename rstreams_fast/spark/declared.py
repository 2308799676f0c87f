"""Resolves a declared type (DDL string, Spark type or Arrow type) to its Spark and its Arrow type.

This module has its own conversions: PySpark's conversions are not public, and differ between
versions of PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from rstreams_fast._third_parties import pyarrow_for
from rstreams_fast.spark.lenient_types import declared_in
from rstreams_fast.spark.versions import parse_ddl, spark_version
from rstreams_fast.spark.worker.values.arrow_parts import BYTES, LIST, TEXT, family_of
from rstreams_fast.spark.worker.values.conversions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ["resolve_schema", "resolve_type", "with_arrow_precision"]

_DeclaredT = TypeVar("_DeclaredT", bound="DataType")


def resolve_type(declared: Any, what: str) -> tuple[DataType, pa.DataType]:
    """Return the Spark and the Arrow type of a DDL string, a Spark type or an Arrow type.

    ``what`` names the user's argument in error messages.
    """
    spark_version()  # raises an error if PySpark's version is not supported
    pa = pyarrow_for("rstreams_fast.spark")
    from pyspark.sql.types import DataType

    declared = declared_in(declared)
    if isinstance(declared, pa.DataType):
        declared = _spark_type(declared, what)
    elif isinstance(declared, str):
        declared = _parse(declared, what)
    declared = _without_lengths(declared)
    if not isinstance(declared, DataType):
        raise TypeError(
            f"{what} must be a DDL string, a pyspark.sql.types.DataType or a pyarrow.DataType, "
            f"got {type(declared).__name__}"
        )
    return declared, _arrow_type(declared, what)


def resolve_schema(declared: Any, what: str) -> tuple[StructType, pa.Schema]:
    """Return the Spark and the Arrow schema of a DDL string, ``StructType`` or Arrow schema.

    ``what`` names the user's argument in error messages.
    """
    spark_version()  # raises an error if PySpark's version is not supported
    pa = pyarrow_for("rstreams_fast.spark")
    from pyspark.sql.types import StructField, StructType

    def column(name: str) -> str:
        return f"{what}: the column {name!r}"

    declared = declared_in(declared)
    if isinstance(declared, pa.Schema):
        declared = StructType(
            [StructField(f.name, _spark_type(f.type, column(f.name)), f.nullable) for f in declared]
        )
    elif isinstance(declared, str):
        declared = _parse(declared, what)
    declared = _without_lengths(declared)
    if not isinstance(declared, StructType):
        raise TypeError(
            f"{what} must name its columns: a DDL string such as 'temp double, wind double', "
            f"a StructType or a pyarrow.Schema, got {shorten(declared)}"
        )
    if not declared.fields:
        raise ValueError(f"{what} has no columns")
    names = [name.lower() for name in declared.names]
    for name in declared.names:
        if names.count(name.lower()) > 1:
            raise ValueError(f"{what} names the column {name!r} twice")
    fields = [
        pa.field(f.name, _arrow_type(f.dataType, column(f.name)), f.nullable)
        for f in declared.fields
    ]
    return declared, pa.schema(fields)


def with_arrow_precision(declared: _DeclaredT) -> _DeclaredT:
    """Return ``declared`` with times and day-time intervals in Arrow's precision (microseconds)."""
    from pyspark.sql import types as t

    def finest(part: DataType) -> DataType:
        if isinstance(part, t.DayTimeIntervalType) or type(part).__name__ == "TimeType":
            return type(part)()
        return part

    found: _DeclaredT = _map_parts(declared, finest)
    return found


def _without_lengths(declared: Any) -> Any:
    """Return ``declared`` with strings instead of ``char(n)`` and ``varchar(n)``.

    Spark also replaces these types in the schema of a DataFrame: only tables have string lengths.
    """
    from pyspark.sql import types as t

    def text(part: Any) -> Any:
        return t.StringType() if isinstance(part, t.CharType | t.VarcharType) else part

    return _map_parts(declared, text)


def _map_parts(declared: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``declared`` with ``change`` applied to each type in it that has no inner types."""
    from pyspark.sql import types as t

    if isinstance(declared, t.ArrayType):
        return t.ArrayType(_map_parts(declared.elementType, change), declared.containsNull)
    if isinstance(declared, t.MapType):
        key = _map_parts(declared.keyType, change)
        value = _map_parts(declared.valueType, change)
        return t.MapType(key, value, declared.valueContainsNull)
    if isinstance(declared, t.StructType):
        return t.StructType(
            [
                t.StructField(f.name, _map_parts(f.dataType, change), f.nullable, f.metadata)
                for f in declared.fields
            ]
        )
    return change(declared)


def _parse(ddl: str, what: str) -> DataType:
    try:
        found: DataType | None = parse_ddl(ddl)
    except ValueError as refused:
        raise ValueError(f"{what}={ddl!r} is no valid DDL: {refused}") from refused
    if found is None:
        raise RuntimeError(
            f"{what}={ddl!r} is a DDL string, and only a running SparkSession can read it; "
            "start one first, or give a pyspark.sql.types.DataType or a pyarrow type"
        )
    return found


_PLAIN_TYPES: Final = {
    "BooleanType": "bool",
    "ByteType": "int8",
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "StringType": "string",
    "BinaryType": "binary",
    "DateType": "date32[day]",
    "NullType": "null",
    "DayTimeIntervalType": "duration[us]",
    "TimeType": "time64[ns]",
    "TimestampNTZType": "timestamp[us]",
}
"""The Arrow type of each Spark type. The keys are class names, because older PySpark versions lack
some of the classes."""


def _arrow_type(declared: DataType, what: str) -> pa.DataType:
    import pyarrow as pa
    from pyspark.sql import types as t

    if isinstance(declared, t.UserDefinedType):
        return _arrow_type(declared.sqlType(), what)
    name = type(declared).__name__
    if name in _PLAIN_TYPES:
        return pa.type_for_alias(_PLAIN_TYPES[name])
    if isinstance(declared, t.TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(declared, t.DecimalType):
        return pa.decimal128(declared.precision, declared.scale)
    if isinstance(declared, t.ArrayType):
        element = _arrow_type(declared.elementType, what)
        return pa.list_(pa.field("element", element, declared.containsNull))
    if isinstance(declared, t.MapType):
        return pa.map_(
            pa.field("key", _arrow_type(declared.keyType, what), nullable=False),
            pa.field("value", _arrow_type(declared.valueType, what), declared.valueContainsNull),
        )
    if isinstance(declared, t.StructType):
        return pa.struct(
            [pa.field(f.name, _arrow_type(f.dataType, what), f.nullable) for f in declared.fields]
        )
    if name == "VariantType":
        tag = {b"variant": b"true"}  # Spark recognizes a variant by this tag
        return pa.struct(
            [
                pa.field("value", pa.binary(), nullable=False),
                pa.field("metadata", pa.binary(), nullable=False, metadata=tag),
            ]
        )
    raise _no_common_type(what, declared)


def _spark_type(declared: pa.DataType, what: str) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types as t

    is_ = pa.types
    if isinstance(declared, pa.BaseExtensionType):
        return _spark_type(declared.storage_type, what)
    if is_.is_dictionary(declared) or is_.is_run_end_encoded(declared):
        return _spark_type(declared.value_type, what)
    if is_.is_decimal(declared):
        return t.DecimalType(declared.precision, declared.scale)
    if is_.is_timestamp(declared):
        return t.TimestampNTZType() if declared.tz is None else t.TimestampType()
    if is_.is_map(declared):
        return t.MapType(
            _spark_type(declared.key_type, what),
            _spark_type(declared.item_type, what),
            declared.item_field.nullable,
        )
    if is_.is_struct(declared):
        fields = [declared.field(index) for index in range(declared.num_fields)]
        return t.StructType(
            [t.StructField(f.name, _spark_type(f.type, what), f.nullable) for f in fields]
        )
    family = family_of(declared)
    if family == LIST:
        element = _spark_type(declared.value_type, what)
        return t.ArrayType(element, declared.value_field.nullable)
    widest = declared
    if family == TEXT:
        widest = pa.string()
    elif family == BYTES:
        widest = pa.binary()
    elif is_.is_duration(declared):
        widest = pa.duration("us")
    for name, alias in _PLAIN_TYPES.items():
        if hasattr(t, name) and pa.type_for_alias(alias) == widest:
            found: DataType = getattr(t, name)()
            return found
    raise _no_common_type(what, declared)


def _no_common_type(what: str, declared: object) -> TypeError:
    return TypeError(f"{what} has a type that Spark does not share with Arrow: {declared}")
