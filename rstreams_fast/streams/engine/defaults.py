"""The numbers that streams are tuned by, in one home."""

from __future__ import annotations

from typing import Final

from rstreams_fast.runtime.turns import TURN_SECONDS

__all__ = [
    "ARRAYS_PREFETCH",
    "BURST",
    "CALLER_BURST",
    "DELAYED_ERRORS",
    "FEW",
    "FLAT_MAP_CONCURRENCY",
    "FLAT_MAP_PREFETCH",
    "INNER_PREFETCH",
    "MULTICAST_BUFFER",
    "OVERFLOW_CAPACITY",
    "PART_GROWS",
    "PREFETCH",
    "ROWS",
    "TRAMPOLINE_EVERY",
    "TRAMPOLINE_PREFETCH",
    "next_burst",
    "replenish_at",
]

PREFETCH: Final = 1024
"""Elements that ``publish_on``, ``for`` and ``async for`` ask for ahead: bursts of that size make a
hand-over cheap. With 64, 256, 1024 and 4096 an element of another thread costs ``for`` 1080, 294,
140 and 69 ns, ``async for`` 1965, 554, 244 and 106 (two processors, CPython 3.11)."""

INNER_PREFETCH: Final = 256
"""Elements that ``merge`` and ``zip_`` ask each of their publishers for ahead, and ``concat_map``
the one above it. Bursts of 32 cost three times as much an element; beyond 256 ``zip_`` gains
nothing more, ``merge`` half, for four times the memory."""

FLAT_MAP_CONCURRENCY: Final = 256
"""Publishers that ``flat_map`` is subscribed to at once."""

FLAT_MAP_PREFETCH: Final = 32
"""Elements that ``flat_map`` asks each of them for ahead: they are many, and mostly short."""

DELAYED_ERRORS: Final = 64
"""The most errors that are kept until the others are over: any number of publishers may fail."""

OVERFLOW_CAPACITY: Final = 1024
"""Elements held of a source that does not wait to be asked."""

MULTICAST_BUFFER: Final = 1024
"""Elements by which one subscriber of a multicast may be ahead of another. Each element costs more
in a smaller buffer, and hardly less in a larger one."""

ROWS: Final = 1 << 16
"""Rows of an array, or records, that are handed on as one element, or held by a boundary."""

ARRAYS_PREFETCH: Final = 8
"""Arrays that an asynchronous end asks for ahead: each may be large."""

BURST: Final = 256
"""The most source elements that a drain processes before it looks up."""

CALLER_BURST: Final = 4096
"""The same on the thread that asks, where nobody waits for a turn."""

FEW: Final = 64
"""The most elements of a sequence for which no run is made, which takes a tenth more of 32."""

PART_GROWS: Final = 16
"""How many times as many elements a publisher is asked for when it sent the last ones at once."""

DESCRIBED_DEPTH: Final = 8
"""Combinations within combinations that ``describe`` looks into."""

TRAMPOLINE_EVERY: Final = 16
"""Boundaries whose calls may nest: each takes some ten frames, and the stack has 1000 of them."""

TRAMPOLINE_PREFETCH: Final = 64
"""The most elements held where calls stop nesting."""


def replenish_at(prefetch: int) -> int:
    """How many elements are consumed before as many are asked for again: three quarters."""
    return max(1, prefetch - (prefetch >> 2))


def next_burst(burst: int, seconds: float) -> int:
    """How many elements to process at once next, after so many took so long."""
    if seconds > TURN_SECONDS:
        return max(1, burst // 2)
    if burst < BURST and seconds < TURN_SECONDS / 4:
        return min(burst * 4, BURST)
    return burst
