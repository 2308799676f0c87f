"""Permits that all Python workers of a host share: each permit is a lock on a byte of a file.

A stage is one function, in one Spark task or on one event loop, whose calls share a ``PermitGate``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

from rstreams_fast.calls.limits.host_folder import naming_path, private_folder
from rstreams_fast.calls.limits.leases import DEATH_SECONDS
from rstreams_fast.calls.limits.pace import MOST_UNITS, Numbers, Pace, Quota
from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = ["WATCH_SECONDS", "HostLocks", "locks_of"]

FOLDER: Final = "limits"

LAYOUT: Final = 2
"""The version of the file's layout. Files with different layouts have different names."""

WANTED_SECONDS: Final = 0.05
"""For this many seconds after a stage of the host found no free permit, ``is_wanted`` is true."""


CHECK_SECONDS: Final = 0.01
"""The shortest time, in seconds, between two checks that the open file is still at the path."""

FRESH_SECONDS: Final = DEATH_SECONDS
"""For this many seconds a new file grants no permits. Meanwhile the stages that hold permits of a
removed file notice the new file, and lock their permits in it (see ``WATCH_SECONDS``)."""

WATCH_SECONDS: Final = 0.02
"""Interval, in seconds, at which a stage with permits checks whether the file was replaced."""


class HostLocks:
    """The permits of one limit on a host: each locked byte of a file is a permit in use.

    The kernel unlocks the bytes of a dead process. Locks belong to an open file, so all stages of a
    process share one open file. Some systems only have locks that belong to a process: there,
    closing the file anywhere in the process would release all its locks. If the file was removed
    and another file is at its path, the stages open the new file, and lock their permits there. If
    another process has locked a permit there first, the permit serves only its present call.

    The file begins with the time before which no call may start, and the clocks of the rate and the
    units (see ``Pace``). Two more times follow: when a stage last found no permit, and from when on
    the file grants permits. Then follow the numbers of the limit (see ``Numbers``), and one byte
    for each permit, which is set while the permit is in use. If this byte is set but not locked,
    the process with the permit was killed. Each process that uses the limit holds a shared lock on
    the numbers. It writes its own numbers if no other process uses the limit, or if its limit was
    made later. The other processes adopt them.
    """

    STATE: Final = struct.Struct(f"={2 + MOST_UNITS}d")
    STATE_LOCK: Final = 1 << 40
    USED: Final = 1 << 12
    WANTED: Final = 64
    WANTED_AT: Final = struct.Struct("=d")
    NUMBERS: Final = 128
    NUMBERS_OF: Final = struct.Struct(f"={4 + 2 * MOST_UNITS}d")
    NUMBERS_LOCK: Final = STATE_LOCK + 1
    FRESH: Final = 96
    FRESH_UNTIL: Final = struct.Struct("=d")

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = private_folder(FOLDER) / name
        self.pid = os.getpid()
        self._users = 0
        self.numbers = Numbers(0.0, None, None, 1)
        """The present numbers of the limit. Valid only while this process uses the limit."""
        self._written_numbers = b""
        self.pace = Pace(self.numbers)
        # Reentrant: a finalizer on the thread that holds the lock may end a call, and lock again.
        self._lock = threading.RLock()
        self._held: set[int] = set()
        self._locked_elsewhere: set[int] = set()
        """Permits of this process whose bytes another process locked first, in a new file that has
        replaced the limit's file."""
        self._lock_state: bytes | None = None
        self._unlock_state = b""
        if _has_open_file_locks():
            self._lock_state = _flock(fcntl.F_WRLCK, self.STATE_LOCK)
            self._unlock_state = _flock(fcntl.F_UNLCK, self.STATE_LOCK)
        self._next_check = 0.0
        self._previous_file: int | None = None
        """The file before the latest replacement. It stays open for a while, and its bytes stay
        locked, so that processes which still use it take no permit of this process."""
        self._file, self._fresh_until = self._open()

    def _open(self) -> tuple[int, float]:
        """Open the file at the path; return it, and the time from which on it grants permits."""
        self.path = private_folder(FOLDER) / self.name
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
        try:
            with naming_path(self.path), _locked(file, self.STATE_LOCK):
                found = os.fstat(file)
                # A file without content is new: write its beginning.
                if not found.st_size:
                    fresh_until = time.monotonic() + FRESH_SECONDS
                    os.pwrite(file, self.FRESH_UNTIL.pack(fresh_until), self.FRESH)
                    self._write(fresh_until, (0.0,) * (1 + MOST_UNITS), file)
                content = os.pread(file, self.FRESH_UNTIL.size, self.FRESH)
        except BaseException:
            os.close(file)
            raise
        self._id = found.st_dev, found.st_ino
        return file, self.FRESH_UNTIL.unpack(content)[0] if content else 0.0

    def refresh(self) -> None:
        """Switch to the file at the path if the file was replaced; adopt the numbers in the file.

        Raises ``OSError`` if the file cannot be used.
        """
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        if self._previous_file is not None and now >= self._fresh_until:
            os.close(self._previous_file)
            self._previous_file = None
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._id:
                if self._users:
                    self._adopt(os.pread(self._file, self.NUMBERS_OF.size, self.NUMBERS))
                return
        before = self._read()
        new, self._fresh_until = self._open()
        if self._previous_file is not None:
            os.close(self._previous_file)
        self._previous_file = os.dup(self._file)
        # dup2 keeps the number of the descriptor: other threads may be reading from it.
        os.dup2(new, self._file, inheritable=False)
        os.close(new)
        with naming_path(self.path):
            self._locked_elsewhere = {byte for byte in self._held if not _lock(self._file, byte)}
            for byte in self._held - self._locked_elsewhere:
                os.pwrite(self._file, b"u", self.USED + byte)
            if self._users:
                self._share_numbers(self.numbers)
            with _locked(self._file, self.STATE_LOCK):
                not_before, clocks = self._read()
                clocks = tuple(map(max, before[1], clocks))
                self._write(max(before[0], not_before), clocks)

    def reopen(self) -> None:
        """In a forked child, open the file again: the locks belong to the parent's open file."""
        if self._previous_file is not None:
            os.close(self._previous_file)
            self._previous_file = None
        # Make a new lock: another thread of the parent may have held the old lock at the fork.
        self._lock = threading.RLock()
        try:
            own = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            own = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(own, self._file, inheritable=False)
        os.close(own)

    def join(self, numbers: Numbers) -> None:
        """Use the limit until ``leave``. ``numbers`` apply, unless newer numbers are in use."""
        with self._lock, naming_path(self.path):
            self._next_check = 0.0
            self._refresh()
            if not self._users or numbers.made > self.numbers.made:
                self._share_numbers(numbers)
            self._users += 1

    def _share_numbers(self, own: Numbers) -> None:
        """Write ``own`` to the file, unless newer numbers are in use; adopt the file's numbers.

        A shared lock on the numbers in the file shows that this process uses the limit.
        """
        alone = not self._users and _lock(self._file, self.NUMBERS_LOCK)
        _lock(self._file, self.NUMBERS_LOCK, shared=True, wait=True)
        with _locked(self._file, self.STATE_LOCK):
            written = os.pread(self._file, self.NUMBERS_OF.size, self.NUMBERS)
            found = self._unpack_numbers(written) if written else None
            if found is None or alone or own.made > found.made:
                if found is None or found[1:] != own[1:]:
                    not_before, clocks = self._read()
                    self._write(not_before, Pace(own).restart(time.monotonic(), clocks))
                written = self._pack_numbers(own)
                os.pwrite(self._file, written, self.NUMBERS)
        self._adopt(written)

    def _pack_numbers(self, numbers: Numbers) -> bytes:
        made, concurrency, rate, burst, quotas = numbers
        units = [part for of in quotas for part in (of.amount, of.seconds)]
        padding = [0.0] * (2 * (MOST_UNITS - len(quotas)))
        return self.NUMBERS_OF.pack(made, concurrency or 0, rate or 0, burst, *units, *padding)

    def _unpack_numbers(self, written: bytes) -> Numbers:
        made, concurrency, rate, burst, *units = self.NUMBERS_OF.unpack(written)
        quotas = tuple(map(Quota, filter(None, units[::2]), units[1::2]))
        return Numbers(made, int(concurrency) or None, rate or None, int(burst), quotas)

    def _adopt(self, written: bytes) -> None:
        """Adopt ``written``, the bytes of the numbers in the file, if the numbers have changed."""
        if written and written != self._written_numbers:
            self._written_numbers = written
            self.numbers = self._unpack_numbers(written)
            self.pace = Pace(self.numbers)

    def leave(self) -> None:
        """Stop the use of the limit that ``join`` began."""
        with self._lock:
            self._users -= 1
            if not self._users:
                _unlock(self._file, self.NUMBERS_LOCK)

    def take_one(self) -> tuple[int | None, float] | None:
        """Take a free permit; return it, and the seconds to wait before its use.

        Returns ``None`` if no permit is free. The permit is ``None`` if the limit has no
        ``concurrency``. The wait is not 0 if the last user of the permit was killed.
        """
        with self._lock:
            self._refresh()
            if time.monotonic() < self._fresh_until:
                return None
            of = self.numbers.concurrency
            if of is None:
                return None, 0.0
            first = random.randrange(of)  # noqa: S311 - spreads the stages over the bytes
            for number in range(first, first + of):
                byte = number % of
                if byte in self._held:
                    continue
                if not _lock(self._file, byte):
                    continue
                try:
                    dead = os.pread(self._file, 1, self.USED + byte) == b"u"
                    os.pwrite(self._file, b"u", self.USED + byte)
                except OSError:  # the disk is full, for example
                    _unlock(self._file, byte)
                    raise
                self._held.add(byte)
                return byte, DEATH_SECONDS if dead else 0.0
            os.pwrite(self._file, self.WANTED_AT.pack(time.monotonic()), self.WANTED)
        return None

    def is_wanted(self) -> bool:
        """Whether a stage of the host lately found no permit, or this process holds too many."""
        if self._locked_elsewhere or self.has_too_many():
            return True
        found = os.pread(self._file, self.WANTED_AT.size, self.WANTED)
        missed_at: float = self.WANTED_AT.unpack(found)[0] if found else 0.0
        return time.monotonic() < missed_at + WANTED_SECONDS

    def has_too_many(self) -> bool:
        """Whether this process holds permits that a lowered ``concurrency`` no longer allows."""
        of = self.numbers.concurrency
        with self._lock:
            return of is not None and max(self._held, default=-1) >= of

    def give_back(self, byte: int) -> None:
        """Free the permit ``byte``."""
        with self._lock:
            # Another process locked this byte of the new file first: only drop the permit here.
            if byte in self._locked_elsewhere:
                self._locked_elsewhere.discard(byte)
                self._held.discard(byte)
                return
            try:
                os.pwrite(self._file, b"\0", self.USED + byte)
            finally:
                _unlock(self._file, byte)
                self._held.discard(byte)

    def reserve(self, weights: tuple[float, ...], latest: float) -> float:
        """Return when a call that costs ``weights`` may start, in seconds of the monotonic clock.

        Reserve this start time, unless it is later than ``latest``.
        """
        if not (weights or self.numbers.are_paced):
            return self.held_until()
        with self._state() as (not_before, clocks):
            start, clocks = self.pace.reserve(time.monotonic(), clocks, not_before, weights)
            if start <= latest:
                self._write(not_before, clocks)
        return start

    def withdraw(self, start: float, weights: tuple[float, ...]) -> None:
        """Give back the reservation of a call that was not made: its start time and its units."""
        with self._state() as (not_before, clocks):
            self._write(not_before, self.pace.withdraw(clocks, start, weights))

    def held_until(self) -> float:
        return self._read()[0]

    def hold(self, seconds: float) -> None:
        """Let no call under the limit start for ``seconds``."""
        with self._state() as (not_before, clocks):
            self._write(max(not_before, time.monotonic() + seconds), clocks)

    def spend(self, change: tuple[float, ...]) -> None:
        """Charge ``change``: a call's real cost minus its estimate. Numbers < 0 give units back."""
        with self._state() as (not_before, clocks):
            self._write(not_before, self.pace.spend(time.monotonic(), clocks, change))

    def adopt_remaining(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        """Adopt a service's report: ``left`` units remain after a call that cost ``weights``."""
        with self._state() as (not_before, clocks):
            now = time.monotonic()
            self._write(not_before, self.pace.adopt_remaining(now, clocks, left, weights))

    @contextlib.contextmanager
    def _state(self) -> Iterator[tuple[float, tuple[float, ...]]]:
        with self._lock:
            self._refresh()
            if self._lock_state is None:
                with _locked(self._file, self.STATE_LOCK):
                    yield self._read()
                return
            # Each call under a limit with a rate runs this code. To save time, ``__init__`` has
            # made the lock structures.
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, self._lock_state)
            try:
                yield self._read()
            finally:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, self._unlock_state)

    def _read(self) -> tuple[float, tuple[float, ...]]:
        """Read the time before which no call may start, and the clocks (see ``Pace``)."""
        found = os.pread(self._file, self.STATE.size, 0)
        if not found:
            return 0.0, (0.0,) * (1 + MOST_UNITS)
        not_before, *clocks = self.STATE.unpack(found)
        return not_before, tuple(clocks)

    def _write(self, not_before: float, clocks: tuple[float, ...], file: int | None = None) -> None:
        os.pwrite(self._file if file is None else file, self.STATE.pack(not_before, *clocks), 0)


