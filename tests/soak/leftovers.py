"""What a scenario leaves behind: threads, open files, objects of ours; and memory in the long run.

Objects are counted by type, and exactly: of the types of this project none may be more than before.
Memory, which caches of the interpreter use too, is looked at as a trend: what is in use between
scenarios late in the run, at its least, against the same early in the run.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

OURS = ("rstreams_fast", "tests.soak")


def _objects() -> Counter[str]:
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        module = kind.__module__
        if type(module) is str and module.startswith(OURS):
            found[f"{module}.{kind.__qualname__}"] += 1
    return found


def _files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as light as can be
    except FileNotFoundError:
        return 0


class Before:
    """A look at what there is; :meth:`check` looks again, for ``patience`` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        gc.collect()
        self._threads = set(threading.enumerate())
        self._files = _files()
        self._objects = _objects()

    def check(self) -> None:
        """Raise ``AssertionError`` if there is more now, and stays."""
        until = time.monotonic() + self._patience
        while left := self._left():
            if time.monotonic() > until:
                raise AssertionError(f"left behind: {'; '.join(left)}")
            time.sleep(0.005)

    def _left(self) -> list[str]:
        threads = set(threading.enumerate()) - self._threads
        if threads:
            return [f"thread {thread.name!r}" for thread in threads]
        gc.collect()
        left = [f"{n} of {kind}" for kind, n in (_objects() - self._objects).items()]
        if (files := _files()) > self._files:
            left.append(f"{files - self._files} open files")
        return left


@dataclass
class Memory:
    """Samples of what is in use, and whether that grows."""

    #: What may have come to stay until the end: caches, the specializing interpreter, fragments.
    more_blocks: int = 4000
    # In arrays: as ints of Python the samples themselves would be two more blocks each time.
    blocks: array[int] = field(default_factory=lambda: array("q"))
    pages: array[int] = field(default_factory=lambda: array("q"))

    MORE_BYTES = 24 << 20
    #: Fewer samples are no trend.
    ENOUGH = 12

    def sample(self) -> None:
        # What is known to be kept, up to 256 times: it takes half an hour to fill by chance.
        drains = sys.modules.get("rstreams_fast.core._cython.drain_source")
        if drains is not None:
            drains.code_of.cache_clear()
        self.blocks.append(sys.getallocatedblocks())
        self.pages.append(_resident())

    def grown(self) -> list[str]:
        """What grows, in words; nothing is right."""
        if len(self.blocks) < self.ENOUGH:
            return []
        words = []
        blocks, resident = _trend(self.blocks), _trend(self.pages)
        # One block in each scenario is a leak in a long run, and not to be told from noise in a
        # short one.
        if blocks > max(self.more_blocks, len(self.blocks) // 2):
            words.append(f"{blocks} more blocks of memory in use")
        if resident > self.MORE_BYTES:
            words.append(f"{resident >> 20} MiB more resident")
        return words


def _trend(samples: array[int]) -> int:
    third = len(samples) // 3
    return min(samples[-third:]) - min(samples[third : 2 * third])


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
