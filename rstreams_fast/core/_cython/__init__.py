"""The core on the C primitives of ``csrc``, for CPython."""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
