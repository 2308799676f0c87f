"""The example in the package's docstring is Python, and does what it says."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import rstreams_fast.spark as rs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def example() -> ast.Module:
    assert rs.__doc__ is not None
    code = rs.__doc__.split("```python\n", 1)[1].split("```", 1)[0]
    return ast.parse(textwrap.dedent(code))


async def ask_the_registry(tailnum: str) -> str:
    return f"model of {tailnum}"


async def weather_of(origin: str, hour: int) -> float:
    return float(hour)


def score(batch: Any) -> Any:
    import pyarrow as pa

    rows = batch.num_rows
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(range(rows), pa.int64()), "score": [0.5] * rows}
    )


@pytest.mark.spark
def test_every_line_of_the_docstring_runs(spark: SparkSession) -> None:
    key = ("N1", "EWR", 3)
    names: dict[str, Any] = {
        "flights": spark.createDataFrame(
            [("N1", "EWR", 3)], "tailnum string, origin string, hour int"
        ),
        "ask_the_registry": ask_the_registry,
        "weather_of": weather_of,
        "score": score,
        "schema": "id long, score double",
    }
    found = []
    for statement in example().body:
        if isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), "docstring", "eval")
            found.append([tuple(row) for row in eval(code, names).collect()])
        else:
            exec(compile(ast.Module([statement], []), "docstring", "exec"), names)
    assert found == [[(*key, "model of N1")], [(*key, 3.0)], [(0, 0.5)], [(0, 0.5)]]
