"""Giving up on a stream that keeps its subscriber waiting."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import check_request
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.engine.subscribing import Below

__all__ = ["Timeout"]


class Timeout(Boundary):
    """The boundary of ``Stream.timeout``, its arguments checked."""

    one_to_one = True

    def __init__(self, seconds: float, timer: Timer | None) -> None:
        self.seconds = check_seconds("timeout(seconds): seconds", seconds, positive=True)
        check_timer(timer)
        self.timer = timer

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _TimeoutSubscription, self)

    def describe(self) -> str:
        return f"timeout({self.seconds:g} s): holds no elements"


class _TimeoutSubscription(PushSubscription):
    """The clock runs while there is demand and downstream is not at work on an element: from the
    request that found no demand, or from the element before, whichever is later.
    """

    __slots__ = ("_deadline", "_delivering", "_seconds", "_since")

    def __init__(self, subscriber: Subscriber[Any], options: Timeout) -> None:
        super().__init__(subscriber, Stages())
        self._seconds = options.seconds
        self._deadline = Deadline(options.timer, self._due, self._check, self._fail)
        self._since = 0.0  # when the clock began to run
        self._delivering = False

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements, and start the clock if it stands still."""
        deadline = self._deadline
        try:
            n = check_request(n)
            if self._demand.value == 0:
                self._since = deadline.now()  # before there is demand, lest it seem old
        except Exception as refused:
            self._bad_request(refused)
            return
        before = self._add_demand(n)
        if before == 0:
            self._since = deadline.now()
            deadline.look()
        if before >= 0:
            self._ask(n)

    def on_next(self, element: Any, /) -> None:
        """Pass the element on, and start the clock again."""
        self._delivering = True
        super().on_next(element)
        self._since = self._deadline.now()
        self._delivering = False

    def _due(self) -> float | None:
        if self._delivering:
            return self._deadline.now() + self._seconds
        return self._since + self._seconds if self._demand.value > 0 else None

    def _check(self) -> None:
        if self._delivering:
            return  # whatever the time is: it stands still
        due, run = self._due(), self._run
        if due is not None and run is not None and due <= self._deadline.now():
            self._fail(
                TimeoutError(
                    f"timeout: no element came within {self._seconds:g} s of being asked for, "
                    f"after {run.pulled} had come"
                )
            )

    def _drop_references(self) -> None:
        super()._drop_references()
        self._deadline.close()
