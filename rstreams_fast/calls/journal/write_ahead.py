"""Log files that survive their process: records in memory-mapped files.

A record that was copied into a mapping is in the kernel's page cache, which a SIGKILL does not
affect. The copy needs no system call. The process holds a lock on its log files, which the kernel
releases when the process dies. So a reader of a log file knows whether its writer is alive. The log
files are on the host's own disk, where mappings and locks work, even if the journal is on another
file system.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from rstreams_fast.calls.limits.host_folder import naming_path, private_folder

if sys.platform != "win32":
    import fcntl

__all__ = ["Log", "folder", "records_of"]

FIRST_BYTES: Final = 1 << 18
"""The first size of a log file, in bytes. The size doubles when the file is full."""

REMOVE_AFTER_SECONDS: Final = 86_400.0
"""At this age, in seconds, a dead process's log file is removed if no reader has asked for it."""

_HEAD: Final = struct.Struct("=II")
"""The head of each record: its length (never 0) and its checksum. Zeros follow the last record."""


def folder() -> Path:
    """Return the folder of this user's log files, which other users cannot access."""
    return private_folder("journal")


class Log:
    """A log file of records that this process writes. Use it from one thread at a time."""

    def __init__(self, name: str) -> None:
        """Make a log file, whose records ``records_of(name)`` finds. Logs may share a ``name``."""
        self._file = -1
        while self._file < 0:
            self._path = folder() / f"{name}-{uuid.uuid4().hex}"
            # Another process may remove the folder while it is empty: then try again.
            with contextlib.suppress(FileNotFoundError):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                # If a reader removed the new file before it was locked, make another file.
                if not os.fstat(self._file).st_nlink:
                    os.close(self._file)
                    self._file = -1
        try:
            with naming_path(self._path):
                self._allocate(FIRST_BYTES)
                self._map = mmap.mmap(self._file, FIRST_BYTES)
        except BaseException:
            self._close_file(remove=True)
            raise

    def _allocate(self, size: int) -> None:
        # Allocate blocks now: without them, a write on a full disk would kill the process (SIGBUS).
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            os.ftruncate(self._file, size)
        else:
            allocate(self._file, 0, size)

    def append(self, record: bytes) -> None:
        """Write a record, which must not be empty. Readers can read it when this method returns."""
        framed = _HEAD.pack(len(record), crc32(record)) + record
        end = self._map.tell() + len(framed)
        if end > len(self._map):
            self._grow(end)
        self._map.write(framed)

    def _grow(self, least: int) -> None:
        size = len(self._map)
        while size < least:
            size *= 2
        with naming_path(self._path):
            self._allocate(size)
        grown = mmap.mmap(self._file, size)
        grown.seek(self._map.tell())
        self._map.close()
        self._map = grown

    def clear(self) -> None:
        """Remove all records, after the caller has stored them in a segment file."""
        used = self._map.tell()
        # Clear the head of the first record first: from then on, a reader finds no records.
        self._map[: _HEAD.size] = bytes(_HEAD.size)
        self._map[:used] = bytes(used)
        self._map.seek(0)

    def close(self, remove: bool) -> None:
        """Close the file. Without ``remove`` the file stays: readers take its process for dead."""
        self._map.close()
        self._close_file(remove)

    def _close_file(self, remove: bool) -> None:
        with contextlib.suppress(OSError):
            if remove:
                self._path.unlink(missing_ok=True)
        os.close(self._file)
        # Remove the folder if it is empty. If it has files of other processes, rmdir fails.
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()


def records_of(name: str) -> Iterator[tuple[list[bytes], bool]]:
    """Yield the records of each log file of this ``name``, and whether its process is dead.

    When the iterator goes on to the next file, it removes the file of a dead process. Cleared and
    incomplete records are left out.
    """
    prefix, oldest = f"{name}-", time.time() - REMOVE_AFTER_SECONDS
    try:
        place = folder()
        # Path.iterdir() takes ten times as long: killed processes may have left many files.
        with os.scandir(place) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except FileNotFoundError:  # no temporary directory, or another process removed the folder
        return
    may_be_empty = not entries  # ``folder()`` makes the folder if it does not exist
    for entry in entries:
        wanted = entry.name.startswith(prefix)
        try:
            if not wanted and entry.stat().st_mtime > oldest:
                continue
            file = os.open(entry.path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            dead = _try_lock(file)
            if wanted and os.fstat(file).st_size:
                yield list(_records(file)), dead
            if dead:
                Path(entry.path).unlink(missing_ok=True)
                may_be_empty = True
        finally:
            os.close(file)
    if may_be_empty:
        with contextlib.suppress(OSError):  # raised if the folder is not empty
            place.rmdir()


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _records(file: int) -> Iterator[bytes]:
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
        at = 0
        while at + _HEAD.size <= len(content):
            size, checksum = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            record = content[at : at + size]
            if not size or crc32(record) != checksum:
                return
            yield record
            at += size
