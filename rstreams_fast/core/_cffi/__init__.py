"""The cffi backend: the same C core as the Cython one, for PyPy and for those who ask for it.

``DemandCounter``, the rings and ``SignalSerializer`` stand on the C primitives. ``FusedRun`` and
``CallWindow`` run Python callables, which C behind cffi cannot speed up: they are those of the
``python`` backend, with this backend's demand counters and rings. A cffi call lets the GIL go,
which costs more than most primitives: on CPython this backend is for tests rather than for speed.
"""

from __future__ import annotations

from rstreams_fast.core._faces import face_of

__getattr__ = face_of(__name__)
