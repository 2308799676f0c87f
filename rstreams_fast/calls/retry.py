"""When a call is made again: ``Retry`` after a failure, ``RetryAfter`` if the service asks."""

from __future__ import annotations

import datetime as dt
import email.utils
import math
import pickle
import random
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, SupportsFloat

from rstreams_fast.calls.functions import check_exceptions, check_positive_int

__all__ = ["PATIENCE_SECONDS", "Retry", "RetryAfter", "is_retryable"]

PATIENCE_SECONDS: Final = 300.0
"""The default of ``patience``, and the longest time for which the calls under a limit stop."""

HOPELESS: Final = (
    *(TypeError, AttributeError, NameError, ImportError, SyntaxError, NotImplementedError),
    *(RecursionError, pickle.PickleError),
)
"""Errors of the program itself: the next attempt would raise the same error."""


class RetryAfter(Exception):
    """A user's function raises this error when the service asks for no calls for ``seconds``.

    The call waits, and is made again, even without ``retry``. This uses up no attempts and no
    budget of retries, and a ``circuit`` does not count a failure. With a ``limit`` all calls under
    the limit wait. With ``batch`` a ``RetryAfter`` may also be the result of one key in the list:
    the row of this key waits, and joins a later call.

    All waits of a call together take at most the ``patience`` of its policy, by default 300
    seconds. After that the call fails with this exception. A ``deadline`` bounds the waits, too. No
    ``RetryAfter`` stops the calls under a limit for longer than the patience (300 seconds, if the
    patience is 0 or longer): a timestamp instead of a delay, such as 1.9e9, must not stop later
    jobs.

    Args:
        seconds: A number, a ``timedelta``, or the text of a ``Retry-After`` header: a number or an
            HTTP date. A negative number and a past date mean 0. ``None``: the service gave no time.
            After 0 and ``None`` the call waits for 10 ms, then twice as long each time, up to a
            second.
        *args: More arguments of the exception; its text shows them.

    Raises:
        TypeError: ``seconds`` has another type.
        ValueError: ``seconds`` is not finite, or is a text of another form.
    """

    def __init__(
        self, seconds: SupportsFloat | dt.timedelta | str | bytes | None = None, *args: object
    ) -> None:
        self.seconds = _seconds_of(seconds)
        super().__init__(self.seconds, *args)

    def __str__(self) -> str:
        said = ": ".join(map(str, self.args[1:]))
        return f"the service asks for no call for {self.seconds:g} s" + (said and f": {said}")


def _seconds_of(value: Any) -> float:
    """Return the delay that ``value`` means, in seconds."""
    seconds = value
    if value is None:
        return 0.0
    if isinstance(value, dt.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        try:
            seconds = float(text)
        except ValueError:
            seconds = _seconds_until(text)
    elif type(value).__name__ in ("bool", "bool_") or not hasattr(type(value), "__float__"):
        raise TypeError(
            "RetryAfter(seconds) must be a number, a timedelta or the text of a header, "
            f"got {type(value).__name__}"
        )
    try:
        seconds = float(seconds)
    except (OverflowError, TypeError, ValueError):
        # float() fails for an array, a huge int or a signalling NaN.
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"RetryAfter(seconds) must be finite, got {value!r}")
    return max(0.0, seconds)


def _seconds_until(text: str) -> float:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):  # OverflowError: a number is too large
        raise ValueError(
            f"RetryAfter(seconds) must be a number or an HTTP date, got {text!r}"
        ) from None
    # parsedate_to_datetime returns no tzinfo for "-0000", which means UTC.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return moment.timestamp() - time.time()


@dataclass(frozen=True)
class Retry:
    """How often and when a failed call is made again.

    Before retry *n* a call waits ``backoff * factor**(n - 1)`` seconds, never more than
    ``max_backoff``. A call that waits for its next attempt still counts as running. All numbers are
    finite.

    Args:
        times: The most retries, as in ``Stream.retry(times)``: ``Retry(3)`` makes up to three
            further attempts after the first attempt, so four calls at most.
        backoff: Seconds before the first retry.
        factor: The ratio of each wait to the previous wait, 1 or more.
        max_backoff: The most seconds of a wait.
        jitter: The largest share of a wait, from 0 to 1, that is left out at random. This keeps
            many callers from retrying at the same moment. With 1 ("full jitter") a wait is any time
            up to its full length.
        on: The exception types that are worth another attempt. A time-out is a ``TimeoutError``.
            Default: every ``Exception``, with two exceptions. No retry follows an error of the
            program, since the next attempt would fail in the same way: ``TypeError``,
            ``AttributeError``, ``NameError``, ``ImportError``, ``SyntaxError``,
            ``NotImplementedError``, ``RecursionError`` and ``pickle.PickleError``. No retry follows
            an exception whose attribute ``is_hopeless`` is true, such as an ``HttpError`` with the
            status 404. Calls are repeated after a ``ValueError`` or ``KeyError``: a truncated
            answer raises these errors, too.
        budget: The largest share of the calls that may be retries, such as 0.1. It applies in each
            worker process to all stages with the same object; the first ten retries are free. So
            retries do not multiply the calls of a broken service. Default: no bound.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    times: int
    backoff: float = 0.1
    factor: float = 2.0
    max_backoff: float = 30.0
    jitter: float = 1.0
    on: tuple[type[Exception], ...] | None = None
    budget: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive_int("Retry(times)", self.times)
        numbers = {"backoff": 0, "factor": 1, "max_backoff": 0, "jitter": 0}
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
        if self.on is not None:
            object.__setattr__(self, "on", check_exceptions("Retry(on)", self.on))

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


def is_retryable(retry: Retry, error: Exception) -> bool:
    """Whether ``retry`` makes another attempt after ``error``."""
    if retry.on is not None:
        return isinstance(error, retry.on)
    # Ask the class, not the instance: an instance may answer any name (__getattr__).
    has_word = hasattr(type(error), "is_hopeless")
    return not isinstance(error, HOPELESS) and not (has_word and error.is_hopeless is True)  # type: ignore[attr-defined]
