"""The executable specification of the core: simple Python, with one lock for each object.

Every test of the core passes on this package. Tests compare the compiled backends with it. The
package is also a backend (``RSTREAMS_FAST_BACKEND=python``), for systems without a C compiler. Read
it to learn what a primitive does. The compiled backends do the same, but faster.
"""

from __future__ import annotations

from rstreams_fast.core._faces import module_getattr

__getattr__ = module_getattr(__name__)
