"""Makes the garbage collector visit the objects of calls in flight less often."""

from __future__ import annotations

import gc
import threading
from typing import Final

__all__ = ["FewerCollections"]

OBJECTS_PER_CALL: Final = 20
"""About how many objects of one call in flight the collector visits."""

MOST_OBJECTS: Final = 100_000
"""The largest threshold: the number of new objects after which the collector looks for garbage."""

_lock: Final = threading.Lock()
_thresholds: Final[list[int]] = []
"""The thresholds that the active ``FewerCollections`` want; the highest threshold is set."""
_before: tuple[int, int, int] = (0, 0, 0)
"""The thresholds of the process before the first ``FewerCollections`` was entered."""
_set_here: tuple[int, int, int] = (0, 0, 0)
"""The thresholds that this module has set."""


class FewerCollections:
    """A context manager that makes the garbage collector visit young objects less often.

    By default the collector visits all young objects after 700 new ones. With a thousand calls in
    flight none of these objects is garbage. The collector visits each of them until the object is
    old, which takes a third of the processor's time. So the threshold is raised in proportion to
    the calls in flight. The whole process has one set of thresholds. The last exit restores the
    previous thresholds, unless other code has changed them. Thread-safe.
    """

    def __init__(self, calls: int) -> None:
        """``calls``: how many calls are in flight at once."""
        self._objects = min(2 * OBJECTS_PER_CALL * calls, MOST_OBJECTS)

    def __enter__(self) -> None:
        with _lock:
            _set([*_thresholds, self._objects])

    def __exit__(self, *_: object) -> None:
        with _lock:
            left = _thresholds.copy()
            left.remove(self._objects)
            _set(left)


def _set(wanted: list[int]) -> None:
    global _before, _set_here  # noqa: PLW0603 - the thresholds are the process's
    present = gc.get_threshold()
    if not _thresholds:
        _before = _set_here = present
    if present == _set_here and _before[0]:  # 0: the collector is off
        _set_here = max([_before[0], *wanted]), *_before[1:]
        gc.set_threshold(*_set_here)
    _thresholds[:] = wanted
