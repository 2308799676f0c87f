"""``BurstIterator``: the ``python`` backend's; C could not improve it."""

from __future__ import annotations

from rstreams_fast.core._spec.bursts import BurstIterator

__all__ = ["BurstIterator"]
