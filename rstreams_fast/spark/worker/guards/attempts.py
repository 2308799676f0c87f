"""Which failed calls are made again, and when."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.limits import PATIENCE_SECONDS, RetryAfter
from rstreams_fast.spark.options import CircuitOpenError, Retry
from rstreams_fast.spark.worker.outcomes import StageError

if TYPE_CHECKING:
    from rstreams_fast.spark.worker.counters import Counters

__all__ = ["OUT_OF_TIME", "Attempts", "Tries", "as_judged", "noted", "throttled_in"]

OUT_OF_TIME: Final = "out of time"
"""The message of a cancellation by a deadline."""

RESERVE: Final = 10.0
"""Retries that a budget allows before any call was made, so that the first failures have some."""

MOST_TOKENS: Final = 100.0
"""What a budget keeps at most: a long good time does not pay for a storm of retries."""

LEAST_WAIT: Final = 0.01
"""Seconds that a call waits at least after its first ``RetryAfter``; then twice as long each time.
"""

MOST_LEAST_WAIT: Final = 1.0
"""What that doubling never exceeds."""

_budgets: Final[dict[str, _Budget]] = {}

_warned: Final[set[str]] = set()
"""The functions whose ``RetryAfter`` asked for more than a patience."""


def noted(error: BaseException, text: str) -> BaseException:
    """Return ``error`` with the note ``text``.

    One that takes no note, such as a frozen dataclass, is the cause of one that says so much.
    """
    text = f"rstreams_fast: {text}"
    if text in getattr(error, "__notes__", ()):  # one error may be that of many keys
        return error
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


def throttled_in(results: Any) -> RetryAfter | None:
    """Return the ``RetryAfter`` of most seconds among the results of a list of keys."""
    if not isinstance(results, Iterable) or not hasattr(results, "__len__"):
        return None  # it is refused
    asking = [result for result in results if isinstance(result, RetryAfter)]
    return max(asking, key=lambda error: error.seconds, default=None)


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

    def __init__(self, retry: Retry | None, label: str, counters: Counters | None) -> None:
        """``label`` names the function in a warning; ``counters`` count what is made again."""
        self.retry = retry
        self.label = label
        self.counters = counters
        self.patience = PATIENCE_SECONDS if retry is None else retry.patience
        self.budget = None
        if retry is not None and retry.budget is not None:
            self.budget = _budgets.setdefault(retry.id, _Budget(retry.budget))

    def begin(self) -> None:
        """Count a call, not its further attempts."""
        if self.budget is not None:
            self.budget.earn()


class Tries:
    """The attempts of one call, from its first failure on."""

    __slots__ = ("_attempt", "_attempts", "_least_wait", "_patience", "_why", "made")

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._attempt = 1  # those that raised RetryAfter are none
        self._patience = attempts.patience
        self._least_wait = LEAST_WAIT
        self._why = ""
        self.made = 1
        """How many attempts there are, of all kinds."""

    def pause_after(self, error: Exception) -> float | None:
        """Return the seconds to wait before the next attempt; ``None``: that was the last.

        A call that was cancelled, and made another error of it, is not made again.
        """
        if _is_cancelled():
            return None
        pause = self._obey(error) if isinstance(error, RetryAfter) else self._back_off(error)
        if pause is not None:
            self.made += 1
            if (counters := self._attempts.counters) is not None:
                counters.count_again(error)
        return pause

    def wrapper_of(self, error: Exception) -> BaseException | None:
        """Note at the ``error`` of the last attempt why it is that; return one that wraps it, if it
        takes no note.
        """
        told = noted(error, self._why) if self._why else error
        return None if told is error else told

    def _obey(self, error: RetryAfter) -> float | None:
        whole, label = self._attempts.patience, self._attempts.label
        if error.seconds > whole > 0 and label not in _warned:
            _warned.add(label)
            logging.getLogger("rstreams_fast").warning(
                "%s: RetryAfter(%g) asks for more than the patience of %g s: the call waits that "
                "long, and is made once more. Is it a moment, and not a delay?",
                label,
                error.seconds,
                whole,
            )
        if self._patience <= 0:
            self._why = f"the call has waited for {whole:g} s, which is all of its patience"
            return None
        pause = min(max(error.seconds, self._least_wait), self._patience)
        self._patience -= pause
        self._least_wait = min(2 * self._least_wait, MOST_LEAST_WAIT)
        return pause

    def _back_off(self, error: Exception) -> float | None:
        retry, budget, attempt = self._attempts.retry, self._attempts.budget, self._attempt
        if retry is None:
            return None
        text = f"this was attempt {attempt} of {1 + retry.times}"
        if attempt > retry.times or not _is_worth_it(error, retry):
            self._why = "" if attempt == 1 else text
            return None
        if budget is not None and not budget.spend():
            self._why = f"{text}: no more than {retry.budget} of the calls may be retries"
            return None
        self._attempt += 1
        return retry.delay(attempt)


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


def _is_worth_it(error: Exception, retry: Retry) -> bool:
    return isinstance(error, retry.on) and not isinstance(error, CircuitOpenError | StageError)
