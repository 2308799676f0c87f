"""Records in bulk, beside ``memcpy``.

Each contestant moves the same bytes from one array into memory of its own and from there into
another array: the working set is three times the size that is said. Others on the machine only ever
make a copy slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from bench.drivers import Missing
from bench.floors import copies, ring_copies
from bench.measure import Contestant, Group, Outcome, Role, Work

__all__ = ["RECORDS"]

KIB = 1024
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)

#: Bytes that a timed run moves in all: less than a time slice of work.
BYTES = 16 << 20

#: What touches no byte is done so many times, so that the first and the last copy are small.
IN_PLACE_TIMES = 20_000

Run = Callable[[Any, Any, int], None]


def numpy_copies(source: Any, target: Any, times: int) -> None:
    """What numpy does in Python."""
    import numpy as np

    own = np.empty_like(source)
    for _ in range(times):
        own[:] = source
        target[:] = own


def record_ring(source: Any, target: Any, times: int) -> None:
    """``write`` and ``read_into``."""
    from rstreams_fast.core import RecordRing

    ring = RecordRing(source.dtype, len(source))
    for _ in range(times):
        ring.write(source)
        ring.read_into(target)


def in_place(source: Any, target: Any, times: int) -> None:
    """Records handed over where they are: not a byte is touched but by the last turn's copy."""
    from rstreams_fast.core import RecordRing

    ring = RecordRing(source.dtype, len(source))
    count = len(source)
    ring.reserve(count)[:] = source
    for turn in range(times):
        ring.reserve(count)
        ring.commit(count)
        view = ring.peek(count)
        if turn == times - 1:
            target[:] = view
        del view
        ring.release(count)


def _contestant(name: str, role: Role, run: Run, size: int, times: int, note: str) -> Contestant:
    def begin(n: int) -> tuple[Work, object]:
        try:
            import numpy as np
        except ImportError:
            raise Missing("numpy is not installed") from None
        source = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        target = np.zeros_like(source)
        run(source, target, 2)  # touches the pages
        target[:] = 0

        def work() -> Outcome:
            run(source, target, n)
            return Outcome(target)

        return work, _Equal(source)

    return Contestant(name, role, times, begin, note)


class _Equal:
    """Equal to an array that has the same bytes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any) -> None:
        self._bytes = array.tobytes()

    def __eq__(self, other: object) -> bool:
        return bool(cast("Any", other).tobytes() == self._bytes)

    def __repr__(self) -> str:
        return "the bytes that went in"


def _size(size: int) -> Group:
    times = BYTES // size
    return Group(
        f"records-{size // KIB}",
        "primitive",
        f"{size // KIB} KiB of records in and out, working set {3 * size // KIB} KiB",
        [
            _contestant("ours, write and read_into", "ours", record_ring, size, times, ""),
            _contestant("ours, the C core's ring", "ours", ring_copies, size, times, "C"),
            _contestant("memcpy", "floor", copies, size, times, "C"),
            _contestant("two slice assignments of numpy", "peer", numpy_copies, size, times, ""),
            _contestant(
                "ours, reserve .. release",
                "ours",
                in_place,
                size,
                IN_PLACE_TIMES,
                "handed over where they are",
            ),
        ],
        unit="ns per turn",
    )


RECORDS = [_size(size) for size in SIZES]
