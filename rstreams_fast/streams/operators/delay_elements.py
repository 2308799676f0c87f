"""``delay_elements``: each element after its time."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.runtime.timers import Timer, check_timer, default_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.fan_in import Combined, QueueingFanIn
from rstreams_fast.streams.engine.inner_subscriber import new_inner
from rstreams_fast.streams.engine.stages import Need

__all__ = ["DelayElements"]


class DelayElements(Boundary):
    """The boundary of ``Stream.delay_elements``, its arguments checked."""

    one_to_one = True

    def __init__(self, seconds: float, timer: Timer | None) -> None:
        self.seconds = check_seconds("delay_elements(seconds): seconds", seconds, positive=True)
        check_timer(timer)
        self.timer = timer

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher of the elements of ``upstream``, later."""
        return self.attach_within(upstream, Need())

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:
        """Return the same, where no more elements are used than ``need`` says."""
        return Combined(upstream, _DelaySubscription, (self, need.total))

    def describe(self) -> str:
        """Say how long an element is held."""
        return f"delay_elements({self.seconds:g} s): at most 1 element, and the one that is delayed"


class _DelaySubscription(QueueingFanIn):
    """Of one publisher, so that a slow one is asked while the element before is delivered."""

    __slots__ = (
        "_deadline",
        "_done",
        "_inner",
        "_moment",
        "_rang",
        "_seconds",
        "_timer",
        "_total",
        "_waiting",
    )

    def __init__(
        self,
        subscriber: Subscriber[Any],
        upstream: Publisher[Any],
        options_and_total: tuple[DelayElements, int],
    ) -> None:
        options, self._total = options_and_total
        super().__init__(subscriber, 1, options.describe(), 2)
        self._seconds = options.seconds
        self._timer = default_timer() if options.timer is None else options.timer
        self._inner = new_inner(self, upstream)
        self._unsubscribed.append(self._inner)
        self._waiting: deque[Any] = deque()
        self._done = False
        self._deadline: Deadline | None = None  # of the first that waits
        self._moment: list[float] = []  # of the first that waits; empty when it has come
        self._rang = False

    def _delays(self, error: BaseException) -> bool:
        return isinstance(error, Exception) and self._inner.came >= self._total

    # -- time ------------------------------------------------------------------------------------

    def _begin_to_wait(self) -> None:
        # Another one for each element: the thread of the one before may be in upstream's request.
        self._close_deadline()
        timer = self._timer
        self._moment = moment = [timer.now() + self._seconds]
        self._deadline = Deadline(
            timer, lambda: next(iter(moment), None), lambda: self._time_is_up(moment), self._fail
        )
        self._deadline.look()

    def _time_is_up(self, moment: list[float]) -> None:
        """Each deadline has a moment of its own: one that is late takes no other."""
        if moment and moment[0] <= self._timer.now():
            self._rang = True
            moment.clear()
            self._enter()

    def _close_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.close()

    # -- the drain -------------------------------------------------------------------------------

    def _step(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        waiting, mail = self._waiting, self._mail
        while mail:
            _, what = mail.popleft()
            if isinstance(what, list):
                waiting += what
            else:
                self._done, self._late_error = True, what.error
        if self._rang:
            self._rang = False
            self._deliver([waiting.popleft()])
            return True
        if waiting:
            # In this order: who says that its time is up takes away the moment after that.
            if self._demand.value > 0 and not self._moment and not self._rang:
                if self._inner.asked < self._total:
                    self._asks.append((self._inner, 1))
                self._begin_to_wait()
            return False
        if self._late_error is not None:
            return self._end_late()
        return self._complete() if self._done else False

    def _drop_references(self) -> None:
        super()._drop_references()
        self._waiting = deque()
        self._close_deadline()
