"""Stores the results of a ``Cache``, in the memory of a process or in a file of the host."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import pickle
import shutil
import struct
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from rstreams_fast._third_parties import importing
from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.keys import text_of
from rstreams_fast.calls.limits.host_folder import private_folder
from rstreams_fast.calls.memory.sizes import bytes_of, without_views
from rstreams_fast.core import MISSING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import lmdb

__all__ = ["LEAST_HOST_BYTES", "HostStore", "ProcessStore", "Store"]

ENTRY_BYTES: Final = 500
"""About how many bytes the map of a ``ProcessStore`` uses for an entry."""

LEAST_HOST_BYTES: Final = 1 << 20
"""The fewest bytes that a ``HostStore`` may have: a few hundred pages."""

FILLED: Final = 0.75
"""The largest share of a host's file for results. Free pages must remain: removal needs them."""

MOST_READERS: Final = 4096
"""The most processes and threads that may read a host's file at the same time."""

REMOVE_AFTER_SECONDS: Final = 900.0
"""A host's file is removed if no process has it open, and none has used it for this many
seconds."""

MARK_SECONDS: Final = 60.0
"""A process marks its use of a host's file at most once in this many seconds."""

_NUMBER_BYTES: Final = 8
"""Each stored value begins with a number of this many bytes. The oldest result has the smallest
number."""

_EXPIRY: Final = struct.Struct(">d")
"""Follows the number in each stored value: the time at which the result expires."""

_RESULT, _NUMBER = b"k", b"n"
"""The first byte of a key in the file. ``_RESULT``: the value is a result. ``_NUMBER``: the key has
a result's number, and the value is the key of this result."""


class Store(Protocol):
    """Keeps a bounded number of results, by function and key. Thread-safe."""

    def entry_key(self, function: tuple[str, ...], key: Any) -> Any:
        """Return the key under which the store keeps the result of ``function`` for ``key``.

        Raises ``TypeError`` if the store cannot keep results for a ``key`` of this type.
        """

    def get(self, entry_key: Any) -> Any:
        """Return the result, or ``MISSING``. Raises ``TypeError`` if ``entry_key`` has no hash."""

    def put(self, entry_key: Any, result: Any, seconds: float) -> None:
        """Store a result for ``seconds``. Ignore a result that cannot be stored or is too large."""


class _Entry(NamedTuple):
    result: Any
    expires_at: float
    """When the entry expires, by the monotonic clock."""
    size: int
    """The bytes of the entry's key and result."""


class ProcessStore:
    """Keeps results in the process. A full store drops the least recently used result."""

    def __init__(self, entries: int, size: int) -> None:
        with importing("cachetools", "a Cache", "'rstreams_fast[cache]'"):
            import cachetools
        self._most = size

        def weight(entry: _Entry) -> int:
            # LRUCache bounds only the sum of all weights: here by ``entries * size``. As a weight
            # is at least ``size``, there are at most ``entries`` entries. As a weight is at least
            # ``entries`` times the bytes of its entry, there are at most ``size`` bytes.
            return max(size, entries * (ENTRY_BYTES + entry.size))

        self._make = partial(cachetools.LRUCache[Any, _Entry], entries * size, weight)
        self._entries = self._make()
        self._is_changing = False
        """Stays true if a signal handler raised while ``_entries`` changed: then it is damaged."""
        # Reentrant: a finalizer or ``__eq__`` on the thread with the lock may use the store.
        self._lock = threading.RLock()
        self._is_busy = False
        """True while the thread with the lock uses ``_entries``: a nested ``get`` finds nothing."""

    def entry_key(self, function: tuple[str, ...], key: Any) -> Any:
        """Return the key of the result in the map of this process."""
        return function, key

    def get(self, entry_key: Any) -> Any:
        with self._lock:
            if self._is_busy:
                return MISSING
            self._is_busy = True
            try:
                result, expires_at, _ = self._entries[entry_key]
            except KeyError:
                return MISSING
            finally:
                self._is_busy = False
        return result if expires_at == math.inf or time.monotonic() < expires_at else MISSING

    def put(self, entry_key: Any, result: Any, seconds: float) -> None:
        """Store the result, or a copy if the result is a view of other data."""
        try:
            result = without_views(result)
            size = bytes_of((entry_key, result), self._most)
        except Exception:  # the methods of a user's type may raise anything
            return
        entry, dropped = _Entry(result, time.monotonic() + seconds, size), list[Any]()
        with self._lock:
            if self._is_busy:
                return
            self._is_busy = True
            try:
                self._replace(entry_key, entry, dropped)
            finally:
                self._is_busy = False
        del dropped  # after the lock is released, because a finalizer may run user code

    def _replace(self, entry_key: Any, entry: _Entry, dropped: list[Any]) -> None:
        """Store an entry, unless it is too large. Append the displaced entries to ``dropped``."""
        if self._is_changing:
            dropped.append(self._entries)
            self._entries, self._is_changing = self._make(), False
        entries = self._entries
        weight = entries.getsizeof(entry)
        if weight > entries.maxsize:
            return
        dropped.append(before := entries.get(entry_key))
        self._is_changing = True
        if before is None or entries.getsizeof(before) < weight:
            while entries.currsize + weight > entries.maxsize:
                dropped.append(entries.popitem())
        entries[entry_key] = entry
        self._is_changing = False


