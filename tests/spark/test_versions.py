"""What differs among the versions of Spark, and what is said of those that are not supported."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyspark
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from rstreams_fast.spark.worker.values.pandas_series import run_on_series
from tests.spark.matrix import OLDEST, VERSIONS


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0.dev0"])
def test_an_unsupported_version_is_one_sentence(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    sentence = rf"works with PySpark 3\.5 to 4\.3, and this is PySpark {version}$"
    with pytest.raises(RuntimeError, match=sentence):
        rs.lookup(len, "int").as_map_fn()
    with pytest.raises(RuntimeError, match=sentence):
        rs.map_batches(len, "a int").as_map_fn()  # type: ignore[arg-type]


def test_the_matrix_tries_every_version_from_the_oldest_to_the_newest() -> None:
    assert (VERSIONS[0], VERSIONS[-1]) == (OLDEST, "4.3")
    assert ".".join(map(str, spark_version())) in VERSIONS


def test_keys_are_series_of_lists_where_spark_has_no_arrow_udfs() -> None:
    """The way of the older versions, on whichever is here."""
    look = rs.lookup(lambda name, n: f"{name}{n}", pa.string())
    keys = [pd.Series([["a"], ["b"], []]), pd.Series([[1], [2], [3]])]
    no_timestamps = pd.Series([[None, None]] * 3)
    batch = (*keys, pd.Series(["UTC|string|bigint"] * 3), no_timestamps)
    run, _ = look._column_function()
    (result,) = run_on_series(run, iter([batch]))
    assert result.tolist() == [["a1"], ["b2"], []]
