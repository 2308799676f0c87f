"""The cffi backend: the same C core as the Cython backend, for PyPy and other interpreters.

``DemandCounter``, the rings and ``SignalSerializer`` use the C primitives. ``FusedRun`` and
``CallWindow`` spend their time on calls of Python functions, which cffi cannot make faster. So this
backend takes these two classes from the backend ``python``, and gives them its own demand counters
and rings. On CPython this backend is only for tests. There it is slow, because each cffi call
releases the GIL, which takes more time than the work of most primitives.
"""

from __future__ import annotations

from rstreams_fast.core._faces import module_getattr

__getattr__ = module_getattr(__name__)
