"""Calls of a user's function under a policy: retries, time-outs, limits, caches and journals.

This package imports neither ``rstreams_fast.streams`` nor Spark.
"""
