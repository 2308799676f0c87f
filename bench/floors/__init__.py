"""The floors: what the same calls of user code cost with nothing around them.

``python_loop`` is the loop a person writes by hand, ``c_loop`` the same in C (``_floors.c``).
"""

from __future__ import annotations

from bench.floors._floors import atomic_adds, awaits, copies, nothing, ring_copies
from bench.floors._floors import fused as c_loop
from bench.floors.loops import direct, python_loop, staged

__all__ = [
    "atomic_adds",
    "awaits",
    "c_loop",
    "copies",
    "direct",
    "nothing",
    "python_loop",
    "ring_copies",
    "staged",
]
