"""The words that ``lookup`` and ``enrich`` share: what they mean, their defaults, their checks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast._checks import check_bool, check_choice, check_count
from rstreams_fast.spark.journals import Journal
from rstreams_fast.spark.limits import PATIENCE_SECONDS, Limit
from rstreams_fast.spark.metrics import Metrics

__all__ = [
    "DEFAULT_BUFFER_BYTES",
    "DEFAULT_CONCURRENCY",
    "MOST_BYTES",
    "MOST_CALLS",
    "Cache",
    "CallOptions",
    "Circuit",
    "CircuitOpenError",
    "Retry",
    "check_metrics",
    "check_positive_int",
    "column_names",
    "is_async",
    "label_of",
]

DEFAULT_CONCURRENCY: Final = 64
"""Calls that run at once in one partition."""

DEFAULT_BUFFER_BYTES: Final = 64 << 20
"""Bytes of input batches that one partition holds; one batch always passes."""

MOST_AUTO: Final = 1024
"""What ``concurrency="auto"`` never exceeds, without a limit that bounds it."""

PENDING_PER_CALL: Final = 64
"""Default places in the window per running call: so many rows may wait behind one slow call."""

MAX_DEFAULT_PENDING: Final = 65_536
"""What the default number of places never exceeds, unless ``concurrency`` itself does."""


DEFAULT_LINGER: Final = 0.01
"""Seconds that a key waits for others to be called with."""

MOST_CALLS: Final = 2**31
"""More places than this no window has."""

MOST_BYTES: Final = 2**63 - 1
"""What a byte budget can count."""


def check_positive_int(name: str, value: object, most: int | None = None) -> int:
    """Return the argument ``name``, an int >= 1 and <= ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be <= {most}, got {value}")
    return value


def check_seconds(name: str, value: object) -> float:
    """Return the argument ``name``, a number of seconds > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {type(value).__name__}")
    if not value > 0:
        raise ValueError(f"{name} must be > 0 seconds, got {value}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be <= {sys.float_info.max} seconds") from None


def check_metrics(metrics: object) -> Metrics | None:
    """Return the argument ``metrics``, a ``Metrics`` or ``None``."""
    if metrics is not None and not isinstance(metrics, Metrics):
        raise TypeError(f"metrics must be a Metrics, got {type(metrics).__name__}")
    return metrics


def column_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the argument ``name``, one column's name or several."""
    if isinstance(value, str):
        return (value,)
    with contextlib.suppress(TypeError):  # a Column says that it can be iterated, and raises this
        names = tuple(value)
        if all(isinstance(column, str) for column in names):
            return names
    raise TypeError(f"{name} must be a column's name or several names, got {value!r}")


def is_async(fn: Callable[..., Any]) -> bool:
    """Say whether ``fn`` gives coroutines; partials and callable objects are looked into."""
    inner = _unwrapped(fn)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - it is looked into, not tested for
    )


