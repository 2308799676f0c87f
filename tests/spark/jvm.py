"""The options of the tests' Java, which lives for seconds: it starts with a third of the work.

Java compiles less, collects garbage on one thread, and maps Spark's classes from an archive instead
of loading them. ``python -m tests.spark.jvm`` writes the archive, in a minute; set-up does so, and
``make spark-matrix``. A Java that finds no archive, or cannot use it, loads the classes and says
nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.helpers import run_python

ARCHIVE: Final = Path(sys.prefix, "spark.jsa")
"""In the virtual environment, beside the Spark whose classes it has."""
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Loads the classes of most jobs: rows through Python, a shuffle, files.
JOB: Final = """
import sys
from pyspark.sql.functions import udf
from tests.spark.conftest import session
spark = session()
rows = spark.range(100).select("id", udf(str)("id").alias("text"))
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(sys.argv[1] + "/rows")
spark.read.parquet(sys.argv[1] + "/rows").groupBy("text").count().toPandas()
spark.stop()
"""


def use_options() -> None:
    """Set the options for each Spark that starts from now on, unless the environment has some."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS + archive * ARCHIVE.exists())


def write_archive() -> None:
    """Write the archive: an empty file if this Java cannot write one."""
    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f"{OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
    with tempfile.TemporaryDirectory() as folder:
        # Java writes the archive when it ends. It holds the output open, so this waits for it.
        run_python("-c", JOB, folder, check=False, env={"SPARK_SUBMIT_OPTS": options}, timeout=300)
    made.touch()
    made.rename(ARCHIVE)


if __name__ == "__main__":
    print("rstreams_fast: Archiving Spark's classes (a minute, once) ...", file=sys.stderr)
    write_archive()
