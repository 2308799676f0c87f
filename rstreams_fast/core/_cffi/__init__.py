"""The cffi backend: the same C core as the Cython backend, for PyPy and other interpreters.

``DemandCounter``, the rings and ``SignalSerializer`` use the C primitives. ``FusedRun`` and
``CallWindow`` run Python callables, which C behind cffi cannot speed up: they are the ``python``
backend's, with this backend's demand counters and rings. A cffi call releases the GIL, which costs
more than most primitives: on CPython this backend is for tests, not for speed.
"""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
