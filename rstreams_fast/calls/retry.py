"""``Retry``: when a failed call is repeated. ``RetryAfter``: the service asks for a later call."""

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
"""The default of ``Policy(patience)``, and the maximum time for which a ``RetryAfter`` stops the
calls under a limit, in seconds."""

HOPELESS: Final = (
    *(TypeError, AttributeError, NameError, ImportError, SyntaxError, NotImplementedError),
    *(RecursionError, pickle.PickleError),
)
"""Errors in the program itself. By default they are not retried, because the next attempt would
raise the same error."""


class RetryAfter(Exception):
    """A user's function raises this error when the service asks for no calls for ``seconds``.

    The call waits and is repeated, even without ``retry``. This uses up neither retries nor the
    retry budget, and a ``circuit`` counts no failure. With a ``limit`` all calls under the limit
    wait. With ``batch`` the function may also return a ``RetryAfter`` as the result of one key in
    the list: then the row of this key waits, and joins a later call.

    All these waits of a call together take at most the ``patience`` of its policy, by default 300
    seconds. After that the call fails with this exception. A ``deadline`` bounds the waits, too. A
    ``RetryAfter`` stops the calls under a limit for at most ``patience`` seconds, and never for
    more than 300. If the patience is 0, the maximum is 300 seconds. The maximum protects later jobs
    from a timestamp, such as 1.9e9, that was passed instead of a delay.

    Args:
        seconds: A number, a ``timedelta``, or the text of a ``Retry-After`` header: a number or an
            HTTP date. A negative number and a past date mean 0. ``None``: the service gave no time.
            After 0 and ``None`` the call waits for 10 ms. Each further wait of the call is twice as
            long, up to one second.
        *args: More arguments of the exception; the text of the exception shows them.

    Raises:
        TypeError: ``seconds`` has another type.
        ValueError: ``seconds`` is not finite, or is a text in another format.
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
    """Convert the argument of ``RetryAfter`` to a number of seconds, 0 or more."""
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
    except (TypeError, ValueError, OverflowError):  # OverflowError: the date has a huge number
        raise ValueError(
            f"RetryAfter(seconds) must be a number or an HTTP date, got {text!r}"
        ) from None
    # For the zone "-0000", which means UTC, parsedate_to_datetime returns a time without tzinfo.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return moment.timestamp() - time.time()


@dataclass(frozen=True)
class Retry:
    """How often and when a failed call is repeated.

    Before retry *n* a call waits ``backoff * factor**(n - 1)`` seconds, never more than
    ``max_backoff``. A call that waits for its next attempt still counts as running. All numbers
    must be finite.

    Args:
        times: The maximum number of retries, as in ``Stream.retry(times)``. ``Retry(3)`` makes up
            to three further attempts after the first attempt, so at most four attempts.
        backoff: Seconds before the first retry.
        factor: The ratio of each wait to the previous wait, 1 or more.
        max_backoff: The maximum wait before a retry, in seconds.
        jitter: The maximum fraction, from 0 to 1, by which each wait is shortened at random. This
            keeps many callers from retrying at the same moment. With 1 ("full jitter") a wait is
            any time up to its full length.
        on: The exception types that are retried. A time-out is a ``TimeoutError``. Default: every
            ``Exception``, except two kinds. The first kind is an error of the program, since the
            next attempt would fail in the same way: ``TypeError``, ``AttributeError``,
            ``NameError``, ``ImportError``, ``SyntaxError``, ``NotImplementedError``,
            ``RecursionError`` and ``pickle.PickleError``. The second kind is an exception whose
            attribute ``is_hopeless`` is true, such as an ``HttpError`` with the status 404. A
            ``ValueError`` or ``KeyError`` is retried: a truncated answer raises these errors, too.
        budget: The maximum number of retries, as a fraction of the calls, such as 0.1. So retries
            do not multiply the calls of a broken service. In each worker process all stages with
            the same ``Retry`` object share the budget. The first ten retries are free. Default: no
            bound.

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
    """Return whether ``error`` is an exception that ``retry`` retries."""
    if retry.on is not None:
        return isinstance(error, retry.on)
    # Look for ``is_hopeless`` in the class: an instance's __getattr__ may accept any name.
    has_word = hasattr(type(error), "is_hopeless")
    return not isinstance(error, HOPELESS) and not (has_word and error.is_hopeless is True)  # type: ignore[attr-defined]
