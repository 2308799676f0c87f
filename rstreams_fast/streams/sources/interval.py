"""``interval``: a source that sends numbers (ticks) at regular times, even without demand."""

from __future__ import annotations

import threading
from typing import Any, Final

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Subscriber
from rstreams_fast.runtime.executors import (
    CALLER,
    Resource,
    check_executor,
    describe_executor,
    resource,
)
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.runtime.timers import (
    Alarm,
    Timer,
    check_timer,
    default_timer,
    runs_slow_work,
)
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.operators.on_overflow import (
    Overflow,
    OverflowBoundary,
    OverflowSubscription,
)

__all__ = ["interval_source"]

SHORTEST: Final = 1e-9
"""The shortest period of ``interval``, in seconds. Clocks cannot measure shorter times."""


def interval_source(  # noqa: PLR0917 - the parameters of the public function, in its order
    seconds: float,
    delay: float | None,
    overflow: Overflow,
    capacity: int | None,
    executor: Any,
    timer: Timer | None,
) -> PublisherSource:
    period = check_seconds("seconds", seconds, positive=True)
    if period < SHORTEST:  # tick numbers are computed as floats, and would soon be inexact
        raise ValueError(f"seconds must be at least {SHORTEST}, got {period}")
    first = period if delay is None else check_seconds("delay", delay)
    check_executor(executor)
    if isinstance(executor, str):
        raise ValueError(  # noqa: TRY004 - the type is right, the value is not
            f"executor must not be {CALLER!r}: ticks come from the timer, which all streams share"
        )
    check_timer(timer)
    if executor is not None:
        where = describe_executor(executor)
    else:
        where = "the thread of its timer" if runs_slow_work(timer) else "shared threads"
    # ``on_demand=True``: ticks begin at the first request. Earlier ticks would fill the buffer.
    options = OverflowBoundary(
        overflow, capacity, name="interval", argument="overflow=", on_demand=True
    )
    source = _IntervalPublisher(period, first, options, executor, timer)
    return PublisherSource(
        source,
        f"{options.describe()}, one every {period} s, on {where}",
        trusted=True,
    )


class _IntervalPublisher:
    def __init__(
        self,
        period: float,
        delay: float,
        options: OverflowBoundary,
        executor: Any,
        timer: Timer | None,
    ) -> None:
        self._period = period
        self._delay = delay
        self._options = options
        self.fails_without_demand = options.fails_without_demand
        self._executor = executor
        self._timer = timer

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        timer = self._timer or default_timer()
        on: Resource | None = None
        if self._executor is not None:
            on = resource(self._executor)
        elif not runs_slow_work(timer):
            on = shared_threads()
        target = OverflowSubscription(subscriber, self._options, on)
        target.on_subscribe(_TickSubscription(target, timer, self._period, self._delay))


class _TickSubscription:
    """The subscription that sends the ticks. At most one alarm (planned call) is set at a time."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_delay",
        "_first",
        "_lock",
        "_next",
        "_period",
        "_target",
        "_timer",
    )

    __reduce__ = not_picklable

    def __init__(
        self, target: OverflowSubscription, timer: Timer, period: float, delay: float
    ) -> None:
        self._target: OverflowSubscription | None = target
        self._timer = timer
        self._period = period
        self._delay = delay
        self._first = 0.0  # the time at which tick 0 is due
        self._next = 0
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._alarm: Alarm | None = None

    def request(self, _n: int, /) -> None:
        """Start the ticks. ``_target``, an internal subscriber, calls this once, for all ticks."""
        target = self._target
        if target is None:
            return
        try:
            self._first = self._timer.now() + self._delay
        except Exception as raised:
            target.finish(raised)
            return
        self._set_alarm(0)

    def cancel(self) -> None:
        with self._lock:
            self._target = None
            alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()

    def _set_alarm(self, n: int) -> None:
        target = self._target
        if target is None:
            return
        try:
            seconds = self._first + n * self._period - self._timer.now()
            alarm = self._timer.call_later(max(0.0, seconds), self._tick, target.finish)
        except Exception as refused:
            target.finish(refused)
            return
        with self._lock:
            # If ``alarm`` has run already, its tick has set a later alarm: do not store ``alarm``.
            if self._target is not None and n >= self._next:
                self._alarm = alarm
                return
        alarm.cancel()

    def _tick(self) -> None:
        target = self._target
        if target is None:
            return
        try:
            late = self._timer.now() - self._first
        except Exception as raised:
            target.finish(raised)
            return
        n = max(self._next, int(late // self._period))
        self._next = n + 1
        target.offer(n)
        self._set_alarm(n + 1)
