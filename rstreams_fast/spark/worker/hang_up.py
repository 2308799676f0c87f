"""Detects that Spark has closed its end of the worker's socket.

Spark closes the socket if it needs no more rows of the partition, for example after a ``LIMIT``.
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
"""The minimum number of file descriptors of the socket to Spark in a forked worker.

PySpark duplicates the descriptor twice, so the number identifies this socket among others."""


def hang_up_check() -> Callable[[], bool] | None:
    """Return a function that returns whether Spark has closed its end of this worker's socket.

    Return ``None`` if the socket is not found, or if the system has no ``POLLRDHUP``.
    """
    if not hasattr(select, "POLLRDHUP"):
        return None
    found = defaultdict[str, list[int]](list)
    with suppress(OSError):  # OSError: the container has no /proc
        for entry in Path("/proc/self/fd").iterdir():
            # iterdir opens a descriptor to read the directory, and lists this descriptor, too. It
            # may be closed already: then readlink raises an OSError.
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
