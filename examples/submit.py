"""A job for ``spark-submit``, as ``docs/getting-there.md`` has it: ``submit.py OUTPUT``.

Each row of the output says what was answered for it, and where the interpreter that asked is.
"""

from __future__ import annotations

import asyncio
import sys

from pyspark.sql import SparkSession

import rstreams_fast.spark as rs


async def look_up(key: int) -> str:
    """Answer after 2 ms, as a service would."""
    await asyncio.sleep(0.002)
    return f"{key} {sys.prefix}"


def main(output: str) -> None:
    """Look up a thousand keys, and write what was answered."""
    session = SparkSession.builder.getOrCreate()
    keys = session.range(0, 1000, 1, 4)
    keys.withColumn("answer", rs.lookup(look_up, "string")("id")).write.parquet(output)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
