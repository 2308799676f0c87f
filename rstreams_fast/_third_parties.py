"""Imports optional packages when they are first needed. An error says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["importing", "numpy_for", "pyarrow_for", "pyspark_for", "reader_of"]


@contextmanager
def importing(package: str, name: str, install: str) -> Iterator[None]:
    """A context manager for the import of an optional ``package``.

    If the package is not installed, the error says that ``name`` needs it, and what to ``install``.
    A package that is installed but fails to load gives its own error.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{name} needs {package}, which is not installed: pip install {install}",
            name=missing.name,
        ) from missing


def numpy_for(name: str) -> Any:
    """Return ``numpy``. If it is not installed, the error says that ``name`` needs it."""
    with importing("numpy", name, "'rstreams_fast[numpy]'"):
        import numpy as np
    return np


def pyarrow_for(name: str) -> Any:
    """Return ``pyarrow``. If it is not installed, the error says that ``name`` needs it."""
    with importing("pyarrow", name, "'rstreams_fast[arrow]'"):
        import pyarrow as pa
    return pa


def reader_of(source: Any, schema: Any = None) -> Any:
    """Return a ``pyarrow.RecordBatchReader`` that reads ``source`` by ``__arrow_c_stream__``."""
    import pyarrow as pa

    if hasattr(pa.RecordBatchReader, "from_stream"):
        return pa.RecordBatchReader.from_stream(source, schema)
    wanted = None if schema is None else schema.__arrow_c_schema__()  # pyarrow 14
    return pa.RecordBatchReader._import_from_c_capsule(source.__arrow_c_stream__(wanted))


def pyspark_for(name: str) -> Any:
    """Return ``pyspark``. If it is not installed, the error says that ``name`` needs it."""
    with importing("pyspark", name, "'rstreams_fast[pyspark]'"):
        import pyspark
    return pyspark
