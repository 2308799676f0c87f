"""The cffi backend: the same C core as the Cython backend, for PyPy and other interpreters.

``DemandCounter``, the rings and ``SignalSerializer`` use the C primitives. ``FusedRun`` and
``CallWindow`` call Python functions, and cffi cannot make such calls faster. So these classes are
those of the backend ``python``, with this backend's demand counters and rings. A cffi call releases
the GIL, which takes more time than most primitives. So on CPython this backend is only for tests.
"""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
