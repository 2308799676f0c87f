"""``window_time``: a stream of the elements that come within so many seconds of the first."""

from __future__ import annotations

import threading
from typing import Any

from rstreams_fast._checks import check_capacity, check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.subscribing import Below
from rstreams_fast.streams.operators.group_by import SharedPlaces
from rstreams_fast.streams.operators.parts import Part, ToStream

__all__ = ["WindowTime"]


class WindowTime(Boundary):
    """The boundary of ``Stream.window_time``, its arguments checked."""

    def __init__(
        self,
        seconds: float,
        prefetch: int,
        unread: float,
        timer: Timer | None,
        to_stream: ToStream,
    ) -> None:
        self.seconds = check_seconds("window_time(seconds): seconds", seconds, positive=True)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.unread = check_seconds("window_time(unread): unread", unread, positive=True)
        check_timer(timer)
        self.timer = timer
        self.to_stream = to_stream

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _WindowTimeSubscription, self)

    def describe(self) -> str:
        return f"window_time({self.seconds:g} s): one window open, {self.prefetch} elements in all"


class _WindowTimeSubscription(SharedPlaces):
    """The current part is ended by its time, on a shared thread, or by upstream's end."""

    __slots__ = ("_clock", "_closed", "_ends_at", "_lock", "_options")

    def __init__(self, subscriber: Subscriber[Any], options: WindowTime) -> None:
        super().__init__(subscriber, options)
        self._options = options
        self._closed: list[Part] = []  # those that may still hold elements
        self._ends_at: float | None = None
        # Between an element and its window's end. Reentrant, for the collector may run anything
        # anywhere. Nobody's code is called under it.
        self._lock = threading.RLock()
        self._clock = Deadline(options.timer, lambda: self._ends_at, self._time_is_up, self._fail)

    def _take(self, burst: list[Any]) -> None:
        """They come now, all of them."""
        now = self._clock.now()
        self._end_what_is_due(now)
        if not burst:  # a nested signal has brought them
            return
        self._came += len(burst)
        with self._lock:
            part = next(iter(list(self._open.values())), None)
            opens = part is None and self._demand.value >= 0
            if opens:
                self._ends_at = now + self._options.seconds
                part, stream = self._new_part(self._came, self._options.to_stream)
            if part is not None:
                self._push(part, burst)
        if opens:
            self._made.append(stream)
            self._clock.look()
        elif part is None:
            self.took(len(burst))  # nobody wants another window

    def _end_what_is_due(self, now: float) -> None:
        with self._lock:
            due = self._ends_at
            if due is None or now < due:
                return
            self._ends_at = None
            ended = list(self._open.values())
            self._closed = [part for part in self._closed if part.elements] + ended
            for part in ended:
                self._remove(part)
                part.over = True
        for part in ended:
            part.wake()

    def _time_is_up(self) -> None:
        self._end_what_is_due(self._clock.now())
        self.look_for_readers()

    def _holding(self) -> list[Part]:
        return [*self._closed, *super()._holding()]

    def look_for_readers(self) -> None:
        """The clock runs as long as a window may be open."""
        super().look_for_readers()
        if self._upstream.over:
            self._clock.close()
