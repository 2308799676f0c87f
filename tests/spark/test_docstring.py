"""The example in the package's docstring is Python, and does what it says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

import rstreams_fast.spark as rs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def ask_the_registry(tailnum: str) -> str:
    return f"model of {tailnum}"


async def weather_of(origin: str, hour: int) -> float:
    return float(hour)


def score(batch: Any) -> Any:
    return type(batch).from_pydict({"id": range(batch.num_rows), "score": [0.5] * batch.num_rows})


@pytest.mark.spark
def test_every_line_of_the_docstring_runs(spark: SparkSession) -> None:
    key = ("N1", "EWR", 3)
    flights = spark.createDataFrame([key], "tailnum string, origin string, hour int")
    names: dict[str, Any] = {"flights": flights, "schema": "id long, score double"}
    names |= {fn.__name__: fn for fn in (ask_the_registry, weather_of, score)}
    code, found = str(rs.__doc__).split("```python\n", 1)[1].split("```", 1)[0], []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            found.append([tuple(row) for row in eval(ast.unparse(statement), names).collect()])
        else:
            exec(ast.unparse(statement), names)
    assert found == [[(*key, "model of N1")], [(*key, 3.0)], [(0, 0.5)], [(0, 0.5)]]
