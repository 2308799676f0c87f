"""Runs Spark's own daemon, and replaces functions of ``pyspark.worker`` in each forked worker."""

from __future__ import annotations

import gc
import sys
from typing import Any

from rstreams_fast._third_parties import pyspark_for
from rstreams_fast.spark.daemon.seam import install
from rstreams_fast.spark.daemon.seam_check import WORKER, seam_mismatch


def main() -> None:
    """Run ``pyspark.daemon``, which forks workers: so no module imported here may start threads."""
    pyspark_for("rstreams_fast.spark.daemon")
    from pyspark import daemon

    if sys.argv[1:] in ([], [WORKER]):
        mismatch = seam_mismatch()
        if mismatch is None:
            daemon.worker = _with_windows(daemon.worker)
        else:
            print(f"rstreams_fast.spark.daemon: {mismatch}: workers run as ever", file=sys.stderr)
    # Spark's logging and the child processes of a worker read ``__main__.__spec__``. There they
    # must find the name of Spark's daemon, not the name of this module.
    sys.modules["__main__"].__spec__ = daemon.__spec__
    daemon.manager()


def _with_windows(stock: Any) -> Any:
    def worker(*args: Any) -> Any:
        try:
            if install():
                # A worker calls ``gc.collect`` after each task. ``gc.freeze`` makes these calls
                # skip the objects of the modules that are imported already.
                gc.freeze()
        except Exception as failed:
            print(f"rstreams_fast.spark.daemon: {failed!r}: runs as ever", file=sys.stderr)
        return stock(*args)

    return worker


if __name__ == "__main__":
    main()
