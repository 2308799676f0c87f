"""Options with which the tests' Java, which lives for seconds, starts in a third of the work.

It compiles less, and collects on one thread; and it maps the classes of Spark, as they are after
loading, from an archive. ``python -m tests.spark.jvm`` writes the archive, in a minute; set-up does
so. A Spark without an archive loads its classes itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Loads the classes of most jobs: rows through Python, a shuffle, files.
JOB: Final = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).select("id", F.udf(str)("id").alias("text"))
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(sys.argv[1] + "/rows")
spark.read.parquet(sys.argv[1] + "/rows").groupBy("text").count().toPandas()
spark.stop()
"""


def use_options() -> None:
    """Have the options in the environment, for each Spark that starts from now on."""
    if "SPARK_SUBMIT_OPTS" not in os.environ:
        os.environ["SPARK_SUBMIT_OPTS"] = options()


def options() -> str:
    """Return the options for a JVM of this Spark."""
    archive = archive_path()
    if not archive.exists():
        return OPTIONS
    # a Java that cannot use the archive goes without, and says nothing
    return f"{OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def archive_path() -> Path:
    import pyspark

    return ROOT / "build" / f"spark-{pyspark.__version__}.jsa"


def write_archive(archive: Path) -> None:
    """Write the archive; an empty file if this Java cannot."""
    made = archive.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": f"{OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={made}",
        }
        # until its Java, which writes the archive when it ends, has closed the output, too
        subprocess.run(
            [sys.executable, "-c", JOB, folder],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
    made.touch()
    made.rename(archive)


if __name__ == "__main__" and not archive_path().exists():
    print("rstreams_fast: Archiving Spark's classes (a minute, once) ...", file=sys.stderr)
    write_archive(archive_path())
