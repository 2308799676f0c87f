"""The drop-in: the UDFs that people already have, with overlapping calls and no line changed.

One setting names this package, ``spark.python.daemon.module=rstreams_fast.spark.daemon``; Spark
then starts ``python -m rstreams_fast.spark.daemon pyspark.worker``. The daemon and its workers are
Spark's own: only what makes the calls of scalar UDFs is put in, by ``seam``. To leave: delete the
setting.
"""
