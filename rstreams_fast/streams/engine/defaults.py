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
"""How many elements ``publish_on`` and the loops ``for`` and ``async for`` request in advance.

With a large prefetch, threads hand over many elements at a time, and each element costs less. In a
``for`` loop over a source on another thread, one element takes 1080 ns with a prefetch of 64, 294
ns with 256, 140 ns with 1024, and 69 ns with 4096. In ``async for``, with the same four values, one
element takes 1965, 554, 244 and 106 ns (two processors, CPython 3.11)."""

INNER_PREFETCH: Final = 256
"""How many elements ``merge`` and ``zip_`` request in advance from each publisher, and
``concat_map`` from its upstream.

With 32 instead of 256, an element takes three times as long. With 1024 instead of 256, an element
of ``merge`` takes half as long and ``zip_`` is no faster, but the memory is four times as large."""

FLAT_MAP_CONCURRENCY: Final = 256
"""The maximum number of inner publishers to which ``flat_map`` is subscribed at the same time."""

FLAT_MAP_PREFETCH: Final = 32
"""How many elements ``flat_map`` requests in advance from each inner publisher. The number is
small, because ``flat_map`` has many inner publishers."""

DELAYED_ERRORS: Final = 64
"""The maximum number of errors that an operator keeps, if it delays errors until all its publishers
have ended."""

OVERFLOW_CAPACITY: Final = 1024
"""The maximum number of elements that are buffered below a source that ignores demand."""

MULTICAST_BUFFER: Final = 1024
"""How many elements one subscriber of a ``multicast`` may be ahead of another subscriber.

With a smaller number, each element takes longer. A larger number saves hardly any time."""

ROWS: Final = 1 << 16
"""Two defaults: ``chunk`` of ``from_numpy`` (the maximum number of array rows in one element), and
``capacity`` of ``publish_records_on`` (the maximum number of records in its buffer)."""

ARRAYS_PREFETCH: Final = 8
"""How many arrays an asynchronous subscriber requests in advance. The number is small, because an
array can be large."""

BURST: Final = 256
"""The maximum number of source elements that a drain loop processes without a pause. After so many
elements, the loop checks whether it must let other work of its thread run."""

CALLER_BURST: Final = 4096
"""The same as ``BURST`` (the maximum number of elements without a pause), if the drain loop runs on
the thread that called ``request``. The number is larger, as no other work waits for this thread."""

FEW: Final = 64
"""A sequence of up to this many elements is delivered in a plain Python loop. Longer sequences are
delivered by a ``FusedRun``. It takes less time for each element, but more time to set up: for 32
elements, it would take 10 % more time in total."""

PART_GROWS: Final = 16
"""An operator requests many elements in parts. If a request for a part takes less than
1/``PART_GROWS`` of a turn (time slice of 1 ms), the next part is ``PART_GROWS`` times as large."""

DESCRIBED_DEPTH: Final = 8
"""How many levels of nested publishers ``describe`` shows, such as a ``merge`` in a ``merge``."""

TRAMPOLINE_EVERY: Final = 16
"""How many subscribers of a chain may signal each other in nested calls. Below them a trampoline,
which queues calls, ends the nesting. A subscriber takes about ten of Python's 1000 stack frames."""

TRAMPOLINE_PREFETCH: Final = 64
"""The maximum number of elements that a trampoline holds. A trampoline queues elements, so that
calls of ``on_next`` do not nest deeper."""


def replenish_at(prefetch: int) -> int:
    """Return how many elements must be consumed before the next request: 3/4 of ``prefetch``."""
    return max(1, prefetch - (prefetch >> 2))


def next_burst(burst: int, seconds: float, *, full: bool = True) -> int:
    """Return how many elements a drain loop processes next without a pause (the next burst).

    The last burst had at most ``burst`` elements, and took ``seconds``. If it was slow, the next is
    smaller. ``full``: whether the burst had ``burst`` elements. If not, the next is not larger: a
    short time then does not mean that the elements are quick, as there may have been none.
    """
    if seconds > TURN_SECONDS:
        return max(1, burst // 2)
    if full and burst < BURST and seconds < TURN_SECONDS / 4:
        return min(burst * 4, BURST)
    return burst
