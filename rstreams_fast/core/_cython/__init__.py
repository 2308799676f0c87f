"""The backend ``c``, for CPython: Cython classes on the C primitives of the folder ``csrc``."""

from __future__ import annotations

from rstreams_fast.core._faces import module_getattr

__getattr__ = module_getattr(__name__)
