"""Decides which failed calls are made again, and after how many seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.deadlines import cancellations, undo_group_cancellations
from rstreams_fast.calls.errors import (
    BudgetSpentError,
    CircuitOpenError,
    StageError,
    warn_once,
    with_note,
)
from rstreams_fast.calls.latest import LatestUsed
from rstreams_fast.calls.retry import Retry, RetryAfter, is_retryable
from rstreams_fast.calls.settings import PolicySettings
from rstreams_fast.calls.traces import current

__all__ = ["CallAttempts", "RetryRules", "longest_retry_after"]

INITIAL_TOKENS: Final = 10.0
"""Retries that a new budget allows, so that the very first failures can be retried."""

MOST_TOKENS: Final = 100.0
"""The most tokens of a budget: many successful calls must not allow a storm of retries later."""

LEAST_WAIT: Final = 0.01
"""Seconds that a call waits at least after its first ``RetryAfter``; doubled each time."""

MOST_LEAST_WAIT: Final = 1.0
"""The most seconds that the doubled wait reaches."""


def longest_retry_after(results: Any) -> RetryAfter | None:
    """Return the longest ``RetryAfter`` among the results of a list of keys, or ``None``."""
    if not isinstance(results, Iterable) or not hasattr(results, "__len__"):
        return None  # the results are no list: the caller raises an error for them
    throttled = [result for result in results if isinstance(result, RetryAfter)]
    return max(throttled, key=lambda error: error.seconds, default=None)


class _Budget:
    """A token bucket, like Finagle's ``RetryBudget``. A call adds a ``share`` of a token; a retry
    takes one token.

    Thread-safe: all stages of the process with the same ``Retry`` share it.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = INITIAL_TOKENS
        # Reentrant: a finalizer may make a call on the thread that holds the lock.
        self._lock = threading.RLock()

    def earn(self, calls: int) -> None:
        with self._lock:
            self._tokens = min(self._tokens + calls * self._share, MOST_TOKENS)

    def spend(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


_budgets: Final[LatestUsed[_Budget]] = LatestUsed()


class RetryRules:
    """The retry rules and the retry budget for the calls of a stage. Thread-safe."""

    def __init__(self, policy: PolicySettings, label: str, counts: CallCounts) -> None:
        """``label`` names the function in warnings. ``counts`` counts the further attempts."""
        self.retry = retry = policy.retry
        self.label = label
        self.counts = counts
        self.patience = policy.patience
        self.most_held = policy.most_held
        self.budget: _Budget | None = None
        """The budget of retries; ``None``: there is no bound on retries."""
        if retry is not None and retry.budget is not None:
            self.budget = _budgets.get(retry.id, partial(_Budget, retry.budget))

    def earn(self, calls: int = 1) -> None:
        """Add the share of ``calls`` new calls to the budget. Further attempts add nothing.

        With lists of keys each key counts as a call.
        """
        if self.budget is not None:
            self.budget.earn(calls)


class CallAttempts:
    """Counts the attempts of one call. The object is made when the first attempt fails."""

    __slots__ = ("_attempt", "_cancelled", "_least_wait", "_patience", "_reason", "count", "rules")

    def __init__(self, rules: RetryRules, cancelled: int | None) -> None:
        """``cancelled`` is the number of ``cancellations`` of the task before the call.

        ``None``: the call blocks a thread, and no task can be cancelled meanwhile.
        """
        self.rules = rules
        self._cancelled = cancelled
        self._attempt = 1  # the attempts so far, without those that raised RetryAfter
        self._patience = rules.patience
        self._least_wait = LEAST_WAIT
        self._reason = ""
        self.count = 1
        """The number of all attempts."""

    def pause_after(self, error: Exception) -> float | None:
        """Return the seconds until the next attempt; ``None`` if no attempt follows.

        No attempt follows if the task was cancelled during the call, even if the call then raised
        another error than ``CancelledError``.
        """
        counts, trace = self.rules.counts, current.get()
        if trace is not None and trace.counts is counts:
            trace.note_failed_attempt(error)
        else:
            trace = None  # an outer call is traced, not this one
        if self._cancelled is not None:
            undo_group_cancellations(error, self._cancelled)
            if cancellations() > self._cancelled:
                return None
        if isinstance(error, RetryAfter):
            pause = self._requested_pause(error)
        else:
            pause = self._retry_pause(error)
        if pause is not None:
            self.count += 1
            counts.count_again(error)
            if trace is not None:
                trace.note_wait("service" if isinstance(error, RetryAfter) else "retry", pause)
        elif isinstance(error, CircuitOpenError):
            counts.refused += 1
        return pause

    def explain(self, error: BaseException) -> None:
        """Add a note to ``error``, which the last attempt raised: why no attempt follows."""
        if self._reason:
            with_note(error, self._reason)

    def _requested_pause(self, error: RetryAfter) -> float | None:
        patience, label = self.rules.patience, self.rules.label
        if error.seconds > patience > 0:
            warn_once(
                label,
                "%s: RetryAfter(%g) asks for more than the patience of %g s: the call waits that "
                "long, and is made once more. Is it a moment, and not a delay?",
                label,
                error.seconds,
                patience,
            )
        if self._patience <= 0:
            self._reason = f"the call has waited for {patience:g} s, which is all of its patience"
            return None
        pause = min(max(error.seconds, self._least_wait), self._patience)
        self._patience -= pause
        self._least_wait = min(2 * self._least_wait, MOST_LEAST_WAIT)
        return pause

    def _retry_pause(self, error: Exception) -> float | None:
        retry, budget, attempt = self.rules.retry, self.rules.budget, self._attempt
        if retry is None:
            return None
        text = f"this was attempt {attempt} of {1 + retry.times}"
        if attempt > retry.times or not _is_retryable(error, retry):
            self._reason = "" if attempt == 1 else text
            return None
        if budget is not None and not budget.spend():
            self._reason = f"{text}: no more than {retry.budget} of the calls may be retries"
            return None
        self._attempt += 1
        return retry.delay(attempt)


def _is_retryable(error: Exception, retry: Retry) -> bool:
    if isinstance(error, BudgetSpentError | CircuitOpenError | StageError):
        return False
    return is_retryable(retry, error)
