"""Importing a third party when it is first needed, or saying what to install."""

from __future__ import annotations

from typing import Any

__all__ = ["numpy_for", "pyarrow_for"]


def numpy_for(name: str) -> Any:
    """Return the module ``numpy`` for the function called ``name``."""
    try:
        import numpy as np
    except ImportError as missing:
        raise ImportError(
            f"{name} needs numpy, which is not installed: pip install 'rstreams_fast[numpy]'"
        ) from missing
    return np


def pyarrow_for(name: str) -> Any:
    """Return the module ``pyarrow`` for the function called ``name``."""
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise ImportError(
            f"{name} needs pyarrow, which is not installed: pip install pyarrow"
        ) from missing
    return pa
