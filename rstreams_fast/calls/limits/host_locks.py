"""The permits that all Python workers of a host share: locks on the bytes of a file."""

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
"""The version of the file's layout. Each layout uses another file."""

WANTED_SECONDS: Final = 0.05
"""How long ``is_wanted`` is true after a stage of the host found no free permit."""


CHECK_SECONDS: Final = 0.01
"""How often the stages check that the open file is still the file at the path."""

FRESH_SECONDS: Final = DEATH_SECONDS
"""For this time no stage gets a permit of a new file. Meanwhile the stages with permits of a
removed file notice the new file (they check every ``WATCH_SECONDS``), and lock their permits in
it."""

WATCH_SECONDS: Final = 0.02
"""How often a stage with permits checks the path."""


class HostLocks:
    """A file in which each locked byte is a permit in use.

    The kernel unlocks the bytes of a dead process. The stages of a process share one open file,
    since the locks belong to the open file. On a system that has only locks of processes, closing
    the file anywhere in the process would release all locks. If the file was removed and another
    file is at its path, the stages open the new file, and lock their permits there. If another
    process has locked a permit there already, the permit serves its present call only.

    The file begins with the time before which no call may start, and the clocks of the rate and of
    the units. Two more numbers follow: when a stage last found no permit, and from when on permits
    are granted. One byte for each permit is set while the permit is in use. If this byte is set and
    the permit is not locked, the user of the permit was killed. The file also has the numbers of
    the limit. All users of the limit hold a shared lock on its numbers. A user writes its own
    numbers if there are no other users, or if its limit was made later. The others adopt them.
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
        """The numbers that apply, if the limit has users."""
        self._written_numbers = b""
        self.pace = Pace(self.numbers)
        # Reentrant: a finalizer may end a call on the thread that holds the lock.
        self._lock = threading.RLock()
        self._held: set[int] = set()
        self._locked_elsewhere: set[int] = set()
        """The permits of ``_held`` that another process has locked in the file at the path."""
        self._lock_state: bytes | None = None
        self._unlock_state = b""
        if _has_open_file_locks():
            self._lock_state = _flock(fcntl.F_WRLCK, self.STATE_LOCK)
            self._unlock_state = _flock(fcntl.F_UNLCK, self.STATE_LOCK)
        self._next_check = 0.0
        self._previous_file: int | None = None
        """The previous file. It stays open, so that processes which still use it find the permits
        locked."""
        self._file, self._fresh_until = self._open()

    def _open(self) -> tuple[int, float]:
        """Open the file at the path; return it, and the time from which permits are granted."""
        self.path = private_folder(FOLDER) / self.name
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
        try:
            with naming_path(self.path), _locked(file, self.STATE_LOCK):
                found = os.fstat(file)
                # An empty file is new: write its beginning. Every process checks this first.
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
        """If another file is at the path, open that file; adopt its numbers.

        ``OSError``: the file cannot be used.
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
        # dup2 keeps the descriptor's number: other threads may be reading from it.
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
        """Open the file again, in a forked child: the locks belong to the parent's open file."""
        if self._previous_file is not None:
            os.close(self._previous_file)
            self._previous_file = None
        # Make a new lock: at the fork another thread of the parent may have held the old one.
        self._lock = threading.RLock()
        try:
            own = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            own = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(own, self._file, inheritable=False)
        os.close(own)

    def join(self, numbers: Numbers) -> None:
        """Use the limit until ``leave``. Its ``numbers`` apply unless newer numbers are in use."""
        with self._lock, naming_path(self.path):
            self._next_check = 0.0
            self._refresh()
            if not self._users or numbers.made > self.numbers.made:
                self._share_numbers(numbers)
            self._users += 1

    def _share_numbers(self, own: Numbers) -> None:
        """Take the shared lock on the numbers; write ``own`` unless newer numbers are in use."""
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
        """Use the numbers that are ``written`` in the file, if they have changed."""
        if written and written != self._written_numbers:
            self._written_numbers = written
            self.numbers = self._unpack_numbers(written)
            self.pace = Pace(self.numbers)

    def leave(self) -> None:
        """End the use that ``join`` began."""
        with self._lock:
            self._users -= 1
            if not self._users:
                _unlock(self._file, self.NUMBERS_LOCK)

    def take_one(self) -> tuple[int | None, float] | None:
        """Return a permit and the seconds until it may be used; ``None``: no permit is free."""
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
                except OSError:  # a full disk, for example
                    _unlock(self._file, byte)
                    raise
                self._held.add(byte)
                return byte, DEATH_SECONDS if dead else 0.0
            os.pwrite(self._file, self.WANTED_AT.pack(time.monotonic()), self.WANTED)
        return None

    def is_wanted(self) -> bool:
        """Whether a stage of the host found no permit lately, or too many permits are in use."""
        if self._locked_elsewhere or self.has_too_many():
            return True
        found = os.pread(self._file, self.WANTED_AT.size, self.WANTED)
        missed_at: float = self.WANTED_AT.unpack(found)[0] if found else 0.0
        return time.monotonic() < missed_at + WANTED_SECONDS

    def has_too_many(self) -> bool:
        """Whether this process has permits beyond the present ``concurrency`` of the limit."""
        of = self.numbers.concurrency
        with self._lock:
            return of is not None and max(self._held, default=-1) >= of

    def give_back(self, byte: int) -> None:
        """Free a permit."""
        with self._lock:
            # Another process holds the lock on this byte: do not unlock it.
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
        """Return when a call that needs the units ``weights`` may start.

        Reserve this time if it is not later than ``latest``.
        """
        if not (weights or self.numbers.are_paced):
            return self.held_until()
        with self._state() as (not_before, clocks):
            start, clocks = self.pace.reserve(time.monotonic(), clocks, not_before, weights)
            if start <= latest:
                self._write(not_before, clocks)
        return start

    def withdraw(self, start: float, weights: tuple[float, ...]) -> None:
        """Give back what a call that is not made has reserved: its ``start`` and its units."""
        with self._state() as (not_before, clocks):
            self._write(not_before, self.pace.withdraw(clocks, start, weights))

    def held_until(self) -> float:
        return self._read()[0]

    def hold(self, seconds: float) -> None:
        """Let no call start for ``seconds``."""
        with self._state() as (not_before, clocks):
            self._write(max(not_before, time.monotonic() + seconds), clocks)

    def spend(self, change: tuple[float, ...]) -> None:
        """Charge ``change`` more units than were reserved; negative numbers give back."""
        with self._state() as (not_before, clocks):
            self._write(not_before, self.pace.spend(time.monotonic(), clocks, change))

    def adopt_remaining(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        """Adopt the service's report that ``left`` units remain. ``weights``: the call's units."""
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
            # This code runs for each call under a limit with a rate: the prepared locks save time.
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, self._lock_state)
            try:
                yield self._read()
            finally:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, self._unlock_state)

    def _read(self) -> tuple[float, tuple[float, ...]]:
        """Return the time before which no call may start, and the clocks (see ``Pace``)."""
        found = os.pread(self._file, self.STATE.size, 0)
        if not found:
            return 0.0, (0.0,) * (1 + MOST_UNITS)
        not_before, *clocks = self.STATE.unpack(found)
        return not_before, tuple(clocks)

    def _write(self, not_before: float, clocks: tuple[float, ...], file: int | None = None) -> None:
        os.pwrite(self._file if file is None else file, self.STATE.pack(not_before, *clocks), 0)