def _unwrapped(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def label_of(fn: Callable[..., Any]) -> str:
    """Name a user's function for messages and metrics."""
    inner = _unwrapped(fn)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return str(name).rsplit("<locals>.", 1)[-1]


_ids: Final[dict[int, tuple[weakref.ref[Any], str]]] = {}


def _id_of(fn: Any) -> str:
    """Return an id that a function has in every stage that this process makes, and no other has."""
    if isinstance(fn, types.MethodType):  # made anew whenever it is looked up
        return f"{_id_of(fn.__self__)}.{_id_of(fn.__func__)}"
    known = _ids.get(id(fn))
    if known is not None and known[0]() is fn:
        return known[1]
    own, place = uuid.uuid4().hex, id(fn)

    def forget(gone: object) -> None:
        if place in _ids and _ids[place][0] is gone:
            del _ids[place]

    with contextlib.suppress(TypeError):  # nothing can refer to it weakly: each stage has an id
        _ids[place] = weakref.ref(fn, forget), own
    return own


def _exception_types(name: str, value: Any) -> tuple[type[Exception], ...]:
    kinds = (value,) if isinstance(value, type) else value
    if not isinstance(kinds, Iterable) or isinstance(kinds, str):
        raise TypeError(f"{name} must be exception types, got {kinds!r}")
    kinds = tuple(kinds)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{name} must be exception types, got {kind!r}")
    return kinds


@dataclass(frozen=True)
class Retry:
    """How often and when a failed call is made again.

    Before retry *n* a call waits ``backoff * factor**(n - 1)`` seconds, never more than
    ``max_backoff``. A call that waits for its next attempt still counts as running. All numbers are
    finite.

    Args:
        times: The most retries, as in ``Stream.retry(times)``: ``Retry(3)`` makes up to three
            further attempts after the first, so four calls at most.
        backoff: Seconds before the first retry.
        factor: By how much each wait is longer than the one before, 1 or more.
        max_backoff: The most seconds of a wait.
        jitter: The largest share of a wait, from 0 to 1, that is left out at random, so that many
            callers do not come back together. With 1 ("full jitter") a wait is any time up to its
            full length.
        on: The exception types that are worth another attempt. A time-out is a ``TimeoutError``.
        budget: The largest share of the calls that may be retries, such as 0.1, in each worker
            process, for all stages that have the same object; ten are free. So a service that is
            down is not called several times as often. Default: no bound.
        patience: Seconds that a call waits in all when its function raises ``RetryAfter``, which
            uses up no retries and no budget. A call without a ``Retry`` waits 300, too. With 0 a
            ``RetryAfter`` is a failure at once.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    times: int
    backoff: float = 0.1
    factor: float = 2.0
    max_backoff: float = 30.0
    jitter: float = 1.0
    on: tuple[type[Exception], ...] = (Exception,)
    budget: float | None = None
    patience: float = PATIENCE_SECONDS
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive_int("Retry(times)", self.times)
        numbers = {"backoff": 0, "factor": 1, "max_backoff": 0, "jitter": 0, "patience": 0}
        if self.budget is not None:
            numbers["budget"] = 0
        for name, least in numbers.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"Retry({name}) must be a number, got {type(value).__name__}")
            if not least <= value <= sys.float_info.max:
                raise ValueError(f"Retry({name}) must be finite and >= {least}, got {value}")
            if name in ("jitter", "budget") and value > 1:
                raise ValueError(f"Retry({name}) must be <= 1, got {value}")
        object.__setattr__(self, "on", _exception_types("Retry(on)", self.on))

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before a retry.

        Args:
            retry: The number of the retry, from 1.
        """
        if not self.backoff:
            return 0.0
        try:
            full = min(self.backoff * self.factor ** (retry - 1), self.max_backoff)
        except OverflowError:
            full = self.max_backoff
        return full * (1 - self.jitter * random.random())  # noqa: S311 - spreads load, hides nothing


class CircuitOpenError(Exception):
    """A call was not made: its ``Circuit`` is open. ``on_failure`` decides about the call."""


@dataclass(frozen=True)
class Circuit:
    """After too many failures no calls are made for a while, and then one call, as a test.

    Each worker process has a state of its own, for all stages that have the same object, also those
    of later tasks. ``RetryAfter`` is never a failure here.

    Args:
        failures: How many attempts in a row may fail (an ``int``), or which share of the last 100
            (a ``float``), before the circuit opens. While it is open, calls fail at once with
            ``CircuitOpenError``, and are not tried again.
        reset: Seconds until one call is let through. If that call succeeds, the circuit closes. If
            it fails, or has not returned after as many seconds again, the circuit is open for as
            long again.
        on: The exception types that count as failures of the service; any other exception shows
            that the service answers.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    failures: float = 10
    reset: float = 30.0
    on: tuple[type[Exception], ...] = (Exception,)
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.failures, float):
            check_positive_int("Circuit(failures)", self.failures, MOST_CALLS)
        elif not 0 < self.failures <= 1:
            raise ValueError(f"Circuit(failures) must be a share up to 1.0, got {self.failures}")
        check_seconds("Circuit(reset)", self.reset)
        object.__setattr__(self, "on", _exception_types("Circuit(on)", self.on))

    def describe(self) -> str:
        """Return a text for people: when the circuit opens."""
        share = isinstance(self.failures, float)
        what = f"{self.failures:.0%} of 100 attempts" if share else f"{self.failures} in a row"
        return f"circuit: opens for {self.reset:g} s when {what} fail, in each worker"


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


@dataclass(frozen=True, repr=False)
class CallOptions:
    """A checked set of the words of ``lookup`` and ``enrich``; see there for their meaning."""

    fn: Callable[..., Any]
    using: Callable[[], Any] | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    max_pending_rows: int | None = None
    ordered: bool = True
    dedupe: bool = False
    on_null: str = "skip"
    timeout: float | None = None
    retry: Retry | None = None
    on_failure: str = "raise"
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES
    metrics: Metrics | None = None
    limit: Limit | None = None
    batch: int | None = None
    linger: float = DEFAULT_LINGER
    cache: Cache | None = None
    max_failures: float | None = None
    circuit: Circuit | None = None
    deadline: float | None = None
    task_deadline: float | None = None
    on_failures: tuple[str, ...] = ("raise", "null", "column")
    """The values that ``on_failure`` may have."""
    key_order: int | None = None
    """Which of the keys it is whose calls take turns."""
    journal: Journal | None = None
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    auto: bool = field(init=False)
    """Whether ``concurrency`` is the most that will be found, not what there is."""
    is_async: bool = field(init=False)
    label: str = field(init=False)
    called_id: str = field(init=False)
    """What tells ``fn``, and whose client it gets, from others of its name, in every process."""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be callable, got {type(self.fn).__name__}")
        if self.using is not None and not callable(self.using):
            raise TypeError(
                "using must be a factory of a context manager, "
                f"got {type(self.using).__name__}, which cannot be called"
            )
        if self.loop_factory is not None and not callable(self.loop_factory):
            raise TypeError(
                f"loop_factory must make an event loop, got {type(self.loop_factory).__name__}, "
                "which cannot be called"
            )
        object.__setattr__(self, "auto", str(self.concurrency) == "auto")
        if self.max_pending_rows is not None:
            check_positive_int("max_pending_rows", self.max_pending_rows, MOST_CALLS)
        if self.batch is not None:
            check_positive_int("batch", self.batch, MOST_CALLS)
        if self.auto:
            pending = self.max_pending_rows
            if pending is not None and self.batch is not None:
                pending = max(1, pending // (2 * self.batch))  # see running_rows
            bounds = (MOST_AUTO, self.limit and self.limit.concurrency, pending)
            object.__setattr__(self, "concurrency", min(bound for bound in bounds if bound))
        check_positive_int("concurrency", self.concurrency, MOST_CALLS)
        check_positive_int("max_buffer_bytes", self.max_buffer_bytes, MOST_BYTES)
        if self.batch is not None:
            check_positive_int("batch", self.batch, MOST_CALLS // self.concurrency)
        if self.key_order is not None:
            check_count("key_order", self.key_order)
        if self.key_order is not None and self.batch is not None:
            raise ValueError("key_order and batch: a list of keys has no turn of its own")
        self._check_linger(self.linger)
        check_bool("ordered", self.ordered)
        check_bool("dedupe", self.dedupe)
        check_choice("on_null", self.on_null, ("skip", "call"))
        check_choice("on_failure", self.on_failure, self.on_failures)
        if self.max_pending_rows is not None and self.max_pending_rows < self.running_rows:
            of = "" if self.batch is None else f" of {self.batch} keys"
            raise ValueError(
                f"max_pending_rows={self.max_pending_rows} is less than "
                f"concurrency={self.concurrency}{of}: so many calls could never run"
            )
        kinds = {
            "retry": Retry,
            "limit": Limit,
            "cache": Cache,
            "journal": Journal,
            "circuit": Circuit,
        }
        for word, kind in kinds.items():
            value = getattr(self, word)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{word} must be a {kind.__name__}, got {type(value).__name__}")
        check_metrics(self.metrics)
        if self.max_failures is not None:
            self._check_max_failures(self.max_failures)
        object.__setattr__(self, "is_async", is_async(self.fn))
        object.__setattr__(self, "label", label_of(self.fn))
        ids = map(_id_of, (self.fn,) if self.using is None else (self.fn, self.using))
        object.__setattr__(self, "called_id", " ".join(ids))
        if self.auto and not self.is_async:
            raise ValueError(f"concurrency='auto' needs an async fn: {self.label} runs on threads")
        if self.task_deadline is not None:
            check_seconds("task_deadline", self.task_deadline)
        for word in ("timeout", "deadline"):
            if getattr(self, word) is None:
                continue
            object.__setattr__(self, word, check_seconds(word, getattr(self, word)))
            if not self.is_async:
                raise ValueError(
                    f"{word} needs an async fn: {self.label} runs on a thread, "
                    "and a thread cannot be stopped; set the time-out of the client it uses"
                )

    def __repr__(self) -> str:
        return f"CallOptions({self.label})"  # a partial would show its arguments

    def _check_linger(self, linger: float) -> None:
        if linger != 0:
            check_seconds("linger", linger)
        if self.batch is None and linger != DEFAULT_LINGER:
            raise ValueError("linger is for the keys of a batch: give batch, too")

    def _check_max_failures(self, most: float) -> None:
        if self.on_failure == "raise":
            raise ValueError("max_failures needs another on_failure: 'raise' fails with the first")
        if isinstance(most, bool) or not isinstance(most, int | float):
            raise TypeError(f"max_failures must be a number or a share, got {type(most).__name__}")
        if most < 0 or (isinstance(most, float) and not most <= 1):
            raise ValueError(
                f"max_failures must be an int >= 0, or a share of the calls up to 1.0, got {most}"
            )

    @property
    def is_plain(self) -> bool:
        """Whether a call of the window is one of ``fn``, with nothing but a limit between them."""
        return not (self.is_guarded or self.on_failure != "raise" or self.makes_fewer_calls)

    @property
    def makes_fewer_calls(self) -> bool:
        """Whether ``fn`` is called less often than the window calls: in lists, or not at all."""
        return any(word is not None for word in (self.batch, self.cache, self.journal))

    @property
    def is_guarded(self) -> bool:
        """Whether more than a limit stands around each attempt: time, retries, circuits."""
        words = (self.timeout, self.retry, self.circuit, self.deadline)
        told = self.on_failure == "column"
        return self.auto or told or any(word is not None for word in words)

    @property
    def compares_keys(self) -> bool:
        """Whether it matters which keys are equal."""
        return self.dedupe or self.cache is not None or self.key_order is not None

    @property
    def running_rows(self) -> int:
        """How many rows can be in calls at once, or wait in lists that are the next calls."""
        return self.concurrency if self.batch is None else 2 * self.concurrency * self.batch

    @property
    def window_rows(self) -> int:
        """Places in the window: rows whose call was made and whose result is not yet handed on."""
        if self.max_pending_rows is not None:
            return self.max_pending_rows
        running = self.running_rows
        return max(running, min(PENDING_PER_CALL * running, MAX_DEFAULT_PENDING))
