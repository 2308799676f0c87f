"""The executable specification of the core: plain, obvious Python, one lock per object.

Every test of the core passes on this package, and the compiled backends are compared with it. It is
also a backend (``RSTREAMS_FAST_BACKEND=python``), for systems where nothing can be compiled. Read
it to learn what a primitive does; the compiled backends do the same, faster.
"""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
