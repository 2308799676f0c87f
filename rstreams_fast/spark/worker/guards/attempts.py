"""Which failed calls are made again, and when."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from rstreams_fast.spark.limits import RetryAfter
from rstreams_fast.spark.options import CircuitOpenError, Retry
from rstreams_fast.spark.worker.outcomes import StageError

__all__ = ["OUT_OF_TIME", "Attempts", "as_judged", "noted"]

OUT_OF_TIME: Final = "out of time"
"""The message of a cancellation by a deadline."""

RESERVE: Final = 10.0
"""Retries that a budget allows before any call was made, so that the first failures have some."""

MOST_TOKENS: Final = 100.0
"""What a budget keeps at most: a long good time does not pay for a storm of retries."""

_budgets: Final[dict[str, _Budget]] = {}


def noted(error: BaseException, text: str) -> BaseException:
    """Return ``error`` with the note ``text``.

    One that takes no note, such as a frozen dataclass, is the cause of one that says so much.
    """
    text = f"rstreams_fast: {text}"
    try:
        error.add_note(text)
    except Exception:
        wrapper = RuntimeError(f"{text}: {type(error).__name__}")
        wrapper.__cause__ = error
        return wrapper
    return error


def as_judged(error: BaseException) -> BaseException:
    """Return ``error`` as it speaks of the service: one that a deadline cut short took too long."""
    cut_short = isinstance(error, asyncio.CancelledError) and error.args == (OUT_OF_TIME,)
    return TimeoutError(OUT_OF_TIME) if cut_short else error


class _Budget:
    """A token bucket as Finagle's ``RetryBudget``: a call pays in a share, a retry costs a token.

    Any thread may use it: all stages of the process that have the same ``Retry`` share it.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = RESERVE
        self._lock = threading.Lock()

    def earn(self) -> None:
        with self._lock:
            self._tokens = min(self._tokens + self._share, MOST_TOKENS)

    def spend(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class Attempts:
    """What a ``Retry`` says of the calls of a stage. Any thread may use it."""

    def __init__(self, retry: Retry | None) -> None:
        self._retry = retry
        self._budget = None
        if retry is not None and retry.budget is not None:
            self._budget = _budgets.setdefault(retry.id, _Budget(retry.budget))

    def begin(self) -> None:
        """Count a call, not its further attempts."""
        if self._budget is not None:
            self._budget.earn()

    def pause(self, attempt: int, error: Exception) -> float | None:
        """Return the seconds to wait after a failed attempt, from 1; ``None``: it was the last."""
        retry = self._retry
        if retry is None or attempt > retry.times or not _is_worth_it(error, retry):
            return None
        if self._budget is not None and not self._budget.spend():
            return None
        asked = error.seconds if isinstance(error, RetryAfter) else 0.0
        return max(asked, retry.delay(attempt))

    def told(self, attempt: int, error: Exception) -> BaseException:
        """Return the error of the last attempt, with a note if there were or could be others."""
        retry = self._retry
        if retry is None:
            return error
        text = f"this was attempt {attempt} of {1 + retry.times}"
        if attempt <= retry.times and _is_worth_it(error, retry):
            return noted(error, f"{text}: no more than {retry.budget} of the calls may be retries")
        return error if attempt == 1 else noted(error, text)


def _is_worth_it(error: Exception, retry: Retry) -> bool:
    if isinstance(error, CircuitOpenError | StageError):
        return False
    return isinstance(error, (RetryAfter, *retry.on))
