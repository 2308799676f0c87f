"""What may be declared as a type or a schema. Needs no Spark that runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from rstreams_fast.spark.declared import resolve_schema, resolve_type
from tests.helpers import run_python


def test_without_a_session_ddl_says_to_start_one() -> None:
    script = (
        "import rstreams_fast.spark as rs\n"
        "try:\n"
        "    rs.lookup(print, 'interactive lang').as_map_fn()\n"
        "except RuntimeError as refused:\n"
        "    print(refused)\n"
    )
    said = run_python("-c", script, env={"SPARK_REMOTE": None}).stdout
    assert "returns='interactive lang' is a DDL string, and only a running SparkSession" in said


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        (YearMonthIntervalType(), "YearMonthIntervalType"),
        (ArrayType(YearMonthIntervalType()), "YearMonthIntervalType"),
        (pa.uint8(), "uint8"),
        (pa.list_(pa.float16()), "halffloat"),
    ],
    ids=str,
)
def test_a_type_that_only_one_side_has_names_the_argument(declared: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^returns has a type that Spark does not .*{named}"):
        resolve_type(declared, "returns")
    if isinstance(declared, pa.DataType):
        schema = pa.schema([("good", pa.int8()), ("bad", declared)])
    else:
        schema = StructType([StructField("good", ByteType()), StructField("bad", declared)])
    with pytest.raises(TypeError, match=f"^output: the column 'bad' has a type that .*{named}"):
        resolve_schema(schema, "output")
