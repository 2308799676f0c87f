"""How often the garbage collector looks at the objects of calls in flight."""

from __future__ import annotations

import gc
import threading
from typing import Final

__all__ = ["YoungObjects"]

OBJECTS_PER_CALL: Final = 20
"""About how many objects a call in flight has that the collector visits."""

MOST_OBJECTS: Final = 100_000
"""The most objects that may be garbage before the collector looks for it."""

_lock: Final = threading.Lock()
_wanted: Final[list[int]] = []
"""The thresholds that those at work want; the highest one is set."""
_before: tuple[int, int, int] = (0, 0, 0)
"""The thresholds of the process, with nobody at work."""
_ours: tuple[int, int, int] = (0, 0, 0)
"""The thresholds that were set here."""


class YoungObjects:
    """A context manager: the collector waits until the objects of all calls in flight are twice
    as many as it visits.

    By default it looks at all young objects after 700 new ones. Where a thousand calls are in
    flight none of these is garbage, and each is visited again and again until it is an old one:
    that takes a third of the processor's time. The thresholds are the process's: the last one to
    leave sets those from before, unless somebody else has changed them. Thread-safe.
    """

    def __init__(self, calls: int) -> None:
        """``calls``: how many calls are in flight at once."""
        self._objects = min(2 * OBJECTS_PER_CALL * calls, MOST_OBJECTS)

    def __enter__(self) -> None:
        with _lock:
            _set([*_wanted, self._objects])

    def __exit__(self, *_: object) -> None:
        with _lock:
            left = _wanted.copy()
            left.remove(self._objects)
            _set(left)


def _set(wanted: list[int]) -> None:
    global _before, _ours  # noqa: PLW0603 - the thresholds are the process's
    present = gc.get_threshold()
    if not _wanted:
        _before = _ours = present
    if present == _ours and _before[0]:  # 0: the collector is off
        _ours = max([_before[0], *wanted]), *_before[1:]
        gc.set_threshold(*_ours)
    _wanted[:] = wanted
