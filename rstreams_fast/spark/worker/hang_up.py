"""Seeing that Spark has hung up: it wants no more rows, after a LIMIT say, and does not tell."""

from __future__ import annotations

import select
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["hang_up"]

DESCRIPTORS: Final = 3
"""How many a worker that Spark's daemon forked has of its socket: one accepted, two copies."""


def hang_up() -> Callable[[], bool] | None:
    """Return what says whether Spark has closed its end of this worker's socket.

    ``None`` where it cannot be found, and on systems that do not tell.
    """
    if not hasattr(select, "POLLRDHUP"):
        return None
    found = defaultdict[str, list[int]](list)
    with suppress(OSError):  # a container without /proc
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the directory's own
                found[str(entry.readlink())].append(int(entry.name))
    sockets = [
        fds for of, fds in found.items() if of.startswith("socket:") and len(fds) >= DESCRIPTORS
    ]
    if len(sockets) != 1:
        return None
    poll = select.poll()
    poll.register(sockets[0][0], select.POLLRDHUP)
    return lambda: bool(poll.poll(0))
