"""``Cache``: keeps results of calls for later calls, also in other partitions and tasks."""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from rstreams_fast._checks import check_choice
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import (
    BudgetSpentError,
    CircuitOpenError,
    StageError,
    warn_once,
)
from rstreams_fast.calls.functions import check_positive_int, check_seconds
from rstreams_fast.calls.latest import LatestUsed
from rstreams_fast.calls.memory.stores import LEAST_HOST_BYTES, HostStore, ProcessStore, Store
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.core import MISSING

__all__ = ["Cache", "CachedResults"]

_INDEPENDENT_OF_KEY: Final = (StageError, CircuitOpenError, BudgetSpentError, RetryAfter)
"""Failures that do not depend on the key: a later call with the same key may succeed."""

_ITERATORS: Final = (Iterator, AsyncIterator)

_stores: Final[LatestUsed[Store]] = LatestUsed()


@dataclass(frozen=True)
class Cache:
    """Results of calls that are kept for later calls, also for calls of later tasks.

    Each process keeps its own results. A full cache drops the least recently used result. With
    ``scope="executor"``, all Python processes of a host share the results, in a file. A full file
    drops the oldest result. In a file, keys must be plain values, and only results that can be
    pickled are kept.

    Stages may share a cache. The cache keeps apart the results of each function, of each client
    factory (``using``) and of each type of keys. Each lambda and each partial object is a separate
    function. The cache object and its copies find the same results. If a value that the function
    reads has changed, make a new cache. Arguments must be hashable: ``Policy(key=...)`` can make a
    tuple of a list. An iterator is not kept, because its first caller uses it up.

    ```python
    import rstreams_fast as rsf

    cache = rsf.Cache(bytes=256 << 20, ttl=3600, failure_ttl=60)
    ```

    Args:
        entries: The most results that are kept.
        bytes: The most bytes of results. In a process, this counts the objects and everything that
            they keep alive. With ``scope="executor"``, it is the size of the file, at least 1 MiB.
        ttl: How many seconds a result is valid. Default: as long as the cache exists.
        null_ttl: How many seconds the result ``None`` is valid; 0 keeps no ``None``. Default:
            ``ttl``.
        failure_ttl: For how many seconds a failure is raised again, without a call. Open circuits
            and ``RetryAfter`` are never kept. Default: failures are not kept.
        scope: ``"process"`` or ``"executor"``. The file of a host is removed when no process has
            used it for 15 minutes.
        name: The name of a cache with ``scope="executor"``, by which processes share it. Name a
            cache in a module that each process imports: without a name each process makes a
            separate cache. Default: a unique name.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    entries: int = 10_000
    bytes: int = 64 << 20
    ttl: float | None = None
    null_ttl: float | None = None
    failure_ttl: float | None = None
    scope: Literal["process", "executor"] = "process"
    name: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive_int("Cache(entries)", self.entries)
        check_positive_int("Cache(bytes)", self.bytes)
        for word in ("ttl", "null_ttl", "failure_ttl"):
            value = getattr(self, word)
            if value is not None:
                check_seconds(f"Cache({word})", value, zero=word == "null_ttl")
        check_choice("Cache(scope)", self.scope, ("process", "executor"))
        if self.scope == "executor" and self.bytes < LEAST_HOST_BYTES:
            raise ValueError(f"Cache(bytes) must be >= {LEAST_HOST_BYTES} for an executor")
        if self.name is not None:
            if not isinstance(self.name, str):
                raise TypeError(f"Cache(name) must be a str, got {type(self.name).__name__}")
            if self.scope != "executor":
                raise ValueError("Cache(name) is for scope='executor'")
            object.__setattr__(self, "id", f"named {self.name}")

    def describe(self) -> str:
        """Describe the bounds of the cache in words."""
        until = "" if self.ttl is None else f", for {self.ttl:g} s"
        where = "" if self.scope == "process" else ", shared by the processes of a host"
        return f"a cache of at most {self.entries} results and {self.bytes} bytes{until}{where}"


class CachedResults:
    """Looks up and stores the results of a function that has a ``cache``."""

    def __init__(
        self,
        cache: Cache,
        called_id: str,
        key_types: Iterable[object],
        counts: CallCounts,
        *,
        as_outcomes: bool = False,
    ) -> None:
        """``called_id`` (the id of the function) and ``key_types`` are part of each cache key, so
        that 1, 1.0 and ``True`` are different keys. If ``as_outcomes``, the wrapped function
        returns ``Outcome`` objects.
        """
        self._store = _store_of(cache)
        self._function = called_id, *map(str, key_types)
        self._ttl = math.inf if cache.ttl is None else cache.ttl
        self._null_ttl = self._ttl if cache.null_ttl is None else cache.null_ttl
        self._failure_ttl = cache.failure_ttl
        self._as_outcomes = as_outcomes
        self._counts = counts

    def wrap(
        self, fn: Callable[..., Awaitable[Any]], key_of: Callable[..., Any] | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper that calls ``fn`` only for keys that are not in the cache.

        ``key_of`` makes the key from the arguments. Default: the arguments are the key.
        """
        make_entry_key, get = self._store.entry_key, self._store.get
        function, as_outcomes, counts = self._function, self._as_outcomes, self._counts

        async def call(*args: Any) -> Any:
            key = args if key_of is None else key_of(*args)
            try:
                entry_key = make_entry_key(function, key)
                found = get(entry_key)
            except TypeError as error:
                # An argument without a hash (a list, say) cannot be in a key: skip the cache.
                warn_once(
                    counts.stage,
                    "%s: its cache keeps no results of calls whose arguments have no hash (%s): "
                    "give Policy(key=...), which makes a key of the arguments",
                    counts.stage,
                    error,
                )
                return await fn(*args)
            if found is not MISSING:
                counts.cache_hits += 1
                if type(found) is not _Failure:
                    return Outcome(found, None, 0, 0.0) if as_outcomes else found
                failure = found.copy()
                counts.count_cached_failure(failure)
                if as_outcomes:
                    return Outcome(None, failure, 0, 0.0)
                raise failure
            try:
                result = await fn(*args)
            except Exception as error:
                self._store_failure(entry_key, error)
                raise
            if not as_outcomes:
                self._put(entry_key, result)
            elif result.error is None:
                self._put(entry_key, result.value)
            else:
                self._store_failure(entry_key, result.error)
            return result

        return call

    def _put(self, entry_key: Any, result: Any) -> None:
        if isinstance(result, _ITERATORS):
            # The first caller uses the iterator up: later callers would get no items.
            stage = self._counts.stage
            warn_once(stage, "%s: its cache keeps no iterators: return a list", stage)
            return
        if ttl := self._null_ttl if result is None else self._ttl:
            self._store.put(entry_key, result, ttl)

    def _store_failure(self, entry_key: Any, error: BaseException) -> None:
        if self._failure_ttl is None or isinstance(error, _INDEPENDENT_OF_KEY):
            return
        if isinstance(error, Exception) and (bare := _copy_of(error)) is not None:
            self._store.put(entry_key, _Failure(bare), self._failure_ttl)


