"""A policy of each word and of all together, in Spark: the four stages, and UDFs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_python
from tests.policies import CASES
from tests.spark.conftest import worker_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

JOB = """
import json, sys, traceback
from pathlib import Path
from pyspark.sql.functions import udf
from tests.policies import CALLS, CASES, KEYS, STAGES, judge
from tests.spark import conftest, daemons

folder, drop_in = Path(sys.argv[1]), sys.argv[2] == "drop-in"
if drop_in:
    spark = daemons.session(concurrency=CALLS)
else:
    spark = conftest.session("local[1]")
frame = spark.createDataFrame([(k,) for k in KEYS], "k long").coalesce(1)

def column(frame):
    return [row[0] for row in frame.collect()]

def of_stage(place):
    return lambda fn: frame.transform(STAGES[place](fn)).select("v")

stages = {place: of_stage(place) for place in STAGES}
stages["lookup"] = lambda fn: frame.select(STAGES["lookup"](fn)("k"))
udfs = {
    "udf": lambda fn: frame.select(udf(fn, "long")("k")),
    "Arrow udf": lambda fn: frame.select(udf(fn, "long", useArrow=True)("k")),
}
told = {}
for number, (place, made) in enumerate((udfs if drop_in else {**stages, **udfs}).items()):
    for case in CASES:
        number += 1  # by turns, plain or not: each place, and each word, has both
        both = (True, False) if drop_in else (place in udfs or number % 2 == 0,)
        for plain in both if case.plain else (False,):
            if place in udfs and not (plain or drop_in):
                continue  # stock Spark takes no async function
            rows = 1 if place == "map_batches" else 5
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
            name = f"{place} {'plain' if plain else 'async'} {case}"
            try:
                judge(case, folder / name, plain, lambda fn: column(made(fn)))
            except Exception:
                told[name] = traceback.format_exc()
            else:
                told[name] = ""
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.parametrize("workers", ["stock", "drop-in"])
def test_a_word_holds_in_every_place(workers: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(JOB, encoding="utf-8")
    done = run_python(
        str(script), str(tmp_path), workers, cwd=tmp_path, env=worker_environment(), timeout=580
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    failed = {name: error[-1500:] for name, error in told.items() if error}
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())
    assert len(told) > len(CASES)
