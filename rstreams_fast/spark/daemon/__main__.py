"""Runs Spark's own daemon. Its workers install the seam (replaced functions) after the fork."""

from __future__ import annotations

import gc
import sys
from typing import Any

from rstreams_fast._third_parties import pyspark_for
from rstreams_fast.spark.daemon.seam import install
from rstreams_fast.spark.daemon.seam_check import WORKER, seam_mismatch


def main() -> None:
    """Run ``pyspark.daemon``. No import before a worker is forked may start a thread."""
    pyspark_for("rstreams_fast.spark.daemon")
    from pyspark import daemon

    if sys.argv[1:] in ([], [WORKER]):
        mismatch = seam_mismatch()
        if mismatch is None:
            daemon.worker = _with_windows(daemon.worker)
        else:
            print(f"rstreams_fast.spark.daemon: {mismatch}: workers run as ever", file=sys.stderr)
    # Spark's logging, and processes that a worker spawns, read the spec of the main module:
    # it must name Spark's daemon.
    sys.modules["__main__"].__spec__ = daemon.__spec__
    daemon.manager()


def _with_windows(stock: Any) -> Any:
    def worker(*args: Any) -> Any:
        try:
            if install():
                # Spark collects garbage after each task. Freezing keeps the collector from
                # visiting the imported objects.
                gc.freeze()
        except Exception as failed:
            print(f"rstreams_fast.spark.daemon: {failed!r}: runs as ever", file=sys.stderr)
        return stock(*args)

    return worker


if __name__ == "__main__":
    main()
