"""What a service may be given by all stages of a name together: ``limit=rs.Limit(...)``."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import math
import time
from dataclasses import dataclass
from typing import Any, Final, SupportsFloat

from rstreams_fast._checks import check_choice
from rstreams_fast.spark.leases import Address, serve

__all__ = ["PATIENCE_SECONDS", "Limit", "RetryAfter"]

SCOPES: Final = ("executor", "job")

PATIENCE_SECONDS: Final = 300.0
"""How long a call obeys ``RetryAfter`` in all by default, and a limit obeys one at most."""


class RetryAfter(Exception):
    """A user's function raises it: the service asks for no more calls for so many ``seconds``.

    The call waits, and is made again. It needs no ``retry`` for that, and uses up none of its
    attempts and nothing of its budget; a ``circuit`` does not count it as a failure. With a
    ``limit`` all calls under it wait, not just this one. With ``batch`` it may also be the result
    of one key in the list: that row waits, and is called again with others.

    A call waits for 300 seconds in all, or for ``Retry(patience=...)``; then this exception is its
    failure. A ``deadline`` bounds the waits, too. One wait never holds a limit back for more than
    300 seconds: a moment that is taken for a delay, such as 1.9e9, stops no later job.

    Args:
        seconds: A number, a ``timedelta``, or the text of a ``Retry-After`` header: a number or an
            HTTP date. A negative number and a date that has passed mean 0. ``None``: the service
            did not say. After 0 and ``None`` the call waits for 10 ms, then twice as long each
            time, up to a second.
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
    except (OverflowError, TypeError, ValueError):  # of an array, a huge int, a signalling NaN
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"RetryAfter(seconds) must be finite, got {value!r}")
    return max(0.0, seconds)


def _seconds_until(text: str) -> float:
    """Return the seconds until an HTTP date."""
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        raise ValueError(
            f"RetryAfter(seconds) must be a number or an HTTP date, got {text!r}"
        ) from None
    if moment.tzinfo is None:  # "-0000"
        moment = moment.replace(tzinfo=dt.UTC)
    return moment.timestamp() - time.time()


@dataclass(frozen=True)
class Limit:
    """The most calls at once, and the most calls a second, of all stages with this ``name``.

    A call waits for its permit before its ``timeout`` begins, and holds none while it waits for its
    next attempt. Immutable; it may be given to any number of stages.

    Args:
        name: Stages with the same name share the limit. Its numbers must be the same for all stages
            at work: a stage with other numbers fails after 2 seconds. When those stages have ended,
            it obeys its own numbers at once.
        concurrency: Calls at once. Default: no bound but those of the stages.
        rate: Calls a second, evenly spaced. Default: no bound.
        burst: Calls that may follow each other at once after a pause.
        scope: ``"executor"``: all Python workers on a host that have the same temporary directory
            and user share it, of all jobs; the permits are locks of a file. ``"job"``: all workers
            of the job share it; the driver's process serves the permits, with Spark Connect that of
            the client, at an address that the executors must reach; the task fails where they
            cannot. The permits of a worker that is killed come back after 50 ms, when the kernel
            has ended its calls, too; after 1 s if the network ended its connection. A worker whose
            connection breaks connects again, for three minutes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or the limit bounds nothing.
    """

    name: str
    concurrency: int | None = None
    rate: float | None = None
    burst: int = 1
    scope: str = "executor"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Limit(name) must be a str, got {type(self.name).__name__}")
        if not self.name:
            raise ValueError("Limit(name) is empty")
        for word in ("concurrency", "burst"):
            value = getattr(self, word)
            if value is None and word == "concurrency":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Limit({word}) must be an int, got {type(value).__name__}")
            if not 1 <= value <= 1 << 20:
                raise ValueError(f"Limit({word}) must be from 1 to {1 << 20}, got {value}")
        if self.rate is not None:
            if isinstance(self.rate, bool) or not isinstance(self.rate, int | float):
                raise TypeError(f"Limit(rate) must be a number, got {type(self.rate).__name__}")
            if not (self.rate > 0 and math.isfinite(self.rate)):
                raise ValueError(f"Limit(rate) must be finite and > 0, got {self.rate}")
        elif self.concurrency is None:
            raise ValueError(f"Limit({self.name!r}) bounds nothing: give concurrency or rate")
        check_choice("Limit(scope)", self.scope, SCOPES)

    def describe(self) -> str:
        """Return a text for people: how many calls the service sees at most."""
        parts = []
        if self.concurrency is not None:
            parts.append(f"at most {self.concurrency} calls at once")
        if self.rate is not None:
            parts.append(f"{self.rate:g} a second, {self.burst} of them at once")
        where = "the whole job" if self.scope == "job" else "each executor's host"
        return f"limit {self.name!r}: {', '.join(parts)}, by {where}"

    def __getstate__(self) -> dict[str, Any]:
        """Take the driver's address along: this is how it gets to a worker."""
        if self.scope == "job" and "address" not in self.__dict__:
            address = serve(self.name, self.concurrency, self.rate, self.burst)
            return {**self.__dict__, "address": address}
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def served_at(self) -> Address:
        """Where the driver serves the permits of a job's limit."""
        with contextlib.suppress(KeyError):
            address: Address = self.__dict__["address"]
            return address
        return serve(self.name, self.concurrency, self.rate, self.burst)
