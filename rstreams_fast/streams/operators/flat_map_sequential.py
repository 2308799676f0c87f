"""``flat_map_sequential``: like ``flat_map``, but delivers one publisher after another.

The publishers run at the same time. The elements of the later publishers wait.
"""

from __future__ import annotations

from rstreams_fast.streams.operators.flat_map import FlatMap

__all__ = ["FlatMapSequential"]


class FlatMapSequential(FlatMap):
    operator = "flat_map_sequential"
    sequential = True
