"""Merges the segment files (files of answers) of a process, so that a journal has few files."""

from __future__ import annotations

import threading
from typing import Final

from rstreams_fast.calls.journal.segments import LARGE_BYTES, Folder

__all__ = ["SegmentLevels"]

SEGMENTS_PER_MERGE: Final = 16
"""The number of segment files of one level that are merged into one file of the next level."""


class SegmentLevels:
    """The segment files that this process has written to a folder, by level. Thread-safe.

    The level of a file is the number of merges that it has gone through.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._levels: list[dict[str, int]] = []
        """For each level, the names of its segment files and their bytes."""
        self._lock = threading.Lock()

    def add(self, name: str, size: int) -> None:
        """Add a segment file of ``size`` bytes. Merge the files of each level that becomes full."""
        level = 0
        while size < LARGE_BYTES:
            with self._lock:
                if level == len(self._levels):
                    self._levels.append({})
                group = self._levels[level]
                group[name] = size
                if len(group) < SEGMENTS_PER_MERGE and sum(group.values()) < LARGE_BYTES:
                    return
                self._levels[level] = {}
            merged = self._merge(group)
            if merged is None:
                return
            name, size = merged
            level += 1

    def merge_all(self) -> tuple[str, int] | None:
        """Merge all segment files of this object, and forget them. Return the new name and bytes.

        Returns ``None`` if there was no file, or if other processes have merged or removed all.
        """
        with self._lock:
            levels, self._levels = self._levels, []
        return self._merge(
            {name: size for level in reversed(levels) for name, size in level.items()}
        )

    def _merge(self, segments: dict[str, int]) -> tuple[str, int] | None:
        """Merge ``segments``, or if some were removed, the others. Return the new name and bytes.

        If there is one file, return this file. Returns ``None`` if the files cannot be merged.
        """
        if len(segments) < 2:  # noqa: PLR2004 - one is merged already
            return next(iter(segments.items()), None)
        merged = self._folder.merge(list(segments))
        if merged is not None:
            return merged.name, merged.size
        names = self._folder.names()  # another process may have merged or removed some files
        rest = {name: size for name, size in segments.items() if name in names}
        return self._merge(rest) if len(rest) < len(segments) else None
