"""``BurstIterator``: the ``python`` backend's, for there is nothing in it that C could do."""

from __future__ import annotations

from rstreams_fast.core._spec.bursts import BurstIterator

__all__ = ["BurstIterator"]
