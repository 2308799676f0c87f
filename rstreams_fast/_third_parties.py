"""Importing a third party when it is first needed, or saying what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["importing", "numpy_for", "pyarrow_for"]


@contextmanager
def importing(package: str, name: str, install: str) -> Iterator[None]:
    """Have an import that fails say that ``name`` needs ``package``, and what to ``install``."""
    try:
        yield
    except ImportError as missing:
        raise ImportError(
            f"{name} needs {package}, which is not installed: pip install {install}"
        ) from missing


def numpy_for(name: str) -> Any:
    """Return the module ``numpy`` for the function called ``name``."""
    with importing("numpy", name, "'rstreams_fast[numpy]'"):
        import numpy as np
    return np


def pyarrow_for(name: str) -> Any:
    """Return the module ``pyarrow`` for the function called ``name``."""
    with importing("pyarrow", name, "pyarrow"):
        import pyarrow as pa
    return pa
