"""``BurstIterator``, taken from the backend ``python``: cffi could not make it faster."""

from __future__ import annotations

from rstreams_fast.core._spec.bursts import BurstIterator

__all__ = ["BurstIterator"]
