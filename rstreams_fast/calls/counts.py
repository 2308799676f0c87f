"""Counts the calls of a function, their latencies and their waits."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import floor, log2
from time import monotonic
from typing import Any, ClassVar, Final

from rstreams_fast.calls.circuit import CircuitState
from rstreams_fast.calls.errors import warn_once
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.traces import current
from rstreams_fast.runtime.executors import process_id
from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = [
    "PER_OCTAVE",
    "TIMED_EVERY",
    "TIMED_FIRST",
    "CallCounts",
    "FunctionCounts",
    "Waits",
    "added",
    "summed",
    "total_seconds",
]

TIMED_FIRST: Final = 500
"""The first ``TIMED_FIRST`` attempts are all timed. After them one of ``TIMED_EVERY`` attempts is
timed, and its latency is counted ``TIMED_EVERY`` times."""

TIMED_EVERY: Final = 128

PER_OCTAVE: Final = 8
"""The number of latency buckets per factor of two: each bucket ends at 1.09 times its start."""

LEAST_SECONDS: Final = 1e-7

FIRST_CALLS: Final = 100
"""A warning is logged if the first ``FIRST_CALLS`` calls all fail with the same exception."""


class Waits:
    """The total seconds that calls have waited for one cause, such as a limit.

    The object is a context manager: each wait of a call is a ``with`` block. The total includes
    waits that have not ended yet. Only one thread may enter the blocks.
    """

    __slots__ = ("_state", "given_up")

    def __init__(self) -> None:
        # The number of waiting calls, and the total seconds. The begin of a wait subtracts the
        # clock's time from the total, and the end of the wait adds the clock's time. Both numbers
        # are in one tuple, so that another thread never reads a new number with an old total.
        self._state = 0, 0.0
        self.given_up = 0
        """The number of waits that ended with an exception, such as a cancellation."""

    def __enter__(self) -> None:
        waiting, total = self._state
        self._state = waiting + 1, total - monotonic()

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        waiting, total = self._state
        self._state = waiting - 1, total + monotonic()
        self.given_up += kind is not None

    @property
    def seconds(self) -> float:
        """The total seconds of all waits until now."""
        waiting, total = self._state
        return max(0.0, total + waiting * monotonic())

    @property
    def unfinished(self) -> int:
        """The number of waits that have not ended yet, or that ended with an exception."""
        return self._state[0] + self.given_up


def added(tables: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return a dict that has, for each key, the sum of the key's values in all ``tables``."""
    total: dict[Any, Any] = {}
    for table in tables:
        for key, count in table.items():
            total[key] = total.get(key, 0) + count
    return total


