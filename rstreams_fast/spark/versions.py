"""The code that depends on the version of PySpark (3.5 to 4.3) or differs in Spark Connect."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._third_parties import importing, pyspark_for
from rstreams_fast.spark.worker.values.pandas_series import run_on_series

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = ["arrow_function_of", "column_of", "parse_ddl", "session_zone", "spark_version"]

OLDEST: Final = (3, 5)
NEWEST: Final = (4, 3)

_DDL_IN_PYTHON: Final = (4, 0)
_ARROW_UDF: Final = (4, 1)


def spark_version() -> tuple[int, int]:
    """Return PySpark's version as (major, minor). Raise ``RuntimeError`` if it is not supported."""
    pyspark = pyspark_for("rstreams_fast.spark")
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if not OLDEST <= (major, minor) <= NEWEST:
        raise RuntimeError(
            f"rstreams_fast.spark works with PySpark {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}, and this is PySpark {pyspark.__version__}"
        )
    return major, minor


def parse_ddl(ddl: str) -> Any:
    """Return the Spark type of a DDL string; ``None`` if this needs a session and there is none.

    Raise ``ValueError`` if the string is no valid DDL.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    try:
        if spark_version() >= _DDL_IN_PYTHON:
            return DataType.fromDDL(ddl)
        session = SparkSession.active()
    except PySparkException as refused:
        if _condition_of(refused) in _NO_SESSION:
            return None
        raise ValueError(str(refused)) from refused
    ddl = _LENGTHS.sub("string", ddl)  # PySpark 3.5 refuses char(n)
    try:
        # Try the DDL string as a single type first, then as the columns of a table.
        return _schema_of(session, f"value {ddl}")["value"].dataType
    except (PySparkException, ValueError):
        try:
            return _schema_of(session, ddl)
        except (PySparkException, ValueError) as refused:
            raise ValueError(str(refused)) from refused


def session_zone(frame: DataFrame | None = None) -> str | None:
    """Return the time zone of a session: of the ``frame``, else of the active session, if any."""
    pyspark_for("rstreams_fast.spark")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active() if frame is None else frame.sparkSession
    except PySparkException:
        return None
    zone: str | None = session.conf.get("spark.sql.session.timeZone")
    return zone


_LENGTHS: Final = re.compile(r"\b(?:var)?char\s*\(\s*\d+\s*\)", re.IGNORECASE)

_NO_SESSION: Final = (
    "NO_ACTIVE_OR_DEFAULT_SESSION",
    "NO_ACTIVE_SESSION",
    "SESSION_OR_CONTEXT_NOT_EXISTS",
)


def _condition_of(refused: Any) -> str | None:
    condition: str | None = getattr(refused, "getCondition", refused.getErrorClass)()
    return condition


def _schema_of(session: Any, ddl: str) -> Any:
    return session.createDataFrame([], ddl).schema


_TIMESTAMP_OPTIONS: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS"}
"""The options of ``to_json`` by which ``_pandas_column`` passes timestamps as strings."""

ColumnFunction = Callable[[Iterator[Any]], Iterator[Any]]
"""A function over an iterator of Arrow arrays, or of tuples of arrays, that yields result arrays.
"""


def column_of(
    run: ColumnFunction,
    declared: DataType,
    label: str,
    keys: tuple[str | Column, ...],
    deterministic: bool,
) -> Column:
    """Return the Spark column of the results of ``run`` for the key columns ``keys``."""
    if spark_version() >= _ARROW_UDF:
        column: Column = arrow_function_of(run, declared, label, len(keys), deterministic)(*keys)
        return column
    return _pandas_column(run, declared, _identifier(label), keys, deterministic)


def arrow_function_of(
    run: ColumnFunction, declared: DataType, label: str, keys: int, deterministic: bool
) -> Any:
    """Return ``run`` as an Arrow UDF. Raise ``RuntimeError`` if this PySpark has no Arrow UDFs."""
    if spark_version() < _ARROW_UDF:
        raise RuntimeError(
            f"{label}: to register a lookup by a name takes PySpark "
            f"{'.'.join(map(str, _ARROW_UDF))} or later; there, call it with its columns"
        )
    import pyarrow as pa
    import pyspark.sql.functions

    def call(arrays):  # type: ignore[no-untyped-def]  # annotated below, for Spark to read
        return run(arrays)

    kind = Iterator[pa.Array] if keys == 1 else Iterator[tuple[pa.Array, ...]]
    call.__annotations__ = {"arrays": kind, "return": Iterator[pa.Array]}
    call.__name__ = call.__qualname__ = _identifier(label)
    # ``Any``, because the type hints of older PySpark versions lack arrow_udf.
    functions: Any = pyspark.sql.functions
    function = functions.arrow_udf(call, declared)
    return function if deterministic else function.asNondeterministic()


def _identifier(label: str) -> str:
    return label.replace(".", "_").strip("<>")


def _pandas_column(
    run: ColumnFunction,
    declared: DataType,
    name: str,
    keys: tuple[str | Column, ...],
    deterministic: bool,
) -> Column:
    """Return the same column as ``column_of``, by a pandas UDF, for PySpark before 4.1.

    pandas turns integers beside a null into floats, and a null struct into a struct of nulls. So
    this function wraps each key and each result in an array of one element; an empty array means
    null. pandas also drops the session's time zone and the types of the keys: the UDF gets these as
    another column. pandas refuses time zones that only Java knows: the UDF gets timestamps among
    the keys as strings in UTC, in its last column.
    """
    import pyspark.sql.functions
    from pyspark.sql.types import ArrayType

    with importing("pandas", "a lookup's column before PySpark 4.1", "'rstreams_fast[pyspark]'"):
        import pandas as pd

    if '"type":"udt"' in declared.json():
        raise RuntimeError(
            f"{name}: a user's type as the result of a lookup takes PySpark "
            f"{'.'.join(map(str, _ARROW_UDF))} or later; there, use enrich"
        )
    if '"timestamp"' in declared.json() and not _supports_timestamps():
        raise RuntimeError(
            f"{name}: a timestamp as the result of a lookup takes PySpark 3.5.2 or later "
            f"(SPARK-47202), and this is {pyspark.__version__}; here, use enrich"
        )
    f: Any = pyspark.sql.functions

    def call(series):  # type: ignore[no-untyped-def]
        return run_on_series(run, series)

    call.__annotations__ = {
        "series": Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.Series],
    }
    call.__name__ = call.__qualname__ = name
    columns = [f.col(key) if isinstance(key, str) else key for key in keys]
    kinds = f.concat_ws("|", f.current_timezone(), *map(f.typeof, columns))
    function = f.pandas_udf(call, ArrayType(declared))
    if not deterministic:
        function = function.asNondeterministic()
    arrays, texts = [], []
    for c in columns:
        array, is_timestamp = f.array_compact(f.array(c)), f.typeof(c) == "timestamp"
        arrays.append(f.when(~is_timestamp, array))
        texts.append(
            f.when(is_timestamp, f.get_json_object(f.to_json(array, _TIMESTAMP_OPTIONS), "$[0]"))
        )
    found = function(*arrays, kinds, f.array(*texts))
    column: Column = f.get(found, f.lit(0))
    return column


def _supports_timestamps() -> bool:
    """Whether this PySpark can return timestamps, which the bug SPARK-47202 prevents.

    The bug is a misspelt name in PySpark's code. The version does not say whether it is fixed: a
    vendor may have corrected an older version.
    """
    from pyspark.sql.pandas import types

    return "pd.Timstamp(" not in inspect.getsource(types)
