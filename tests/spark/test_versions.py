"""What differs among the versions of Spark, and what is said of those that are not supported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyspark
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from tests.spark.matrix import OLDEST, VERSIONS


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give PySpark another version."""
    return functools.partial(monkeypatch.setattr, pyspark, "__version__")


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0.dev0"])
def test_an_unsupported_version_is_one_sentence(
    version: str, pretend: Callable[[str], None]
) -> None:
    pretend(version)
    sentence = rf"works with PySpark 3\.5 to 4\.3, and this is PySpark {version}$"
    with pytest.raises(RuntimeError, match=sentence):
        rs.lookup(len, "int").as_map_fn()
    with pytest.raises(RuntimeError, match=sentence):
        rs.map_batches(len, "a int").as_map_fn()  # type: ignore[arg-type]


def test_the_matrix_tries_every_version_from_the_oldest_to_the_newest() -> None:
    assert (VERSIONS[0], VERSIONS[-1]) == (OLDEST, "4.3")
    assert ".".join(map(str, spark_version())) in VERSIONS


@pytest.mark.spark
def test_keys_come_through_pandas_where_spark_has_no_arrow_udfs(
    spark: Any, pretend: Callable[[str], None]
) -> None:
    """The way of the older versions, on whichever is here."""
    if not pyspark.__version__.startswith("3."):
        pretend("4.0.1")
    look = rs.lookup(lambda name, n: f"{name}{n}", "string")
    keys = spark.range(0, 3000, 1, 2).selectExpr("if(id % 10 = 3, null, 'k') as name", "id")
    rows = keys.select(look("name", "id")).collect()
    assert [row[0] for row in rows] == [None if k % 10 == 3 else f"k{k}" for k in range(3000)]
