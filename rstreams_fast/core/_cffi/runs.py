"""``FusedRun`` and ``CallWindow``: the ``python`` backend's, on this one's counters and rings.

What they spend their time on is calling Python functions from Python, and there is nothing for C
behind cffi to do about that. Their demand, permits, sources and slots are this backend's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast.core import _python
from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing


class FusedRun(_python.FusedRun):
    __doc__ = _python.FusedRun.__doc__

    @staticmethod
    def _puller(source: Any) -> Callable[[], Any]:
        if not isinstance(source, SpscRing):
            return super(FusedRun, FusedRun)._puller(source)

        def from_ring() -> Any:
            element = source.poll()
            if element is None:
                raise StopIteration
            return element

        return from_ring


class CallWindow(_python.CallWindow):
    __doc__ = _python.CallWindow.__doc__

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._permits: Any = DemandCounter(self.concurrency)
