"""Re-exports ``BurstIterator`` of the backend ``python``. A cffi version would not be faster."""

from __future__ import annotations

from rstreams_fast.core._spec.bursts import BurstIterator

__all__ = ["BurstIterator"]
