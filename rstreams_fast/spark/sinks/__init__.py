"""Sinks for ``write`` and ``writer``: they write rows to HTTP services and to PostgreSQL."""

from rstreams_fast.spark.sinks.http_sink import HttpError, HttpSink, http
from rstreams_fast.spark.sinks.postgres_sink import PostgresSink, postgres

__all__ = ["HttpError", "HttpSink", "PostgresSink", "http", "postgres"]
