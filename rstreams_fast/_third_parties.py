"""Imports optional packages, such as numpy. An error says how to install a missing package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["importing", "numpy_for", "pyarrow_for", "pyspark_for", "reader_of"]


@contextmanager
def importing(package: str, name: str, install: str) -> Iterator[None]:
    """Return a context manager in which an optional ``package`` is imported.

    If the package is not installed, the ``ModuleNotFoundError`` says that the public function
    ``name`` needs the package, and that ``pip install`` with the argument ``install`` installs it.
    If the package is installed but cannot be loaded, the error of the package propagates.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{name} needs {package}, which is not installed: pip install {install}",
            name=missing.name,
        ) from missing


def numpy_for(name: str) -> Any:
    """Return the module ``numpy``. If it is missing, the error says that ``name`` needs it."""
    with importing("numpy", name, "'rstreams_fast[numpy]'"):
        import numpy as np
    return np


def pyarrow_for(name: str) -> Any:
    """Return the module ``pyarrow``. If it is missing, the error says that ``name`` needs it."""
    with importing("pyarrow", name, "'rstreams_fast[arrow]'"):
        import pyarrow as pa
    return pa


def reader_of(source: Any, schema: Any = None) -> Any:
    """Return a ``pyarrow.RecordBatchReader`` of ``source``, which has ``__arrow_c_stream__``."""
    import pyarrow as pa

    if hasattr(pa.RecordBatchReader, "from_stream"):
        return pa.RecordBatchReader.from_stream(source, schema)
    # pyarrow 14 has no RecordBatchReader.from_stream.
    wanted = None if schema is None else schema.__arrow_c_schema__()
    return pa.RecordBatchReader._import_from_c_capsule(source.__arrow_c_stream__(wanted))


def pyspark_for(name: str) -> Any:
    """Return the module ``pyspark``. If it is missing, the error says that ``name`` needs it."""
    with importing("pyspark", name, "'rstreams_fast[pyspark]'"):
        import pyspark
    return pyspark
