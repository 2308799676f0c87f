"""``BurstIterator`` of the backend ``python``, which C behind cffi could not make faster."""

from __future__ import annotations

from rstreams_fast.core._spec.bursts import BurstIterator

__all__ = ["BurstIterator"]
