"""Decides whether a failed call is repeated, and after how many seconds."""

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
"""A new retry budget has this number of tokens, so that even the first calls can be retried."""

MOST_TOKENS: Final = 100.0
"""The maximum number of tokens in a retry budget. Without a maximum, a long time of successful
calls would later allow a storm of retries."""

LEAST_WAIT: Final = 0.01
"""The minimum wait of a call after its first ``RetryAfter``, in seconds. Each further
``RetryAfter`` of the call doubles the minimum."""

MOST_LEAST_WAIT: Final = 1.0
"""The doubled minimum wait does not exceed this number of seconds."""


def longest_retry_after(results: Any) -> RetryAfter | None:
    """Return the longest ``RetryAfter`` in the ``results`` for a list of keys, or ``None``."""
    if not isinstance(results, Iterable) or not hasattr(results, "__len__"):
        return None  # ``fn`` returned no list: ``BatchedCalls`` will raise a TypeError
    throttled = [result for result in results if isinstance(result, RetryAfter)]
    return max(throttled, key=lambda error: error.seconds, default=None)


class _Budget:
    """The retry budget of a ``Retry``: a token bucket, like Finagle's ``RetryBudget``.

    Each call adds a fraction of a token (``share``), and each retry takes one token. All stages of
    the process with the same ``Retry`` share the budget. Thread-safe.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = INITIAL_TOKENS
        # Reentrant: a finalizer may interrupt the thread that holds the lock, and take it again.
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
    """The rules of a policy for further attempts, and the retry budget. Thread-safe."""

    def __init__(self, policy: PolicySettings, label: str, counts: CallCounts) -> None:
        """``label`` is the function's name in warnings. ``counts`` counts the further attempts."""
        self.retry = retry = policy.retry
        self.label = label
        self.counts = counts
        self.patience = policy.patience
        self.most_held = policy.most_held
        self.budget: _Budget | None = None
        """The retry budget; ``None``: only ``Retry(times)`` bounds the retries."""
        if retry is not None and retry.budget is not None:
            self.budget = _budgets.get(retry.id, partial(_Budget, retry.budget))

    def earn(self, calls: int = 1) -> None:
        """Add the tokens for ``calls`` new calls to the retry budget.

        Further attempts add no tokens. If a call has a list of keys, each key counts as a call.
        """
        if self.budget is not None:
            self.budget.earn(calls)


class CallAttempts:
    """Counts the attempts of one failed call, and decides whether another attempt follows."""

    __slots__ = ("_attempt", "_cancelled", "_least_wait", "_patience", "_reason", "count", "rules")

    def __init__(self, rules: RetryRules, cancelled: int | None) -> None:
        """``cancelled``: ``cancellations()`` before the call; ``None`` without an event loop."""
        self.rules = rules
        self._cancelled = cancelled
        self._attempt = 1  # the number of attempts so far, except attempts that raised RetryAfter
        self._patience = rules.patience
        self._least_wait = LEAST_WAIT
        self._reason = ""
        self.count = 1
        """The number of attempts so far, including attempts that raised ``RetryAfter``."""

    def pause_after(self, error: Exception) -> float | None:
        """Return the seconds to wait before the next attempt; ``None`` if no attempt follows.

        If the task was cancelled during the call, no attempt follows, even if the call raised
        another ``error`` instead of ``CancelledError``.
        """
        counts, trace = self.rules.counts, current.get()
        if trace is not None and trace.counts is counts:
            trace.note_failed_attempt(error)
        else:
            trace = None  # this is the trace of an outer call, whose function made this call
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
        """Add a note to ``error``, the error of the last attempt: why no other attempt follows."""
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
