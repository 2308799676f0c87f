"""``CallWindow``, which limits concurrent calls: the Python class with C rings and counters."""

from __future__ import annotations

from typing import Any

from rstreams_fast.core._cffi.demand import DemandCounter
from rstreams_fast.core._cffi.ring import SpscRing
from rstreams_fast.core._spec import window as spec

__all__ = ["CallWindow"]


class CallWindow(spec.CallWindow):
    _ring_type = SpscRing

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._permits: Any = DemandCounter(self.concurrency)
