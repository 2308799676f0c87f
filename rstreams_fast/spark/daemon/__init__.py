"""A drop-in daemon for Spark: the calls of existing UDFs overlap, with no change of their code.

One setting names this package, ``spark.python.daemon.module=rstreams_fast.spark.daemon``. Spark
then starts ``python -m rstreams_fast.spark.daemon pyspark.worker``, which runs Spark's own daemon
and workers. In a worker, ``seam`` replaces only the code that makes the calls of scalar UDFs.
Delete the setting to use Spark's own daemon again.
"""
