"""``timeout``: the stream fails if its subscriber waits too long for a requested element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["Timeout"]


class Timeout(Boundary):
    one_to_one = True

    def __init__(self, seconds: float, timer: Timer | None) -> None:
        self.seconds = check_seconds("timeout(seconds): seconds", seconds, positive=True)
        self.timer = check_timer(timer)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(
            upstream, partial(PushSubscription, observer=partial(_Clock, self)), Stages()
        )

    def describe(self) -> str:
        return f"timeout({self.seconds:g} s): holds no elements"


class _Clock:
    """Fails the stream if no element arrives in time.

    The clock runs while there is demand and the subscriber is not processing an element. It starts
    again when a request raises the demand from zero, and when the subscriber has processed an
    element.
    """

    __slots__ = ("_came", "_deadline", "_delivering", "_demand", "_seconds", "_since")

    def __init__(self, options: Timeout, subscription: PushSubscription) -> None:
        self._seconds = options.seconds
        fail = subscription._fail
        self._deadline = Deadline(options.timer, self._due, partial(self._check, fail), fail)
        self._demand = subscription._demand
        self._since = 0.0  # the time at which the clock started
        self._delivering = False
        self._came = 0

    def before_request(self, demand: int, /) -> None:
        if demand == 0:
            # Set ``_since`` before the demand rises. Otherwise ``_due``, on another thread, might
            # see the demand, but compute the due time from an old ``_since``, and so too early.
            self._start()

    def demand_rose(self) -> None:
        self._start()
        self._deadline.update()

    def _start(self) -> None:
        try:
            self._since = self._deadline.now()
        except Exception as raised:
            self._deadline.refuse(raised)

    def wrap_on_next(self, on_next: Callable[[Any], object], /) -> Callable[[Any], object]:
        now, refuse = self._deadline.now, self._deadline.refuse

        def deliver(element: Any) -> None:
            self._came += 1
            self._delivering = True
            on_next(element)
            try:
                self._since = now()
            except Exception as raised:
                refuse(raised)
            self._delivering = False

        return deliver

    def close(self) -> None:
        self._deadline.close()

    def _due(self) -> float | None:
        if self._delivering:
            return self._deadline.now() + self._seconds
        return self._since + self._seconds if self._demand.value > 0 else None

    def _check(self, fail: Callable[[BaseException], None]) -> None:
        if self._delivering:
            return  # the clock does not run during a delivery
        due = self._due()
        if due is not None and due <= self._deadline.now():
            fail(
                TimeoutError(
                    f"timeout: no element came within {self._seconds:g} s of being asked for, "
                    f"after {self._came} had come"
                )
            )
