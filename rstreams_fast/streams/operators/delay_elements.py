"""``delay_elements``: delivers each element some seconds later."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import check_seconds
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.runtime.timers import Timer, check_timer, default_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.fan_in import FanIn, FanInPublisher, Prefetch
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.stages import Need

__all__ = ["DelayElements"]


class DelayElements(Boundary):
    one_to_one = True

    def __init__(self, seconds: float, timer: Timer | None) -> None:
        self.seconds = check_seconds("delay_elements(seconds): seconds", seconds, positive=True)
        self.timer = check_timer(timer)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return self.attach_within(upstream, Need())

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:
        return FanInPublisher(upstream, _DelaySubscription, (self, need.total))

    def describe(self) -> str:
        return f"delay_elements({self.seconds:g} s): at most 1 element, and the one that is delayed"


class _DelaySubscription(FanIn):
    """Delays one element at a time. During the delay it requests the next element."""

    __slots__ = (
        "_deadline",
        "_done",
        "_due_at",
        "_inner",
        "_is_due",
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
        # At most 2 elements are held: the delayed element, and one element requested in advance.
        super().__init__(subscriber, Prefetch(1, options.describe(), 2))
        self._seconds = options.seconds
        self._timer = default_timer() if options.timer is None else options.timer
        self._inner = new_inner(self, upstream)
        self._unsubscribed.append(self._inner)
        self._waiting: deque[Any] = deque()
        self._done = False
        # ``_due_at``: a list with the time at which the first element in ``_waiting`` is due; empty
        # if no delay is running. At that time ``_deadline`` calls ``_time_is_up``, which empties
        # the list. Each delay has a new list, so a late call for an earlier delay finds only an
        # empty list.
        self._deadline: Deadline | None = None
        self._due_at: list[float] = []
        self._is_due = False  # whether the first element in _waiting must be delivered now

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        return isinstance(error, Exception) and self._inner.received >= self._total

    # -- waiting for a time ------------------------------------------------------------------------

    def _begin_to_wait(self) -> None:
        # Make a new ``Deadline`` for each element. The thread of the previous ``Deadline`` may
        # still be busy with a request to upstream, and would deliver this element too late.
        self._close_deadline()
        timer = self._timer
        try:
            self._due_at = due_at = [timer.now() + self._seconds]
        except Exception as raised:
            self._fail(raised)
            return
        self._deadline = Deadline(
            timer, lambda: next(iter(due_at), None), lambda: self._time_is_up(due_at), self._fail
        )
        self._deadline.update()

    def _time_is_up(self, due_at: list[float]) -> None:
        """Have the first element in ``_waiting`` delivered, if the time in ``due_at`` has come."""
        if due_at and due_at[0] <= self._timer.now():
            self._is_due = True
            due_at.clear()
            self._enter()

    def _close_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.close()

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        prefetch, waiting, mail = self._prefetch, self._waiting, self._mail
        prefetch.waits.end()
        while mail:
            _, what = mail.popleft()
            if isinstance(what, list):
                waiting += what
            else:
                self._done, self._late_error = True, what.error
        if self._is_due:
            self._is_due = False
            self._deliver([waiting.popleft()])
            return True
        if waiting:
            # Read ``_due_at`` (empty if no delay is running) before ``_is_due``. ``_time_is_up``,
            # on another thread, sets ``_is_due`` and then empties ``_due_at``. In the other order,
            # both could happen between the two reads: the element would be delayed again, as if no
            # delay had begun.
            if demand > 0 and not self._due_at and not self._is_due:
                if self._inner.requested < self._total:
                    prefetch.due_requests.append((self._inner, 1))
                self._begin_to_wait()
            return prefetch.begin_wait(demand)
        if self._late_error is not None:
            return self._end_late()
        return self._complete() if self._done else prefetch.begin_wait(demand)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._waiting = deque()
        self._close_deadline()
