"""The default sizes and limits of streams."""

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
"""Elements that ``publish_on``, ``for`` and ``async for`` ask for ahead: large bursts make a
hand-over cheap. With 64, 256, 1024 and 4096 an element from another thread costs ``for`` 1080, 294,
140 and 69 ns, ``async for`` 1965, 554, 244 and 106 ns (two processors, CPython 3.11)."""

INNER_PREFETCH: Final = 256
"""Elements that ``merge`` and ``zip_`` ask each of their publishers for ahead, and ``concat_map``
its upstream. With 32 an element costs three times as much. With 1024, which takes four times the
memory, ``zip_`` is no faster, and an element of ``merge`` costs half."""

FLAT_MAP_CONCURRENCY: Final = 256
"""Publishers that ``flat_map`` is subscribed to at once."""

FLAT_MAP_PREFETCH: Final = 32
"""Elements that ``flat_map`` asks each inner publisher for ahead. Inner publishers are many."""

DELAYED_ERRORS: Final = 64
"""The most errors that are kept until all publishers have ended: any number of them may fail."""

OVERFLOW_CAPACITY: Final = 1024
"""Elements held for a source that sends elements without waiting for demand."""

MULTICAST_BUFFER: Final = 1024
"""Elements by which one subscriber of a multicast may be ahead of another. Each element costs more
in a smaller buffer, and hardly less in a larger one."""

ROWS: Final = 1 << 16
"""Rows of an array, or records, that are delivered as one element, or held by a boundary."""

ARRAYS_PREFETCH: Final = 8
"""Arrays that an asynchronous end asks for ahead: each may be large."""

BURST: Final = 256
"""The most source elements that a drain processes before it checks whether its turn is over."""

CALLER_BURST: Final = 4096
"""The same as ``BURST``, on the requesting thread, where no other work waits for a turn."""

FEW: Final = 64
"""The most elements of a sequence that are delivered without a run: a run of 32 costs 10 % more."""

PART_GROWS: Final = 16
"""The factor by which a request grows when the publisher answered the request before at once."""

DESCRIBED_DEPTH: Final = 8
"""Combinations within combinations that ``describe`` looks into."""

TRAMPOLINE_EVERY: Final = 16
"""Boundaries whose calls may nest: each takes about ten frames, of the 1000 that a stack has."""

TRAMPOLINE_PREFETCH: Final = 64
"""The most elements that a trampoline, where calls stop nesting, holds."""


def replenish_at(prefetch: int) -> int:
    """Return after how many consumed elements as many are asked for again: three quarters."""
    return max(1, prefetch - (prefetch >> 2))


def next_burst(burst: int, seconds: float) -> int:
    """Return the size of the next burst, after ``burst`` elements took ``seconds``."""
    if seconds > TURN_SECONDS:
        return max(1, burst // 2)
    if burst < BURST and seconds < TURN_SECONDS / 4:
        return min(burst * 4, BURST)
    return burst
