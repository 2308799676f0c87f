"""Detects that Spark has closed its end of the worker's socket.

Spark does this if it needs no more rows of the partition, as after a ``LIMIT``.
"""

from __future__ import annotations

import select
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["hang_up_check"]

DESCRIPTORS: Final = 3
"""A forked worker has at least this many file descriptors of Spark's socket: two are copies."""


def hang_up_check() -> Callable[[], bool] | None:
    """Return a function that tells whether Spark has closed its end of this worker's socket.

    ``None`` if the socket is not found, or the system has no ``POLLRDHUP``.
    """
    if not hasattr(select, "POLLRDHUP"):
        return None
    found = defaultdict[str, list[int]](list)
    with suppress(OSError):  # a container may have no /proc
        for entry in Path("/proc/self/fd").iterdir():
            # iterdir lists its own descriptor of /proc/self/fd, too, which may be closed already.
            with suppress(OSError):
                found[str(entry.readlink())].append(int(entry.name))
    sockets = [
        fds for of, fds in found.items() if of.startswith("socket:") and len(fds) >= DESCRIPTORS
    ]
    if len(sockets) != 1:
        return None
    poll = select.poll()
    poll.register(sockets[0][0], select.POLLRDHUP)
    return lambda: bool(poll.poll(0))
