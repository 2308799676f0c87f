"""Ticks: numbers that come by the clock, asked for or not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.api import Subscriber
from rstreams_fast.runtime.executors import CALLER, check_executor, describe_executor, resource
from rstreams_fast.runtime.timers import Alarm, Timer, check_seconds, check_timer, default_timer
from rstreams_fast.streams.assembly import Foreign
from rstreams_fast.streams.drain import Live, check_subscriber
from rstreams_fast.streams.overflow import OnOverflow, Overflow, OverflowSubscription
from rstreams_fast.streams.stream import Stream

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

__all__ = ["interval"]

SHORTEST: Final = 1e-9
"""The shortest period, in seconds: clocks tell no less."""


def interval(
    seconds: float,
    /,
    *,
    delay: float | None = None,
    overflow: Overflow = Overflow.ERROR,
    capacity: int | None = None,
    executor: Executor | asyncio.AbstractEventLoop | None = None,
    timer: Timer | None = None,
) -> Stream[int]:
    """A tick every ``seconds``, which are 1e-9 at least: 0, 1, 2, ..., without end.

    Tick ``n`` comes ``delay + n * seconds`` after ``subscribe``, or a little later, but delays do
    not add up; ``delay=None`` is ``seconds``. Ticks missed because the process was stopped, or the
    machine overloaded, are not made up for: of those that are due together the last one comes, and
    the numbers of the others are left out. So a tick's number always tells its time.

    A tick that comes before it is asked for is an error, unless ``overflow`` says otherwise (see
    ``Overflow``; ``capacity`` is the most ticks held).

    Each subscriber has its own ticks, from the time it subscribes. They are delivered on
    ``executor`` (see ``publish_on``; ``None`` is a worker of their own, and ``"caller"``, which
    would be the timer, is refused). ``timer=None`` is the one of this process.
    """
    period = check_seconds("seconds", seconds, positive=True)
    if period < SHORTEST:  # the numbers of ticks would soon be beyond all that floats can hold
        raise ValueError(f"seconds must be at least {SHORTEST}, got {period}")
    first = period if delay is None else check_seconds("delay", delay)
    check_executor(executor)
    if isinstance(executor, str):
        raise ValueError(  # noqa: TRY004 - it is the value that will not do
            f"executor must not be {CALLER!r}: ticks come from the timer, which all streams share"
        )
    check_timer(timer)
    options = OnOverflow(overflow, capacity, name="interval", argument="overflow=")
    source = _Interval(period, first, options, executor, timer)
    return Stream(
        Foreign(
            source,
            f"{options.describe()}, one every {period} s, on {describe_executor(executor)}",
            trusted=True,
        )
    )


class _Interval:
    def __init__(
        self, period: float, delay: float, options: OnOverflow, executor: Any, timer: Timer | None
    ) -> None:
        self._period = period
        self._delay = delay
        self._options = options
        self._executor = executor
        self._timer = timer

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        check_subscriber(subscriber)
        target = OverflowSubscription(subscriber, self._options, resource(self._executor))
        ticks = _Ticks(target, self._timer or default_timer(), self._period, self._delay)
        target.on_subscribe(ticks)
        ticks.start()


class _Ticks(Live):
    """The subscription to the clock: one alarm at a time, until it is cancelled."""

    __slots__ = ("_alarm", "_delay", "_first", "_lock", "_next", "_period", "_target", "_timer")

    def __init__(
        self, target: OverflowSubscription, timer: Timer, period: float, delay: float
    ) -> None:
        self._target: OverflowSubscription | None = target
        self._timer = timer
        self._period = period
        self._delay = delay
        self._first = 0.0  # when tick 0 is due
        self._next = 0
        self._lock = threading.RLock()  # reentrant, for the collector may run anything anywhere
        self._alarm: Alarm | None = None

    def request(self, n: int, /) -> None:
        """Nothing: time does not wait."""

    def cancel(self) -> None:
        with self._lock:
            self._target = None
            alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()

    def start(self) -> None:
        """Set the first alarm, when the subscriber is ready."""
        self._first = self._timer.now() + self._delay
        self._set(0)

    def _set(self, n: int) -> None:
        target = self._target
        if target is None:
            return
        seconds = self._first + n * self._period - self._timer.now()
        try:
            alarm = self._timer.call_later(max(0.0, seconds), self._tick, target.finish)
        except Exception as refused:
            target.finish(refused)
            return
        with self._lock:
            # The first alarm may have been followed by the next before it gets here.
            if self._target is not None and n >= self._next:
                self._alarm = alarm
                return
        alarm.cancel()

    def _tick(self) -> None:
        target = self._target
        if target is None:
            return
        late = self._timer.now() - self._first
        n = max(self._next, int(late // self._period))
        self._next = n + 1
        target.offer(n)
        self._set(n + 1)  # unless that ended it
