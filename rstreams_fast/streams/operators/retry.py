"""Subscribing to the same stream again when it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import check_count, check_plain, check_seconds, describe_callable
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.errors import AlreadySubscribedError
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner

__all__ = ["RetryBoundary"]


class RetryBoundary(Boundary):
    """The boundary of ``Stream.retry``, its arguments checked."""

    one_to_one = True

    def __init__(
        self,
        times: int,
        when: Callable[[Exception], object] | None,
        delay: float | Callable[[int], float] | None,
        timer: Timer | None,
    ) -> None:
        self.times = check_count("retry(times): times", times)
        if isinstance(when, type) and issubclass(when, BaseException):
            name = when.__name__  # it could be called, and what it makes is true for any error
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
        check_timer(timer)
        self.timer = timer

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _RetrySubscription, self)

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
        """How long to wait before the ``attempt``-th retry; the first is 1."""
        delay = self.delay
        if not callable(delay):
            return delay
        return check_seconds(f"retry: what {describe_callable(delay)} returned", delay(attempt))


class _RetrySubscription(SubscriptionArbiter):
    _runs_sequences = True

    __slots__ = ("_deadline", "_failed", "_options", "_retries", "_source", "_wait_until")

    def __init__(
        self, subscriber: Subscriber[Any], source: Publisher[Any], options: RetryBoundary
    ) -> None:
        super().__init__(subscriber, source)
        self._options: RetryBoundary | None = options
        self._source: Publisher[Any] | None = source
        self._retries = 0
        self._failed: BaseException | None = None  # what the attempt is to make good
        self._wait_until: float | None = None
        self._deadline: Deadline | None = None
        if options.delay:
            self._deadline = Deadline(options.timer, self._due, self._waited, self._fail)

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._failed = None  # so there is an attempt; an error keeps what its frames hold
        super()._inner_burst(inner, burst, over)

    def _last_stages(self) -> tuple[tuple[Any, ...], ...]:
        return (("skip_while", self._no_element),) if self._failed is not None else ()

    def _no_element(self, _element: object) -> bool:
        self._failed = None
        return False

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        options = self._options
        if error is None:
            self._finish()
        elif self._failed is not None and isinstance(error, AlreadySubscribedError):
            # There was no attempt, and would be none the next time. Wanted is the first error.
            self._failed.add_note(f"retry: there was no other attempt: {error}")
            self._finish(self._failed)
        elif options is None or not self._is_retried(options, error):
            self._finish(error)
        else:
            self._retries += 1
            self._failed = error
            seconds = options.seconds_before(self._retries)
            deadline = self._deadline
            if deadline is None or seconds == 0:
                return self._source
            self._wait_until = deadline.now() + seconds
            deadline.look()
        return None

    def _is_retried(self, options: RetryBoundary, error: BaseException) -> bool:
        # What is no Exception, such as KeyboardInterrupt, wants to end more than an attempt.
        if self._retries >= options.times or not isinstance(error, Exception):
            return False
        return options.when is None or bool(options.when(error))

    def _due(self) -> float | None:
        return self._wait_until

    def _waited(self) -> None:
        self._wait_until = None
        source = self._source
        if source is not None:
            self._go_on(source)

    def _forget_upward(self) -> None:
        super()._forget_upward()
        self._options = self._source = self._failed = None

    def _drop_references(self) -> None:
        super()._drop_references()
        if self._deadline is not None:
            self._deadline.close()
