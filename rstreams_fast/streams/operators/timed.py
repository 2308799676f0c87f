"""What depends on when elements come: upstream is asked for all, and what is left out is counted.

At most one element waits for demand; a later one takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import MISSING
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.signals import check_error_signal
from rstreams_fast.streams.engine.subscribing import Below
from rstreams_fast.streams.operators.on_overflow import (
    Overflow,
    OverflowBoundary,
    OverflowSubscription,
)

__all__ = ["Timed"]


class Timed(OverflowBoundary):
    """The boundary of ``Stream.debounce``, ``throttle_first`` and ``sample``."""

    def __init__(self, operator: str, seconds: float, timer: Timer | None) -> None:
        super().__init__(Overflow.LATEST)
        self.operator = operator
        self.seconds = check_seconds(f"{operator}(seconds): seconds", seconds, positive=True)
        check_timer(timer)
        self.timer = timer

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _OPERATORS[self.operator], self)

    def describe(self) -> str:
        waiting = "" if self.operator == "throttle_first" else "the newest element, and "
        return (
            f"{self.operator}({self.seconds:g} s): holds {waiting}at most 1 that waits for demand"
        )


class _TimedSubscription(OverflowSubscription):
    __slots__ = ("_deadline", "_due_at", "_end", "_newest", "_now", "_offering", "_seconds")

    def __init__(self, subscriber: Subscriber[Any], options: Timed) -> None:
        super().__init__(subscriber, options)
        self._seconds = options.seconds
        self._newest: Any = MISSING  # what has come and may still be offered
        self._offering = False  # it, at this moment
        self._end: Callable[[Any], None] | None = None  # to come after that
        self._due_at: float | None = None  # when it is; or, until when others are left out
        self._deadline = Deadline(options.timer, self._due, self._time_is_up, self.finish)
        self._now = self._deadline.now

    def on_next(self, element: Any, /) -> None:
        """Offer an element, hold it, or leave it out."""
        self._check_element(element)
        now = self._now()
        with self._lock:
            if not self._open:
                left_out, offered = None, False
            else:
                left_out, offered = self._sift(element, now)
                self._dropped += left_out is not MISSING
        if self.custody is not None:
            self._discard([left_out])
        del left_out
        if offered:
            self._offer_checked(element)
        elif self._upstream.over:
            self._upstream.unwanted()
        elif self._newest is not MISSING:  # else nothing is due
            self._deadline.look()

    def _sift(self, element: Any, now: float) -> tuple[Any, bool]:
        """Return what is left out (or ``MISSING``), and whether ``element`` is offered."""
        raise NotImplementedError

    def _due(self) -> float | None:
        return None if self._newest is MISSING else self._due_at

    def _time_is_up(self) -> None:
        with self._lock:
            due = self._due()
            if due is None or due > self._now():
                return
            newest, self._newest = self._newest, MISSING
            self._offering = True
        self.offer(newest, entered=True)
        with self._lock:
            self._offering = False
            end, self._end = self._end, None
        if end is not None:
            self._after_the_offer(end)

    def _after_the_offer(self, end: Callable[[Any], None]) -> None:
        """Call ``end`` with the newest element, which nobody offers any more, or ``MISSING``."""
        with self._lock:
            if self._offering:  # by another thread, which sees to it
                self._end = end
                return
            newest, self._newest = self._newest, MISSING
        end(newest)

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on after what waits for demand; what waits for its time is left out."""
        check_error_signal(self, error)
        self._after_the_offer(partial(self._error, error))

    def _error(self, error: BaseException, newest: Any) -> None:
        with self._lock:
            self._dropped += newest is not MISSING
        super().on_error(error)

    def on_complete(self) -> None:
        """Complete after what is held."""
        self._after_the_offer(self._complete_after_newest)

    def _complete_after_newest(self, newest: Any) -> None:
        if newest is not MISSING:
            self.offer(newest, entered=True)
        super().on_complete()

    def _drop_references(self) -> None:
        super()._drop_references()
        with self._lock:
            self._newest = MISSING
        self._deadline.close()


class _ThrottleFirst(_TimedSubscription):
    __slots__ = ()

    def on_next(self, element: Any, /) -> None:
        """Leave it out in its time without the lock, which costs more than all else."""
        due = self._due_at
        if (
            due is not None
            and self._open
            and self.custody is None
            and element is not None
            and self._now() < due
        ):
            self._dropped += 1
        else:
            super().on_next(element)

    def _sift(self, element: Any, now: float) -> tuple[Any, bool]:
        if self._due_at is not None and now < self._due_at:
            return element, False
        self._due_at = now + self._seconds
        return MISSING, True


class _Debounce(_TimedSubscription):
    __slots__ = ()

    def _sift(self, element: Any, now: float) -> tuple[Any, bool]:
        before, self._newest = self._newest, element
        self._due_at = now + self._seconds
        return before, False


class _Sample(_TimedSubscription):
    __slots__ = ("_began_at",)

    def _begin(self) -> None:
        self._began_at = self._now()
        super()._begin()

    def _sift(self, element: Any, now: float) -> tuple[Any, bool]:
        before, self._newest = self._newest, element
        if before is MISSING:  # at the next tick; where nothing has come, nobody looks at them
            self._due_at = now + self._seconds - (now - self._began_at) % self._seconds
        return before, False


_OPERATORS = {"throttle_first": _ThrottleFirst, "debounce": _Debounce, "sample": _Sample}
