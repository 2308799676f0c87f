"""Results that a worker process keeps between calls, partitions and tasks."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from rstreams_fast._third_parties import importing
from rstreams_fast.core import MISSING
from rstreams_fast.spark.options import Cache, CallOptions
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.outcomes import Outcome
from rstreams_fast.spark.worker.values.sizes import bytes_of, owned

__all__ = ["CachedResults"]

ENTRY_BYTES: Final = 500
"""About how many bytes the cache itself uses for an entry."""

_Entry = tuple[Any, float, int]
"""The result, the time at which it expires, and the bytes of its key and result."""

_stores: Final[dict[str, _Store]] = {}
_stores_lock: Final = threading.Lock()


class CachedResults:
    """Looks up and stores the results of a stage that has a ``cache``."""

    def __init__(
        self, cache: Cache, options: CallOptions, key_types: Iterable[object], counters: Counters
    ) -> None:
        """``key_types`` is part of each cache key: it keeps 1, 1.0 and true apart."""
        with _stores_lock:
            store = _stores.get(cache.id)
            if store is None:
                store = _stores[cache.id] = _Store(cache)
        self._store = store
        self._of = options.called_id, *map(str, key_types)
        self._told = options.on_failure == "column"
        self._counters = counters

    def around(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return ``fn``, which is called only for keys that are not in the cache."""
        get, put = self._store.get, self._store.put
        of, told, counters = self._of, self._told, self._counters

        async def call(*key: Any) -> Any:
            place = (of, key)
            try:
                found = get(place)
            except TypeError:  # the key has no hash: a user's own type, say
                return await fn(*key)
            if found is not MISSING:
                counters.cache_hits += 1
                return Outcome(found, None, 0, 0.0) if told else found
            result = await fn(*key)
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
