"""The backend ``c``, for CPython: Cython classes on the C primitives of the folder ``csrc``."""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
