"""``Cache``: results that a process keeps between calls, partitions and tasks."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast._third_parties import importing
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.functions import check_positive_int, check_seconds
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.sizes import bytes_of, owned
from rstreams_fast.core import MISSING

__all__ = ["Cache", "CachedResults"]

ENTRY_BYTES: Final = 500
"""About how many bytes the cache itself uses for an entry."""

_Entry = tuple[Any, float, int]
"""The result, the time at which it expires, and the bytes of its key and result."""

_stores: Final[dict[str, _Store]] = {}
_stores_lock: Final = threading.Lock()


@dataclass(frozen=True)
class Cache:
    """Results that each Python worker keeps for its later calls, also those of later tasks.

    The result that was used least recently goes first. A call that fails leaves nothing. Stages may
    share a cache; each function (a lambda or a partial object is one of its own) has its own
    results in it, for each ``using`` and type of keys. The cache object counts: the same object
    finds its kept results again, though a value that the function reads may have changed meanwhile.
    Make another cache then.

    Args:
        entries: The most results.
        bytes: The most bytes of results.
        ttl: How many seconds a result is good for. Default: as long as the worker lives.
        null_ttl: The same for ``None``; 0 keeps none. Default: as ``ttl``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    entries: int = 10_000
    bytes: int = 64 << 20
    ttl: float | None = None
    null_ttl: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive_int("Cache(entries)", self.entries)
        check_positive_int("Cache(bytes)", self.bytes)
        if self.ttl is not None:
            check_seconds("Cache(ttl)", self.ttl)
        if self.null_ttl is not None and self.null_ttl != 0:
            check_seconds("Cache(null_ttl)", self.null_ttl)

    def describe(self) -> str:
        """Return a text for people: the bounds of the cache."""
        until = "" if self.ttl is None else f", for {self.ttl:g} s"
        return f"a cache of at most {self.entries} results and {self.bytes} bytes{until}"


class CachedResults:
    """Looks up and stores the results of a stage that has a ``cache``."""

    def __init__(
        self,
        cache: Cache,
        called_id: str,
        key_types: Iterable[object],
        counts: CallCounts,
        *,
        told: bool = False,
    ) -> None:
        """``called_id`` and ``key_types`` are part of each cache key: the types keep 1, 1.0 and
        true apart. If ``told``, results are an ``Outcome``.
        """
        with _stores_lock:
            store = _stores.get(cache.id)
            if store is None:
                store = _stores[cache.id] = _Store(cache)
        self._store = store
        self._of = called_id, *map(str, key_types)
        self._told = told
        self._counts = counts

    def around(
        self, fn: Callable[..., Awaitable[Any]], key_of: Callable[..., Any] | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """Return ``fn``, which is called only for keys that are not in the cache.

        ``key_of`` makes the key of the arguments. Default: they are the key.
        """
        get, put = self._store.get, self._store.put
        of, told, counts = self._of, self._told, self._counts

        async def call(*args: Any) -> Any:
            place = (of, args if key_of is None else key_of(*args))
            try:
                found = get(place)
            except TypeError:  # the key has no hash: a user's own type, say
                return await fn(*args)
            if found is not MISSING:
                counts.cache_hits += 1
                return Outcome(found, None, 0, 0.0) if told else found
            result = await fn(*args)
            if not told:
                put(place, result)
            elif result.error is None:
                put(place, result.value)
            return result

        return call


class _Store:
    """A bounded map, shared by the stages of a process that use the same cache. Thread-safe."""

    def __init__(self, cache: Cache) -> None:
        with importing("cachetools", "cache on an executor", "'rstreams_fast[spark]'"):
            import cachetools
        self._ttl = math.inf if cache.ttl is None else cache.ttl
        self._null_ttl = self._ttl if cache.null_ttl is None else cache.null_ttl
        entries, size = cache.entries, cache.bytes
        self._most = size

        def weight(entry: _Entry) -> int:
            # The total is entries * size: an entry weighs a place at least, or its share of bytes.
            return max(size, entries * (ENTRY_BYTES + entry[2]))

        self._entries: cachetools.LRUCache[Any, _Entry]
        self._entries = cachetools.LRUCache(entries * size, weight)
        self._lock = threading.Lock()

    def get(self, place: Any) -> Any:
        """Return the cached result of ``place``, or ``MISSING``."""
        with self._lock:
            try:
                result, until, _ = self._entries[place]
            except KeyError:
                return MISSING
        return result if until == math.inf or time.monotonic() < until else MISSING

    def put(self, place: Any, result: Any) -> None:
        """Store the result, as a copy if it is a view.

        A result that is larger than the whole cache, or cannot be measured, is not stored.
        """
        ttl = self._null_ttl if result is None else self._ttl
        if not ttl:
            return
        try:
            result = owned(result)
            size = bytes_of((place, result), self._most)
        except Exception:  # a user's type may raise anything
            return
        with self._lock, contextlib.suppress(ValueError):
            self._entries[place] = (result, time.monotonic() + ttl, size)
