"""Sinks for ``write`` and ``writer``: services and databases that rows are written to."""

from rstreams_fast.spark.sinks.http_sink import HttpError, HttpSink, http

__all__ = ["HttpError", "HttpSink", "http"]
