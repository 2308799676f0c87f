"""``BatchedCalls``: gathers the keys of rows in lists, and gives each row its own result."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from typing import Any

from rstreams_fast.calls.attempts import CallAttempts, RetryRules
from rstreams_fast.calls.counts import CallCounts, Waits, added
from rstreams_fast.calls.guarded import DEADLINE_SCOPE
from rstreams_fast.calls.limits.limit import Limit, weights_of_key
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.settings import CallSettings

__all__ = ["BatchedCalls"]


class BatchedCalls:
    """Gathers the keys of rows, and calls ``fn`` with lists of at most ``Batching.rows`` keys.

    A call starts when its list is full, when the first key has waited ``linger`` seconds, or when
    no more keys come (``flush``). At most ``concurrency`` calls run; ``on_idle`` is called when the
    last running call has ended. If the result of a row is a ``RetryAfter``, or another exception
    that the policy retries, the row waits and joins a later list. Only the event loop's thread may
    use the object.
    """

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        settings: CallSettings,
        loop: asyncio.AbstractEventLoop,
        on_idle: Callable[[], None],
        counts: CallCounts,
    ) -> None:
        assert settings.batch is not None  # noqa: S101 - for mypy
        self._fn = fn
        self._most_rows = settings.batch.rows
        self._linger = settings.batch.linger
        self._concurrency = settings.concurrency
        self._loop = loop
        self._on_idle = on_idle
        self._counts = counts
        self._rules = RetryRules(settings.policy, settings.label, counts)
        self._deadline = settings.policy.deadline
        self._as_outcomes = settings.as_outcomes
        self._limit = settings.policy.limit
        self._cancelled = False
        self._repeated: dict[asyncio.Future[Any], _RepeatedRow] = {}
        """The rows that were called again or will be called again, and have no result yet."""
        self._pausing: set[asyncio.Future[Any]] = set()
        """The futures of the rows in ``_repeated`` that pause before another attempt."""
        self._flushed = False
        """Whether ``flush`` was called, because no new rows will come."""
        self._waiting: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._most_size, self._size_of = settings.batch.most, settings.batch.size_of
        self._sizes: deque[float] | None = None if self._most_size == math.inf else deque()
        """The size of each key of ``_waiting``; ``None`` without a bound on sizes."""
        self._total_size = 0.0
        self._due = 0
        """How many rows of ``_waiting`` must not wait longer, even if their list is not full."""
        self._timer: asyncio.TimerHandle | None = None
        self.calls = 0
        """The number of running calls."""
        self._context: Context | None = None
        """The context in which the first row was added. Each call runs in a copy of the context, so
        that calls do not share context variables."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.max_running = 0

    def __call__(self, *key: Any) -> asyncio.Future[Any]:
        """Add a row with this key to the waiting rows; return a future for the row's result."""
        future = self._loop.create_future()
        if self._context is None:
            self._context = copy_context()
        self._enqueue(future, key if len(key) > 1 else key[0])
        return future

    def _enqueue(self, future: asyncio.Future[Any], key: Any) -> None:
        if self._sizes is not None:
            self._sizes.append(size := self._size_of(key if type(key) is tuple else (key,)))
            self._total_size += size
        self._waiting.append((future, key))
        if self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._expire)
        if len(self._waiting) >= self._most_rows or self._total_size >= self._most_size:
            self._start()

    def _next_rows(self) -> list[tuple[asyncio.Future[Any], Any]]:
        """Remove the rows for the next call from ``_waiting``, and return them."""
        count, left = min(self._most_rows, len(self._waiting)), self._most_size
        if self._sizes is None:
            return [self._waiting.popleft() for _ in range(count)]
        rows: list[tuple[asyncio.Future[Any], Any]] = []
        while len(rows) < count and (not rows or self._sizes[0] <= left):
            size = self._sizes.popleft()
            self._total_size -= size
            left -= size
            rows.append(self._waiting.popleft())
        return rows

    def flush(self) -> None:
        """Start calls for all waiting rows, because no new rows will come.

        If some rows pause before another attempt, the waiting rows wait for these rows, but at most
        for ``linger`` seconds. The calls start when the last pause ends.
        """
        self._flushed = True
        self._start_last()

    def _start_last(self) -> None:
        if self._flushed and self._waiting and not self._pausing:
            self._due = len(self._waiting)
            self._start()

    @property
    def running(self) -> int:
        """The number of running tasks. A task makes one call, and then sets the rows' results."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Start no more calls, and cancel the running calls."""
        self._cancelled = True
        self._waiting.clear()
        self._due, self._total_size = 0, 0.0
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _expire(self) -> None:
        self._timer = None
        self._due = len(self._waiting)
        self._start()

    def _start(self) -> None:
        while self.calls < self._concurrency and (
            self._due > 0
            or len(self._waiting) >= self._most_rows
            or self._total_size >= self._most_size
        ):
            rows = self._next_rows()
            self._due -= len(rows)
            if self._repeated:  # a row whose future is done has exceeded its deadline: drop the row
                rows = [row for row in rows if not row[0].done()]
                if not rows:
                    continue
            self.calls += 1
            self.max_running = max(self.max_running, self.calls)
            context = copy_context() if self._context is None else self._context.copy()
            task = self._loop.create_task(self._call(rows), context=context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_task_done, rows), context=context)
        if self._timer is None and len(self._waiting) > max(self._due, 0):
            self._timer = self._loop.call_later(self._linger, self._expire)

    def _on_task_done(
        self, rows: list[tuple[asyncio.Future[Any], Any]], task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _fail(rows, failure)  # the task failed before it called ``fn``: no row has a result
        if not self._tasks:
            self._on_idle()

    async def _call(self, rows: list[tuple[asyncio.Future[Any], Any]]) -> None:
        begun = monotonic()
        try:
            try:
                called = await self._fn([key for _, key in rows])
            finally:
                self.calls -= 1
                self._start()  # start the next calls first: setting the results takes time
            results = _results_of_rows(called, rows, self._limit)
        except asyncio.CancelledError:
            for future, _ in rows:
                future.cancel()
            raise
        except BaseException as error:
            _fail(rows, error)
            if not isinstance(error, Exception):
                raise
            return
        all_failed = isinstance(called, Outcome) and called.error is not None
        if not all_failed and self._rules.budget is not None:
            self._rules.earn(sum(row[0] not in self._repeated for row in rows))
        for (future, key), result in zip(rows, results, strict=True):
            if future.done():
                continue
            failure = result.error if isinstance(result, Outcome) else result
            if (
                isinstance(failure, Exception)
                and not all_failed
                and self._schedule_attempt(future, key, result, failure, begun)
            ):
                continue
            if self._repeated:
                result = self._with_earlier_attempts(future, result)
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    # -- further attempts of single rows -----------------------------------------------------------

    def _schedule_attempt(
        self, future: asyncio.Future[Any], key: Any, result: Any, error: Exception, begun: float
    ) -> bool:
        """Schedule another attempt for a failed row; return whether another attempt is allowed."""
        row = self._repeated.get(future)
        if row is None:
            row = self._repeated[future] = _RepeatedRow(CallAttempts(self._rules, 0), begun)
            future.add_done_callback(self._forget)
            if self._deadline is not None:
                left = begun + self._deadline - monotonic()
                row.deadline = self._loop.call_later(left, self._out_of_time, future)
        row.error = error
        pause = row.attempts.pause_after(error)
        if pause is None:
            return False
        if isinstance(result, Outcome):
            row.earlier_attempts += result.attempts
            row.earlier_usage = added([row.earlier_usage, result.usage or {}])
        else:
            row.earlier_attempts += 1
        waits = self._counts.waits_after(error)
        waits.__enter__()
        self._pausing.add(future)
        self._loop.call_later(pause, self._enqueue_again, future, key, waits)
        return True

    def _enqueue_again(self, future: asyncio.Future[Any], key: Any, waits: Waits) -> None:
        waits.__exit__()
        self._pausing.discard(future)
        if not (self._cancelled or future.done()):
            self._enqueue(future, key)
            self._start_last()

    def _with_earlier_attempts(self, future: asyncio.Future[Any], result: Any) -> Any:
        """Add a row's earlier attempts to its ``Outcome``, or a note about them to its error."""
        row = self._repeated.get(future)
        if row is None:
            return result
        if isinstance(result, Outcome):
            made, seconds = row.earlier_attempts + result.attempts, monotonic() - row.begun
            usage = added([row.earlier_usage, result.usage or {}])
            return result._replace(attempts=made, seconds=seconds, usage=usage)
        if isinstance(result, Exception):
            row.attempts.explain(result)
        return result

    def _out_of_time(self, future: asyncio.Future[Any]) -> None:
        if self._cancelled or future.done():
            return
        row = self._repeated[future]
        self._counts.count_timeout()
        late = TimeoutError(f"no answer within {self._deadline} s{DEADLINE_SCOPE}")
        late.__cause__ = row.error
        if self._as_outcomes:
            seconds = monotonic() - row.begun
            future.set_result(Outcome(None, late, row.earlier_attempts, seconds, row.earlier_usage))
        else:
            future.set_exception(late)

    def _forget(self, future: asyncio.Future[Any]) -> None:
        row = self._repeated.pop(future, None)
        if row is not None and row.deadline is not None:
            row.deadline.cancel()
        if future in self._pausing:  # the row has exceeded its deadline: do not wait for the row
            self._pausing.discard(future)
            self._start_last()


class _RepeatedRow:
    """The attempts, units and deadline of a row that needs more than one call."""

    __slots__ = ("attempts", "begun", "deadline", "earlier_attempts", "earlier_usage", "error")

    def __init__(self, attempts: CallAttempts, begun: float) -> None:
        self.attempts = attempts
        self.begun = begun
        self.earlier_attempts = 0
        """The number of attempts before the latest call."""
        self.earlier_usage: dict[str, float] = {}
        """The units that the attempts before the latest call spent."""
        self.deadline: asyncio.TimerHandle | None = None
        self.error: Exception | None = None


def _fail(rows: list[tuple[asyncio.Future[Any], Any]], error: BaseException) -> None:
    for future, _ in rows:
        if not future.done():
            future.set_exception(error)


def _results_of_rows(
    results: Any, rows: list[tuple[asyncio.Future[Any], Any]], limit: Limit | None
) -> list[Any]:
    """Check ``results``, the return value of a call; return a list with the result of each row."""
    count = len(rows)
    outcome = results if isinstance(results, Outcome) else None
    shares: list[Any] = [None] * count
    if outcome is not None:
        if outcome.usage:
            shares = _shares(outcome.usage, [key for _, key in rows], limit)
        if outcome.error is not None:
            return [outcome._replace(usage=share) for share in shares]
        results = outcome.value
    # Refuse a set, which has no order, and a data frame, which iterates over its column names.
    unfit = isinstance(results, str | bytes | Mapping | set | frozenset) or hasattr(
        results, "columns"
    )
    if unfit or not hasattr(results, "__len__"):
        raise TypeError(
            f"fn was called with a list of {count} keys and must return as many results, in a "
            f"list; it returned {type(results).__name__}"
        )
    found = list(results)
    if len(found) != count:
        raise ValueError(f"fn was called with {count} keys and returned {len(found)} results")
    for at, result in enumerate(found):
        if isinstance(result, StopIteration):  # a future cannot carry a StopIteration
            found[at] = RuntimeError("fn returned a StopIteration for a key")
            found[at].__cause__ = result
    if outcome is None:
        return found
    return [
        outcome._replace(value=None, error=result, usage=share)
        if isinstance(result, BaseException)
        else outcome._replace(value=result, usage=share)
        for result, share in zip(found, shares, strict=True)
    ]


def _shares(
    usage: dict[str, float], keys: list[Any], limit: Limit | None
) -> list[dict[str, float]]:
    """Divide ``usage`` among the keys in proportion to their weights; equally without weights."""
    shares: list[dict[str, float]] = [{} for _ in keys]
    weights = [{} if limit is None else weights_of_key(limit, key) for key in keys]
    for unit, amount in usage.items():
        total = sum(weight.get(unit, 0.0) for weight in weights)
        for share, weight in zip(shares, weights, strict=True):
            share[unit] = amount * (weight.get(unit, 0.0) / total if total else 1 / len(keys))
    return shares