class _Failure(NamedTuple):
    """A stored failure, without its traceback, which would keep all local variables alive."""

    error: Exception

    def copy(self) -> Exception:
        """Return a copy to raise, so that notes of callers do not change the stored failure."""
        return _copy_of(self.error) or self.error

    def __reduce__(self) -> Any:
        return _make_failure, _recipe_of(self.error)


def _make_failure(make: Callable[..., Exception], args: tuple[Any, ...]) -> _Failure:
    return _Failure(make(*args))


def _copy_of(error: Exception) -> Exception | None:
    """Return a copy of an exception, without traceback and context; ``None`` if that fails."""
    try:
        make, args = _recipe_of(error)
        copied = make(*args)
    except Exception:  # the methods of a user's type may raise anything
        return None
    if type(copied) is not type(error) or copied is error:
        return None
    if notes := getattr(error, "__notes__", None):
        BaseException.__setattr__(copied, "__notes__", list(notes))
    return copied


def _recipe_of(error: Exception) -> tuple[Callable[..., Exception], tuple[Any, ...]]:
    """Return a function and its arguments. Calling the function makes a copy of ``error``.

    The function does not call the constructor of a user's type, because its parameters may differ
    from ``error.args``.
    """
    kind: Any = type(error)
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    if kind.__reduce__ is not base.__reduce__:
        return copy.copy, (error,)  # the type has its own ``__reduce__``
    _, args, *state = base.__reduce__(error)
    return _make_error, (kind, base, args, *state)


def _make_error(kind: Any, base: Any, args: tuple[Any, ...], state: Any = None) -> Exception:
    made: Exception = kind.__new__(kind, *args)
    base.__init__(made, *args)
    for name, value in (state or {}).items():
        BaseException.__setattr__(made, name, value)
    return made


def _store_of(cache: Cache) -> Store:
    def make() -> Store:
        if cache.scope == "process":
            return ProcessStore(cache.entries, cache.bytes)
        return HostStore(cache.id, cache.entries, cache.bytes)

    return _stores.get(cache.id, make)