class HostStore:
    """Keeps the results of all processes of a host and user in an LMDB file. Drops the oldest.

    No process waits while another process reads. A killed process leaves the file intact: a
    transaction is complete or absent, and the kernel releases its lock. ``fsync`` is never called:
    after a crash of the system the folder is removed, or an empty file replaces a damaged file. If
    the file cannot be opened for another reason, the store logs a warning, and keeps nothing.
    Results are stored as pickles. Only processes of the same user can write them, because no other
    user can access the folder.

    In a forked child the store keeps nothing: the child needs its own store.
    """

    def __init__(self, name: str, entries: int, size: int) -> None:
        with importing("lmdb", "Cache(scope='executor')", "'rstreams_fast[cache]'"):
            import lmdb

        self._store_error: type[Exception] = lmdb.Error
        self._full_error: type[Exception] = lmdb.MapFullError
        self._entries = entries
        self._most = int(size * FILLED)
        self._largest = size // 8
        # Reentrant: a finalizer on the thread with the lock may make a call, and lock again.
        self._lock = threading.RLock()
        self._is_busy = False
        """True while the thread with the lock uses the file: a nested ``get`` finds nothing. Stays
        true if the file cannot be opened."""
        self._has_warned = False
        digest = hashlib.blake2b(ascii((name, entries, size)).encode(), digest_size=16)
        try:
            self._folder = private_folder("cache") / digest.hexdigest()
            self._users = _open_folder(self._folder)
        except OSError as raised:
            raise StageError(
                f"Cache(scope='executor'): its file cannot be used: {raised}"
            ) from raised
        self._mark_at = time.time() + MARK_SECONDS
        weakref.finalize(self, os.close, self._users).atexit = False
        try:
            self._env = _open_file(self._folder, size)
        except lmdb.Error as raised:
            self._warn(raised)
            self._is_busy = True
        else:
            _host_stores.add(self)

    def entry_key(self, function: tuple[str, ...], key: Any) -> bytes:
        """Return the key of the result in the file: a digest that is the same in every process."""
        digest = hashlib.blake2b(ascii(function).encode(), digest_size=16)
        digest.update(text_of(key).encode())
        return _RESULT + digest.digest()

    def get(self, entry_key: bytes) -> Any:
        with self._lock:
            if self._is_busy:
                return MISSING
            self._is_busy = True
            try:
                found = self._find(entry_key)
            except self._store_error as raised:
                self._warn(raised)
                return MISSING
            finally:
                self._is_busy = False
        if (now := time.time()) >= self._mark_at:
            self._mark_use(now)
        if found is None or now >= _EXPIRY.unpack_from(found, _NUMBER_BYTES)[0]:
            return MISSING
        try:
            return pickle.loads(found[_NUMBER_BYTES + _EXPIRY.size :])  # noqa: S301 - our user's own
        except Exception:
            # Loading fails if, for example, this process cannot import the type of the result.
            return MISSING

    def put(self, entry_key: bytes, result: Any, seconds: float) -> None:
        try:
            content = pickle.dumps(result, 5)
        except Exception:  # the methods of a user's type may raise anything
            return
        if len(content) > self._largest:
            return
        value = _EXPIRY.pack(time.time() + seconds) + content
        with self._lock:
            if self._is_busy:
                return
            self._is_busy = True
            try:
                self._put_with_room(entry_key, value)
            except self._store_error as raised:
                self._warn(raised)
            finally:
                self._is_busy = False

    def _mark_use(self, now: float) -> None:
        """Touch the file ``users``, so that the folder outlives this process for a while.

        Only ``get`` calls this method: a ``put`` follows a ``get``.
        """
        self._mark_at = now + MARK_SECONDS
        with contextlib.suppress(OSError):
            os.utime(self._users)

    def close(self) -> None:
        """Close the file, unless a thread uses it. From now on the store keeps nothing.

        A forked child closes the files of its parent's stores, because LMDB may open a file only
        once in a process. If another thread used a file at the fork, the file stays open: to end
        the thread's transaction in the child would harm the parent. Then the child has no cache.
        """
        if not self._is_busy:
            self._env.close()

    def _find(self, entry_key: bytes) -> bytes | None:
        # The transaction ends here, so none is open at a fork, unless ``_is_busy`` is true.
        with self._env.begin() as transaction:
            return transaction.get(entry_key)

    def _put_with_room(self, entry_key: bytes, value: bytes) -> None:
        for make_room in (self._env.reader_check, self._clear):
            with contextlib.suppress(self._full_error):
                self._put(entry_key, value)
                return
            make_room()
        self._put(entry_key, value)

    def _put(self, entry_key: bytes, value: bytes) -> None:
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            if (before := transaction.get(entry_key)) is not None:
                transaction.delete(_NUMBER + before[:_NUMBER_BYTES])
            newest = cursor.key() if cursor.last() else b""
            number = int.from_bytes(newest[1:], "big") + 1 if newest[:1] == _NUMBER else 1
            numbered = number.to_bytes(_NUMBER_BYTES, "big")
            transaction.put(entry_key, numbered + value)
            transaction.put(_NUMBER + numbered, entry_key)
            while self._is_full(transaction) and cursor.set_range(_NUMBER):
                oldest, oldest_key = cursor.item()
                transaction.delete(oldest_key)
                transaction.delete(oldest)

    def _clear(self) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.drop(self._env.open_db(None, transaction), delete=False)

    def _is_full(self, transaction: lmdb.Transaction) -> bool:
        stat = transaction.stat(self._env.open_db(None, transaction))
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * stat["psize"] > self._most or stat["entries"] > 2 * self._entries

    def _warn(self, raised: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logging.getLogger("rstreams_fast").warning(
                "cache: the file %s cannot be used, and calls are made again (%s)",
                self._folder,
                raised,
            )


_host_stores: Final[weakref.WeakSet[HostStore]] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_host_stores):
        store.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def _open_folder(folder: Path) -> int:
    """Make the ``folder`` if it is missing, and lock it; return the descriptor of the lock.

    Other processes do not remove the folder until the descriptor is closed.
    """
    _remove_unused(folder)
    while True:
        folder.mkdir(0o700, exist_ok=True)
        users = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
        # If the file has no links, another process removed the folder before this lock: try again.
        if os.fstat(users).st_nlink:
            os.utime(users)
            return users
        os.close(users)


def _open_file(folder: Path, size: int) -> lmdb.Environment:
    """Open the file in the ``folder``; replace a damaged file by an empty one. Return the file."""
    import lmdb

    words: dict[str, Any] = {
        "map_size": size,
        "max_readers": MOST_READERS,
        # Keep no spare transaction: it has a slot in LMDB's table of readers. If a forked child
        # closed its copy of the transaction, it would free the slot, which the parent still uses.
        "max_spare_txns": 0,
        "sync": False,
        "metasync": False,
    }
    try:
        env = lmdb.open(str(folder), **words)
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError):
        for part in ("data.mdb", "lock.mdb"):
            (folder / part).unlink(missing_ok=True)
        env = lmdb.open(str(folder), **words)
    env.reader_check()  # frees the slots of killed readers
    return env


def _remove_unused(but: Path) -> None:
    """Remove the other stores' folders that no process has used for ``REMOVE_AFTER_SECONDS``."""
    for folder in but.parent.iterdir():
        users = folder / "users"
        with contextlib.suppress(OSError):
            if folder == but or users.stat().st_mtime > time.time() - REMOVE_AFTER_SECONDS:
                continue
            file = os.open(users, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)
