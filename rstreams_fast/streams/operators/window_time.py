"""``window_time``: divides a stream into one stream (window) for each time interval.

A window holds the elements that arrive within ``seconds`` of its first element.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from rstreams_fast._checks import check_capacity, check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.trampoline import OperatorPublisher
from rstreams_fast.streams.operators.divider import Divider
from rstreams_fast.streams.operators.shared_capacity import SharedCapacity
from rstreams_fast.streams.operators.substreams import ToStream

__all__ = ["WindowTime"]


class WindowTime(Boundary):
    def __init__(
        self,
        seconds: float,
        prefetch: int,
        patience: float,
        timer: Timer | None,
        to_stream: ToStream,
    ) -> None:
        self.seconds = check_seconds("window_time(seconds): seconds", seconds, positive=True)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.patience = check_seconds("window_time(patience): patience", patience, positive=True)
        self.timer = check_timer(timer)
        self.to_stream = to_stream

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _subscription, self)

    def describe(self) -> str:
        return f"window_time({self.seconds:g} s): one window open, {self.prefetch} elements in all"


def _subscription(subscriber: Subscriber[Any], options: WindowTime) -> Divider:
    divider = Divider(subscriber, options.describe(), options.prefetch)
    divider.division = _ByTime(divider, options)
    divider.capacity = SharedCapacity(divider, options.prefetch, options.patience, options.timer)
    return divider


class _ByTime:
    """Puts each element in the open window. A clock, or the end of upstream, closes the window."""

    __slots__ = ("_clock", "_ends_at", "_lock", "_options")

    def __init__(self, divider: Divider, options: WindowTime) -> None:
        self._options = options
        self._ends_at: float | None = None
        # A thread holds ``_lock`` while it puts elements in a window, or closes a window. So no
        # element is put in a closed window. The lock is reentrant: the garbage collector may run a
        # finalizer on the thread that holds the lock. No other user code runs under the lock.
        self._lock = threading.RLock()
        self._clock = divider.add_clock(
            options.timer, lambda: self._ends_at, partial(self._time_is_up, divider)
        )

    def take(self, burst: list[Any], divider: Divider, /) -> None:
        """Put all elements of ``burst`` in one window, as if they had arrived at the same time."""
        now = self._clock.now()
        self._end_what_is_due(now, divider)
        if not burst:  # a nested call of on_burst() has put the elements in a window
            return
        divider.received += len(burst)
        with self._lock:
            window = next(iter(list(divider.open.values())), None)
            opens = window is None and not divider.takes_no_more
            if opens:
                self._ends_at = now + self._options.seconds
                window = divider.open_substream(divider.received, self._options.to_stream)
            if window is not None:
                divider.push(window, burst)
        if opens:
            self._clock.update()
        elif window is None:  # downstream takes no more windows, so the elements are dropped
            divider.count_taken(len(burst))  # dropped elements count as taken

    def _end_what_is_due(self, now: float, divider: Divider) -> None:
        with self._lock:
            due = self._ends_at
            if due is None or now < due:
                return
            self._ends_at = None
            ended = list(divider.open.values())
            divider.closed = [window for window in divider.closed if window.elements] + ended
            for window in ended:
                divider.remove(window)
                window.over = True
        for window in ended:
            window.wake()

    def _time_is_up(self, divider: Divider) -> None:
        self._end_what_is_due(self._clock.now(), divider)
        divider.cancel_if_unused()
