"""The permits of a host: locks of a file, which all its Python workers share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from rstreams_fast.spark.leases import DEATH_SECONDS, Pace
from rstreams_fast.spark.limits import Limit

__all__ = ["HostLocks", "locks_of"]

JOIN_SECONDS: Final = 2.0
"""How long to wait for stages with other numbers, which may be ending, before that is an error."""

WANTED_SECONDS: Final = 0.05
"""How long it counts that a stage of the host looked for a permit, and there was none."""


class HostLocks:
    """A file whose locked bytes are the permits in use: the kernel unlocks those of the dead.

    The locks are the process's: closing the file once would undo all of them, so it stays open, and
    the stages of a process share it. Two numbers in the file are the clock of the rate, one says
    when a permit was last missed. A byte for each permit says that it is in use: where it is
    unlocked all the same, its user was killed. The limit's own numbers are in it, too: who uses it
    shares a lock on them, and whoever finds nobody there writes them anew.
    """

    STATE: Final = struct.Struct("=dd")
    STATE_LOCK: Final = 1 << 40
    USED: Final = 1 << 12
    WANTED: Final = 64
    WANTED_AT: Final = struct.Struct("=d")
    NUMBERS: Final = 128
    NUMBERS_OF: Final = struct.Struct("=ddd")
    NUMBERS_LOCK: Final = STATE_LOCK + 1

    def __init__(self, path: Path) -> None:
        self.pid = os.getpid()
        self._users = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._held: set[int] = set()

    def join(self, limit: Limit) -> None:
        """Use it, until :meth:`leave`; ``ValueError`` if others do so with other numbers."""
        own = (limit.concurrency or 0, limit.rate or 0, limit.burst)
        until = time.monotonic() + JOIN_SECONDS
        while (numbers := self._join(own)) != own:
            if time.monotonic() > until:
                concurrency, rate, burst = (f"{number:g}" if number else None for number in numbers)
                raise ValueError(
                    f"the limit {limit.name!r} is in use on this host with other numbers: "
                    f"concurrency={concurrency}, rate={rate}, burst={burst}"
                )
            time.sleep(JOIN_SECONDS / 100)

    def _join(self, own: tuple[float, ...]) -> tuple[float, ...]:
        """Use it if its numbers are ``own``; return those that it has."""
        import fcntl

        with self._lock:
            if not self._users:
                with contextlib.suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.NUMBERS_LOCK)
                    self._renumber(own)
                fcntl.lockf(self._file, fcntl.LOCK_SH, 1, self.NUMBERS_LOCK)
            found = os.pread(self._file, self.NUMBERS_OF.size, self.NUMBERS)
            numbers = self.NUMBERS_OF.unpack(found)
            if numbers == own:
                self._users += 1
            elif not self._users:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.NUMBERS_LOCK)
            return numbers

    def _renumber(self, own: tuple[float, ...]) -> None:
        """Write new numbers. What was reserved at another rate holds back one call at most."""
        numbers = self.NUMBERS_OF.pack(*own)
        _, rate, _ = own
        if os.pread(self._file, len(numbers), self.NUMBERS) != numbers:
            reserved, not_before = self._read()
            soon = time.monotonic() + (1 / rate if rate else 0.0)
            os.pwrite(self._file, self.STATE.pack(min(reserved, soon), not_before), 0)
            os.pwrite(self._file, numbers, self.NUMBERS)

    def leave(self) -> None:
        """Use it no more."""
        import fcntl

        with self._lock:
            self._users -= 1
            if not self._users:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.NUMBERS_LOCK)

    def take_one(self, of: int) -> tuple[int, float] | None:
        """Return a permit and the seconds until it is free, or ``None``: there is none now."""
        import fcntl

        first = random.randrange(of)  # noqa: S311 - spreads the stages over the bytes
        with self._lock:
            for number in range(first, first + of):
                byte = number % of
                if byte in self._held:
                    continue
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                except (BlockingIOError, PermissionError):
                    continue
                try:
                    dead = os.pread(self._file, 1, self.USED + byte) == b"u"
                    os.pwrite(self._file, b"u", self.USED + byte)
                except OSError:  # the disk is full, for one
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
                    raise
                self._held.add(byte)
                return byte, DEATH_SECONDS if dead else 0.0
            os.pwrite(self._file, self.WANTED_AT.pack(time.monotonic()), self.WANTED)
        return None

    def wanted(self) -> bool:
        """Whether a stage of the host has found no permit a moment ago."""
        found = os.pread(self._file, self.WANTED_AT.size, self.WANTED)
        missed_at: float = self.WANTED_AT.unpack(found)[0] if found else 0.0
        return time.monotonic() < missed_at + WANTED_SECONDS

    def give_back(self, byte: int) -> None:
        """Free a permit."""
        import fcntl

        with self._lock:
            try:
                os.pwrite(self._file, b"\0", self.USED + byte)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
                self._held.discard(byte)

    def reserve(self, pace: Pace) -> float:
        """Return the seconds until a call may start, which it does then."""
        if not pace.bounds:
            return self.held_back()
        with self._state() as (reserved, not_before):
            now = time.monotonic()
            start, reserved = pace.reserve(now, (reserved, not_before))
            os.pwrite(self._file, self.STATE.pack(reserved, not_before), 0)
        return start - now

    def held_back(self) -> float:
        """Return the seconds for which no call may start, 0 if there are none."""
        return max(0.0, self._read()[1] - time.monotonic())

    def hold(self, seconds: float) -> None:
        """Have no call start for so long."""
        with self._state() as (reserved, not_before):
            not_before = max(not_before, time.monotonic() + seconds)
            os.pwrite(self._file, self.STATE.pack(reserved, not_before), 0)

    @contextlib.contextmanager
    def _state(self) -> Any:
        import fcntl

        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self.STATE_LOCK)
            try:
                yield self._read()
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self.STATE_LOCK)

    def _read(self) -> tuple[float, float]:
        found = os.pread(self._file, self.STATE.size, 0)
        reserved, not_before = self.STATE.unpack(found) if found else (0.0, 0.0)
        return reserved, not_before


_locks: dict[Path, HostLocks] = {}
_locks_lock = threading.Lock()


def locks_of(name: str) -> HostLocks:
    """Return the file of a limit's name, which the stages of this process share."""
    if os.name != "posix":
        raise RuntimeError("Limit(scope='executor') needs locks of files as POSIX has them")
    folder = Path(tempfile.gettempdir()) / f"rstreams-limits-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else")
    boot = Path("/proc/sys/kernel/random/boot_id")  # the clock begins anew with it
    since = boot.read_text(encoding="ascii") if boot.exists() else ""
    path = folder / hashlib.sha256(f"{since}{name}".encode()).hexdigest()[:32]
    with _locks_lock:
        found = _locks.get(path)
        if found is None or found.pid != os.getpid():  # locks are not inherited
            found = _locks[path] = HostLocks(path)
        return found
