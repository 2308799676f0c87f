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
"""How many elements ``publish_on``, ``for`` and ``async for`` request in advance.

Large bursts make the hand-over between threads cheap. In a ``for`` loop over a source on another
thread, one element takes 1080 ns with a prefetch of 64, 294 ns with 256, 140 ns with 1024, and 69
ns with 4096. In ``async for``, with the same four values, one element takes 1965, 554, 244 and 106
ns (two processors, CPython 3.11)."""

INNER_PREFETCH: Final = 256
"""How many elements ``merge`` and ``zip_`` request in advance from each publisher, and
``concat_map`` from its upstream.

With a prefetch of 32, an element takes three times as long. With 1024, which takes four times the
memory, an element of ``merge`` takes half as long, and ``zip_`` is no faster."""

FLAT_MAP_CONCURRENCY: Final = 256
"""The most inner publishers that ``flat_map`` is subscribed to at the same time."""

FLAT_MAP_PREFETCH: Final = 32
"""How many elements ``flat_map`` requests in advance from each inner publisher. The number is
small, because ``flat_map`` has many inner publishers."""

DELAYED_ERRORS: Final = 64
"""The most errors that an operator keeps if it delays errors until all publishers have ended."""

OVERFLOW_CAPACITY: Final = 1024
"""The most elements held between a source that ignores demand and its subscriber."""

MULTICAST_BUFFER: Final = 1024
"""How many elements one subscriber of a multicast may be ahead of another subscriber.

With a smaller buffer each element takes longer. A larger buffer saves hardly any time."""

ROWS: Final = 1 << 16
"""The most rows of an array that ``from_numpy`` delivers as one element. Also the most records
that ``publish_records_on`` holds."""

ARRAYS_PREFETCH: Final = 8
"""How many arrays an asynchronous subscriber requests in advance. Few: an array can be large."""

BURST: Final = 256
"""The most source elements that a drain processes before it checks whether it must let other work
of its thread run."""

CALLER_BURST: Final = 4096
"""The most source elements in one burst of a drain on the requesting thread. This is more than
``BURST``, because no other work of that thread waits."""

FEW: Final = 64
"""A sequence of at most this many elements is delivered in a plain loop. For 32 elements, a
``FusedRun`` would take 10 % more time."""

PART_GROWS: Final = 16
"""How many times larger the next request is, if the previous ``request`` was quick: it returned
within a sixteenth of a turn. A turn is the millisecond for which work may occupy an event loop."""

DESCRIBED_DEPTH: Final = 8
"""How many levels of nested publishers ``describe`` shows, such as a ``merge`` in a ``merge``."""

TRAMPOLINE_EVERY: Final = 16
"""How many subscribers of a chain may call each other in nested calls, before a trampoline ends the
nesting. Each subscriber takes about ten stack frames. Python's stack has 1000."""

TRAMPOLINE_PREFETCH: Final = 64
"""The most elements that a trampoline holds. A trampoline queues elements so that calls of
``on_next`` do not nest deeper."""


def replenish_at(prefetch: int) -> int:
    """Return after how many consumed elements to request again: three quarters of ``prefetch``."""
    return max(1, prefetch - (prefetch >> 2))


def next_burst(burst: int, seconds: float) -> int:
    """Return the size of the next burst, if the last ``burst`` elements took ``seconds``."""
    if seconds > TURN_SECONDS:
        return max(1, burst // 2)
    if burst < BURST and seconds < TURN_SECONDS / 4:
        return min(burst * 4, BURST)
    return burst