@dataclass(eq=False)
class CallCounts:
    """The counts of a function's calls. Only one thread changes each object.

    Attributes:
        stage: The name of the function.
        calls: Calls of the function. A call with many attempts counts once. A call that a cache or
            a journal answered does not count.
        attempts: How often the function was called, including further attempts. This is the number
            of calls that the service saw.
        cache_hits: Calls that a ``Cache`` answered.
        journal_hits: Calls that a ``Journal`` answered.
        retries: Further attempts that ``Retry`` made after a failure.
        throttled: Attempts that raised ``RetryAfter`` and were repeated after a wait.
        refused: Attempts that were not made, because the ``Circuit`` was open.
        timeouts: Attempts that took longer than ``timeout``, and calls that took longer than
            ``deadline``.
        failures: Calls that failed after all their attempts.
        failure_types: The number of ``failures`` for each type of exception.
        latencies: The number of attempts for each range of latencies; the method ``latency`` reads
            this table. A key is the number of a range: range *n* ends at ``2 ** ((n + 1) / 8)``
            seconds. After the first 500 attempts one of 128 attempts is timed, and counts 128
            times.
        waited_limit: The total seconds that attempts waited for a ``Limit``.
        waited_service: The total seconds that calls waited because of ``RetryAfter``.
        waited_retry: The total seconds that calls waited before retries.
        circuit_open: The seconds for which the ``Circuit`` was open.
        concurrency: The present bound on concurrent calls.
        spent: The amount of each unit that the attempts reported by calling ``rs.spent``.
    """

    ambient: ClassVar[list[CallCounts] | None] = None
    """While a Spark task runs UDFs: a list to which each function with a policy adds its counts."""

    stage: str = ""
    calls: int = 0
    attempts: int = 0
    cache_hits: int = 0
    journal_hits: int = 0
    retries: int = 0
    throttled: int = 0
    refused: int = 0
    timeouts: int = 0
    failures: int = 0
    failure_types: dict[str, int] = field(default_factory=dict)
    latencies: dict[int, int] = field(default_factory=dict)
    waited_limit: float = 0.0
    waited_service: float = 0.0
    waited_retry: float = 0.0
    circuit_open: float = 0.0
    concurrency: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limit_waits = Waits()
        self.service_waits = Waits()
        self.retry_waits = Waits()
        self.repeated_by_window = 0
        """The number of further attempts that ``Recovery`` made for a ``CallWindow``."""
        self.timed_at = 1
        """The next attempt is timed when ``attempts`` reaches this number."""
        self._timed = 0
        self._open_before: dict[CircuitState, float] = {}
        """The seconds for which each circuit had been open before this object began to count."""
        self._any_success = [False]
        """A list of one ``bool``: whether any call of the function has succeeded. All counts of a
        ``FunctionCounts`` share this list."""
        self._is_sum = False

    def latency(self, share: float) -> float:
        """Return a quantile of the attempts' latencies in seconds, exact to 5 %.

        Args:
            share: Which quantile, from 0 to 1. With 0.5 the result is the median. With 0.99 one of
                a hundred attempts took longer than the result.

        Returns:
            The seconds; 0.0 if no attempt has ended.
        """
        left = share * sum(self.latencies.values())
        for bucket in sorted(self.latencies):
            left -= self.latencies[bucket]
            if left <= 0:
                return _seconds_of_bucket(bucket)
        return 0.0

    # -- methods for the code that makes the calls -------------------------------------------------

    def count_again(self, error: Exception) -> None:
        """Count a further attempt after ``error``, as throttled or as a retry."""
        if isinstance(error, RetryAfter):
            self.throttled += 1
        else:
            self.retries += 1

    def waits_after(self, error: Exception) -> Waits:
        """Return the ``Waits`` that counts the wait between ``error`` and the next attempt."""
        return self.service_waits if isinstance(error, RetryAfter) else self.retry_waits

    def count_timeout(self) -> None:
        """Count an attempt that exceeded its time-out, or a call that exceeded its deadline."""
        self.timeouts += 1

    def count_success(self) -> None:
        """Record that a call has succeeded, so that ``count_failure`` logs no warning."""
        self._any_success[0] = True

    def forget_successes(self) -> None:
        """Undo all calls of ``count_success``, because no result has the declared type so far."""
        self._any_success[0] = False

    def count_failure(self, error: BaseException) -> None:
        """Count a call that failed after all its attempts.

        Logs a warning if the first ``FIRST_CALLS`` calls have all failed with the same exception.
        """
        kind = type(error).__qualname__
        if (trace := current.get()) is not None and trace.counts is self:
            trace.note_failure(error)
        self.failures += 1
        self.failure_types[kind] = self.failure_types.get(kind, 0) + 1
        alike = self.failures == FIRST_CALLS and len(self.failure_types) == 1
        if alike and not self._any_success[0]:
            warn_once(
                self.stage,
                "%s: the first %d calls have all failed with %s, as the last one of them: %s",
                self.stage,
                FIRST_CALLS,
                kind,
                error,
            )

    def count_cached_failure(self, error: BaseException) -> None:
        """Do nothing: a cache raises the stored ``error`` again, but no call was made."""

    def count_open(self, circuit: CircuitState | None) -> None:
        """From now on, count the seconds for which ``circuit`` is open, in ``circuit_open``."""
        if circuit is not None:
            self._open_before.setdefault(circuit, circuit.open_seconds())

    def timed(self, awaitable: Awaitable[Any]) -> Awaitable[Any]:
        """Return a wrapper of ``awaitable``, the latest attempt, that measures the latency.

        The caller calls this method when ``attempts`` has reached ``timed_at``.
        """
        attempts, self._timed = self.attempts - self._timed, self.attempts
        self.timed_at = self.attempts + (1 if self.attempts < TIMED_FIRST else TIMED_EVERY)
        return self.timing(awaitable, attempts)

    def timing(self, awaitable: Awaitable[Any], attempts: int) -> Awaitable[Any]:
        """Return a wrapper of ``awaitable`` that counts its latency for ``attempts`` attempts."""
        if not hasattr(type(awaitable), "__await__"):
            # Do not time a result that cannot be awaited: the caller's ``await`` raises TypeError.
            return awaitable
        return self._timing(awaitable, attempts)

    async def _timing(self, awaitable: Awaitable[Any], attempts: int) -> Any:
        begun = monotonic()
        try:
            return await awaitable
        finally:
            self.count_latency(monotonic() - begun, attempts)

    def count_latency(self, seconds: float, attempts: int = 1) -> None:
        """Count ``attempts`` attempts, each of which took ``seconds``."""
        bucket = floor(PER_OCTAVE * log2(max(seconds, LEAST_SECONDS)))
        self.latencies[bucket] = self.latencies.get(bucket, 0) + attempts

    def attempted(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that counts each call as an attempt, and times some calls."""

        def call(*args: Any) -> Awaitable[Any]:
            self.attempts += 1
            if self.attempts < self.timed_at:
                return fn(*args)
            return self.timed(fn(*args))

        return call

    def update_waits(self) -> None:
        """Update ``waited_limit``, ``waited_service``, ``waited_retry`` and ``circuit_open``."""
        if self._is_sum:
            return
        self.waited_limit = self.limit_waits.seconds
        self.waited_service = self.service_waits.seconds
        self.waited_retry = self.retry_waits.seconds
        if self._open_before:
            self.circuit_open = self._seconds_with_open_circuits()

    def _seconds_with_open_circuits(self) -> float:
        return sum(circuit.open_seconds() - of for circuit, of in self._open_before.items())

    def _count_circuits_of(self, parts: Iterable[CallCounts]) -> None:
        """Set ``circuit_open`` from ``parts``. A circuit that several parts share counts once."""
        for part in parts:
            for circuit, before in part._open_before.items():
                self._open_before[circuit] = min(before, self._open_before.get(circuit, before))
        if self._open_before:
            self.circuit_open = self._seconds_with_open_circuits()


def total_seconds(latencies: Mapping[int, float]) -> float:
    """Return the sum of all latencies in the table ``latencies``, in seconds, exact to 5 %."""
    return sum(count * _seconds_of_bucket(bucket) for bucket, count in latencies.items())


def _seconds_of_bucket(bucket: int) -> float:
    """Return the latency in the middle of a bucket, in seconds."""
    return float(2 ** ((bucket + 0.5) / PER_OCTAVE))


_SUMMED: Final = [field.name for field in fields(CallCounts) if field.name != "stage"]


def summed(parts: Iterable[CallCounts], stage: str = "") -> CallCounts:
    """Return new counts with the name ``stage`` and the sums of all ``parts``. Thread-safe."""
    parts = list(parts)
    total = CallCounts(stage)
    total._is_sum = True
    for part in parts:
        part.update_waits()
    for name in _SUMMED:
        values = [getattr(part, name) for part in parts]
        setattr(
            total,
            name,
            added(map(dict, values)) if values and isinstance(values[0], dict) else sum(values),
        )
    total._count_circuits_of(parts)
    return total


class FunctionCounts:
    """The counts of one function that several threads and event loops may call. Thread-safe.

    Each thread and each loop has its own ``CallCounts``, so that no lock is needed to count a call.
    In a forked child process the counts start from zero.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._lock = ForkLock()
        self._pid = process_id()
        self._ended = CallCounts(stage)
        self._any_success = self._ended._any_success
        self._counting: dict[CallCounts, Callable[[], bool]] = {}
        """The keys are the counts that may still change. The values are functions, which return
        whether the thread of the counts is alive, or whether the loop of the counts is open."""

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> CallCounts:
        """Return new counts for calls on ``loop``, or without ``loop`` for the calling thread.

        Counts for a ``loop`` may change until the loop is closed, even if the calling thread has
        ended: another thread may run the loop then.
        """
        thread = threading.current_thread()
        counts = CallCounts(self._stage)
        counts._any_success = self._any_success
        if (ambient := CallCounts.ambient) is not None:
            ambient.append(counts)
        with self._lock:
            self._add_ended()
            self._counting[counts] = thread.is_alive if loop is None else _is_open(loop)
        return counts

    def snapshot(self) -> CallCounts:
        """Return the sums of all counts until now."""
        with self._lock:
            self._add_ended()
            return summed([self._ended, *self._counting], self._stage)

    def end(self, counts: CallCounts) -> None:
        """Add ``counts`` to the sum of ended counts. Nothing may change ``counts`` after this."""
        with self._lock:
            if self._counting.pop(counts, None) is not None:
                self._ended = summed([self._ended, counts], self._stage)

    def _add_ended(self) -> None:
        if self._pid != process_id():
            self._pid = process_id()
            self._ended, self._counting = CallCounts(self._stage), {}
        over = [counts for counts, may_change in self._counting.items() if not may_change()]
        if over:
            for counts in over:
                del self._counting[counts]
            self._ended = summed([self._ended, *over], self._stage)


def _is_open(loop: asyncio.AbstractEventLoop) -> Callable[[], bool]:
    """Return a function that returns whether ``loop`` is open, and does not keep ``loop`` alive."""
    loop_of = weakref.ref(loop)

    def is_open() -> bool:
        found = loop_of()
        return found is not None and not found.is_closed()

    return is_open