# -- locks of an open file -------------------------------------------------------------------------


@functools.lru_cache(4096)
def _flock(kind: int, at: int) -> bytes:
    """Return C's ``struct flock``: type, whence, start, length, process."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, at, 1, 0)


@functools.cache
def _has_open_file_locks() -> bool:
    """Whether the kernel has locks that belong to an open file instead of a process."""
    if sys.platform != "linux" or not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    with tempfile.TemporaryFile() as file:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, 0))
        except OSError:  # older kernels lack the locks of open files
            return False
    return True


def _lock(file: int, at: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock a byte; ``False``: another open file has locked it."""
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


# -- the files of a process ------------------------------------------------------------------------


_locks: dict[str, HostLocks] = {}
_locks_lock: Final = ForkLock()


def locks_of(name: str) -> HostLocks:
    """Return the ``HostLocks`` of the limit ``name``. The stages of this process share it."""
    if os.name != "posix":
        raise RuntimeError("Limit(scope='executor') needs locks of files as POSIX has them")
    # The file has times of the monotonic clock, which each boot restarts: use a new file then.
    boot = Path("/proc/sys/kernel/random/boot_id")
    since = boot.read_text(encoding="ascii") if boot.exists() else ""
    file = hashlib.sha256(f"{since}{LAYOUT}{name}".encode()).hexdigest()[:32]
    key = f"{private_folder(FOLDER)}/{file}"
    with _locks_lock:
        found = _locks.get(key)
        # A forked child does not inherit the parent's locks of files: it opens the file again.
        if found is None or found.pid != os.getpid():
            found = _locks[key] = HostLocks(file)
        return found


def _after_fork() -> None:
    for locks in list(_locks.values()):
        locks.reopen()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
