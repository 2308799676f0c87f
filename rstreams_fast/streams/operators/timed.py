"""``debounce``, ``throttle_first`` and ``sample``: pass or drop an element by its time of arrival.

The operators make an unbounded request to upstream. An operator selects some elements for delivery,
and drops the other elements. If there is no demand, the selected element waits. The next selected
element replaces the waiting element. Dropped and replaced elements are counted as dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher, Subscriber, Subscription
from rstreams_fast.core import MISSING
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.chain import Link, take_over_attributes
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.signals import check_error_signal
from rstreams_fast.streams.engine.trampoline import OperatorPublisher
from rstreams_fast.streams.operators.on_overflow import (
    Overflow,
    OverflowBoundary,
    OverflowSubscription,
)

__all__ = ["Timed"]


class Timed(OverflowBoundary):
    """The options of ``debounce``, ``throttle_first`` and ``sample``."""

    def __init__(self, operator: str, seconds: float, timer: Timer | None) -> None:
        super().__init__(Overflow.LATEST)
        self.operator = operator
        self.seconds = check_seconds(f"{operator}(seconds): seconds", seconds, positive=True)
        self.timer = check_timer(timer)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _TimedSubscriber, self)

    def describe(self) -> str:
        waiting = "" if self.operator == "throttle_first" else "the newest element, and "
        return (
            f"{self.operator}({self.seconds:g} s): holds {waiting}at most 1 that waits for demand"
        )


class _Rule(Protocol):
    """Interface: decides when an element is passed on. The methods are called under a lock."""

    #: ``quiet_until``: every element that arrives before this time is dropped.
    quiet_until: float

    def due_time(self, now: float, holds: bool, /) -> float | None:
        """Return the time at which to pass on an element that has arrived at ``now``.

        ``None`` means immediately. ``holds``: whether there is an earlier element that is not due
        yet. If so, the new element replaces the earlier element.
        """


class _ThrottleFirst:
    """Passes on an element immediately, and then drops all elements for ``seconds``."""

    __slots__ = ("_seconds", "quiet_until")

    def __init__(self, seconds: float, _now: float) -> None:
        self._seconds = seconds
        self.quiet_until = -inf

    def due_time(self, now: float, _holds: bool, /) -> float | None:
        self.quiet_until = now + self._seconds
        return None


class _Debounce:
    """Passes on an element if no other element arrives in the next ``seconds``."""

    __slots__ = ("_seconds",)

    quiet_until = -inf

    def __init__(self, seconds: float, _now: float) -> None:
        self._seconds = seconds

    def due_time(self, now: float, _holds: bool, /) -> float | None:
        return now + self._seconds


class _Sample:
    """Divides the time since the subscription into intervals of ``seconds``.

    At the end of each interval, passes on the newest element of the interval.
    """

    __slots__ = ("_due_at", "_seconds", "_start")

    quiet_until = -inf

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._start = now
        self._due_at = 0.0

    def due_time(self, now: float, holds: bool, /) -> float | None:
        if not holds:  # no earlier element waits: the new element is due when the interval ends
            self._due_at = now + self._seconds - (now - self._start) % self._seconds
        return self._due_at


_RULES: dict[str, Callable[[float, float], _Rule]] = {
    "throttle_first": _ThrottleFirst,
    "debounce": _Debounce,
    "sample": _Sample,
}


class _TimedSubscriber(Link):
    """Subscribes to upstream. Passes an element to ``_target`` at the time that ``_rule`` returns.

    ``_target``, an ``OverflowSubscription``, is the subscription of the subscriber below. It holds
    the element that waits for demand, and ends the stream. It also tolerates an upstream that
    breaks the rules of Reactive Streams.
    """

    __slots__ = (
        "_deadline",
        "_due_at",
        "_end",
        "_lock",
        "_newest",
        "_now",
        "_offering",
        "_rule",
        "_target",
    )

    def __init__(self, subscriber: Subscriber[Any], options: Timed) -> None:
        self._target = target = OverflowSubscription(subscriber, options, at_end=self._close)
        take_over_attributes(self, target)
        self._lock = target.lock
        # ``_newest``: an element that is not due yet. ``_due_at``: the time at which it is due.
        self._newest: Any = MISSING
        self._due_at = 0.0
        self._offering = False
        # ``_end``: a function that ends the stream. ``_end`` is set if upstream ends while the
        # thread in ``_time_is_up`` passes an element to ``_target``. Later this thread calls the
        # function.
        self._end: Callable[[Any], None] | None = None
        self._deadline = Deadline(options.timer, self._due, self._time_is_up, target.finish)
        self._now = self._deadline.now
        now = 0.0
        try:
            now = self._now()
        except Exception as raised:
            target._fail(raised)
        self._rule = _RULES[options.operator](options.seconds, now)

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._target.on_subscribe(subscription)

    def on_next(self, element: Any, /) -> None:
        target, rule = self._target, self._rule
        try:
            now = self._now()
        except Exception as raised:
            target._check_element(element)
            target._fail(raised)
            return
        # ``throttle_first`` drops most elements here, without the lock: to take the lock would cost
        # more time than the rest of this method.
        if self.custody is None and now < rule.quiet_until and target.open and element is not None:
            target.drops += 1
            return
        target._check_element(element)
        left_out, offered = MISSING, False
        with self._lock:
            if target.open:
                if now < rule.quiet_until:
                    left_out = element
                else:
                    due_at = rule.due_time(now, self._newest is not MISSING)
                    offered = due_at is None
                    if due_at is not None:
                        left_out, self._newest = self._newest, element
                        self._due_at = due_at
                target.drops += left_out is not MISSING
        if self.custody is not None:
            self.custody.discard([left_out])
        del left_out
        if offered or not target.open:
            target.offer_checked(element)
        elif self._newest is not MISSING:
            self._deadline.update()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error. If an element waits for demand, it is delivered before the error.

        An element that is not due yet is dropped.
        """
        check_error_signal(self, error)
        self._after_the_offer(partial(self._fail, error))

    def on_complete(self) -> None:
        """If an element is not due yet, deliver it now. Then signal completion."""
        self._after_the_offer(self._complete)

    def _after_the_offer(self, end: Callable[[Any], None]) -> None:
        """Call ``end`` with the element that is not due yet; ``MISSING`` if there is none.

        ``_time_is_up``, on another thread, may be delivering an element at this moment, by a call
        of ``_target.offer``. Then that thread calls ``end`` after the delivery. If this thread
        called ``end`` now, the terminal signal could overtake the element.
        """
        with self._lock:
            if self._offering:  # the thread in _time_is_up() will call end()
                self._end = end
                return
            newest, self._newest = self._newest, MISSING
        end(newest)

    def _fail(self, error: BaseException, newest: Any) -> None:
        with self._lock:
            self._target.drops += newest is not MISSING
        self._target.on_error(error)

    def _complete(self, newest: Any) -> None:
        if newest is not MISSING:
            self._target.offer(newest, entered=True)
        self._target.on_complete()

    # -- waiting for a time ------------------------------------------------------------------------

    def _due(self) -> float | None:
        return None if self._newest is MISSING else self._due_at

    def _time_is_up(self) -> None:
        with self._lock:
            due = self._due()
            if due is None or due > self._now():
                return
            newest, self._newest = self._newest, MISSING
            self._offering = True
        self._target.offer(newest, entered=True)
        with self._lock:
            self._offering = False
            end, self._end = self._end, None
        if end is not None:
            self._after_the_offer(end)

    def _close(self) -> None:
        with self._lock:
            self._newest = MISSING
        self._deadline.close()
