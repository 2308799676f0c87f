"""``retry``: subscribes again to a publisher that has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import (
    add_note,
    check_count,
    check_plain,
    check_seconds,
    describe_callable,
)
from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.errors import AlreadySubscribedError, ShutDownError, WorkDroppedError
from rstreams_fast.runtime.at_exit import is_exiting
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.arbiter import ArbiterBoundary, SubscriptionArbiter
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.fan_in import Ended

__all__ = ["RetryBoundary"]


class RetryBoundary(ArbiterBoundary):
    def __init__(
        self,
        times: int,
        when: Callable[[Exception], object] | None,
        delay: float | Callable[[int], float] | None,
        timer: Timer | None,
    ) -> None:
        self.times = check_count("retry(times): times", times)
        if isinstance(when, type) and issubclass(when, BaseException):
            # Refuse an exception class as ``when``. A call of the class returns an exception
            # object, which counts as true. So the stream would be retried after every error.
            name = when.__name__
            raise TypeError(
                f"retry(when): when must be a function of the error, got the class {name}; "
                f"give lambda error: isinstance(error, {name})"
            )
        self.when: Callable[[Exception], object] | None = when
        if delay is None:
            delay = 0.0
        if callable(delay):
            check_plain("retry(delay): delay", delay)
            self.delay: float | Callable[[int], float] = delay
        else:
            self.delay = check_seconds("retry(delay): delay", delay)
        self.timer = check_timer(timer)

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:
        arbiter.chooser = _Attempts(arbiter, upstream, self)

    def describe(self) -> str:
        said = ["for ever" if self.times >= UNBOUNDED else f"at most {self.times} times"]
        if self.when is not None:
            said.append(f"when {describe_callable(self.when)}")
        if callable(self.delay):
            said.append(f"after {describe_callable(self.delay)}")
        elif self.delay:
            said.append(f"after {self.delay:g} s")
        return f"retry({', '.join(said)}): holds no elements"

    def seconds_before(self, attempt: int) -> float:
        """Return how many seconds to wait before a retry. ``attempt``: 1 for the first retry."""
        delay = self.delay
        if not callable(delay):
            return delay
        return check_seconds(f"retry: what {describe_callable(delay)} returned", delay(attempt))


class _Attempts:
    """After an error, decides whether and when to subscribe to ``source`` (upstream) again."""

    def __init__(
        self, arbiter: SubscriptionArbiter, source: Publisher[Any], options: RetryBoundary
    ) -> None:
        self._arbiter = arbiter
        self._source = source
        self._options = options
        self._retries = 0
        self._failed: BaseException | None = None  # the last error; None after an element
        self._wait_until: float | None = None
        self._deadline: Deadline | None = None
        if options.delay:
            self._deadline = Deadline(options.timer, self._due, self._resubscribe, arbiter._fail)
            arbiter.on_end = self._deadline.close

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended | None:
        failed = self._failed
        if failed is not None and isinstance(error, AlreadySubscribedError | ShutDownError):
            # The source allows no other subscription, so a retry is not possible. Signal the error
            # of the earlier attempt, because it tells the user more than ``error``.
            add_note(failed, f"retry: there was no other attempt: {error}")
            return Ended(failed)
        if error is None or not self._is_retried(error):
            return Ended(error)
        self._retries += 1
        self._failed = error
        self._arbiter.on_first_element = self._forget_error
        seconds, deadline = self._options.seconds_before(self._retries), self._deadline
        if deadline is None or seconds == 0:
            return self._source
        self._wait_until = deadline.now() + seconds
        deadline.update()
        return None

    def _is_retried(self, error: BaseException) -> bool:
        # An error that is not an ``Exception``, such as KeyboardInterrupt, must end the stream.
        options = self._options
        if self._retries >= options.times or not isinstance(error, Exception):
            return False
        if isinstance(error, WorkDroppedError) and is_exiting():
            return False  # the interpreter is exiting: each retry would fail, and delay the exit
        return options.when is None or bool(options.when(error))

    def _forget_error(self) -> None:
        self._failed = None  # forget the error: its traceback keeps frames and variables alive

    def _due(self) -> float | None:
        return self._wait_until

    def _resubscribe(self) -> None:
        self._wait_until = None
        self._arbiter.subscribe_next(self._source)
