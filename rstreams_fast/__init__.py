"""Reactive Streams for Python, done properly, on a C core."""

__version__ = "0.1.0"
