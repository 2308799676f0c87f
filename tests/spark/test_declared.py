"""What may be declared as a type or a schema. Needs no Spark that runs."""

from __future__ import annotations

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