# -- locks on the bytes of a file ------------------------------------------------------------------


@functools.lru_cache(4096)
def _flock(kind: int, at: int) -> bytes:
    """Return a C ``struct flock`` for a lock of this ``kind`` on the byte ``at``."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, at, 1, 0)


@functools.cache
def _has_open_file_locks() -> bool:
    """Whether the kernel has locks that belong to an open file, not to a process."""
    if sys.platform != "linux" or not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    with tempfile.TemporaryFile() as file:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, 0))
        except OSError:  # older kernels have no such locks
            return False
    return True


def _lock(file: int, at: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock the byte ``at``; return ``False`` if another open file has locked it."""
    try:
        if _has_open_file_locks():
            command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            fcntl.fcntl(file, command, _flock(kind, at))
        else:
            how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.lockf(file, how if wait else how | fcntl.LOCK_NB, 1, at)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(file: int, at: int) -> None:
    if _has_open_file_locks():
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, at))
    else:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, at)


@contextlib.contextmanager
def _locked(file: int, at: int) -> Iterator[None]:
    _lock(file, at, wait=True)
    try:
        yield
    finally:
        _unlock(file, at)


# -- the HostLocks objects of a process ------------------------------------------------------------


_locks: dict[str, HostLocks] = {}
_locks_lock: Final = ForkLock()


def locks_of(name: str) -> HostLocks:
    """Return the ``HostLocks`` of the limit ``name``, which all stages of this process share."""
    if os.name != "posix":
        raise RuntimeError("Limit(scope='executor') needs locks of files as POSIX has them")
    # The file contains times of the monotonic clock, which starts anew at each boot. So each boot
    # needs a new file.
    boot = Path("/proc/sys/kernel/random/boot_id")
    since = boot.read_text(encoding="ascii") if boot.exists() else ""
    file = hashlib.sha256(f"{since}{LAYOUT}{name}".encode()).hexdigest()[:32]
    key = f"{private_folder(FOLDER)}/{file}"
    with _locks_lock:
        found = _locks.get(key)
        # A forked child does not inherit the parent's file locks: it makes a new object.
        if found is None or found.pid != os.getpid():
            found = _locks[key] = HostLocks(file)
        return found


def _after_fork() -> None:
    for locks in list(_locks.values()):
        locks.reopen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
