"""``batch`` with a bound on time or on bytes.

A batch is ready when it has ``n`` elements or ``max_bytes`` bytes, or ``seconds`` after its first
element has arrived. A ready batch is delivered on demand. At most ``n`` elements are held or
requested from upstream.

The weight of an element is known only after the element has arrived, and one heavy element can fill
a batch. So with ``max_bytes`` the operator first requests one element for each batch that the
subscriber has requested. If these elements have arrived and have not filled the batches, the
operator requests more. It holds at most ``max_bytes`` and one more element.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import (
    Weigher,
    check_count,
    check_seconds,
    check_weigher,
    describe_callable,
    safe_repr,
    weigh,
)
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import FusedRun, RunStatus, Wip
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.runtime.timers import Timer, check_timer
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["TimedBatch"]


class TimedBatch(Boundary):
    def __init__(
        self,
        n: int,
        seconds: float | None,
        max_bytes: int | None,
        weigher: Weigher | None,
        timer: Timer | None,
    ) -> None:
        self.n = check_count("batch(n): n", n, 1)
        self.seconds = seconds
        if seconds is not None:
            self.seconds = check_seconds("batch(seconds): seconds", seconds, positive=True)
        self.max_bytes = check_weigher(max_bytes, weigher)
        self.weigher = weigher
        if timer is not None and seconds is None:
            raise ValueError("batch: a timer is for seconds, which are not given")
        self.timer = check_timer(timer)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _BatchSubscription, self)

    def describe(self) -> str:
        said = f"batch({self.n}"
        if self.seconds is not None:
            said += f", after {self.seconds:g} s"
        said += f"): at most {self.n} elements"
        if self.max_bytes is not None and self.weigher is not None:
            said += (
                f" and {safe_repr(self.max_bytes)} bytes + one element, "
                f"weighed by {describe_callable(self.weigher)}"
            )
        return said


class _BatchSubscription(OperatorSubscriber):
    """Collects elements in batches. One thread at a time delivers the batches.

    Upstream's thread puts elements in ``_inbox``. The delivering thread moves the elements to the
    batch. No thread makes a request during a delivery: upstream's ``request`` may take long, and a
    batch could become overdue.
    """

    __slots__ = (
        "_arrived",
        "_arrived_bytes",
        "_batch",
        "_check_time",
        "_deadline",
        "_delivered",
        "_delivered_bytes",
        "_due_at",
        "_full",
        "_inbox",
        "_max_bytes",
        "_n",
        "_news",
        "_requested",
        "_requesting",
        "_seconds",
        "_weigher",
        "_weight",
    )

    def __init__(self, subscriber: Subscriber[Any], options: TimedBatch) -> None:
        super().__init__(subscriber, None)
        self._run = FusedRun(None, (), subscriber.on_next, self._demand)
        self._waits = Waits(options.describe(), options.n)
        self._n = options.n
        self._max_bytes = options.max_bytes
        self._weigher = options.weigher
        self._seconds = options.seconds or 0.0
        self._deadline: Deadline | None = None
        if options.seconds is not None:
            self._deadline = Deadline(options.timer, self._due, self._time_is_up, self._fail)
        # ``_inbox``: the elements that are not in a batch yet, with their weight and arrival time.
        self._inbox: deque[tuple[Any, int, float]] = deque()
        self._news = Wip()
        # ``_batch``: the batch that is being filled. Only the delivering thread uses it.
        self._batch: list[Any] = []
        self._weight = 0
        self._full = False
        self._due_at: float | None = None  # when to deliver the current batch, even if not full
        self._check_time = False
        # ``_requested``, ``_arrived``, ``_delivered``: how many elements were requested from
        # upstream, have arrived, and were delivered in batches.
        self._requested = 0
        self._arrived = 0
        self._delivered = 0
        self._arrived_bytes = self._delivered_bytes = 0
        # ``_requesting`` lets one thread at a time make requests to upstream, and no thread before
        # the subscriber's on_subscribe has returned.
        self._requesting = Wip(held=True)

    # -- the methods of the subscription -----------------------------------------------------------

    def request(self, n: int, /) -> None:
        super().request(n)  # also starts the delivery, if the demand was 0
        self._request_elements()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        held_bytes = (
            None if self._max_bytes is None else self._arrived_bytes - self._delivered_bytes
        )
        mine = self._waits.metrics(self._demand.value, self._arrived - self._delivered, held_bytes)
        return (mine, *super().metrics())

    # -- signals from upstream ---------------------------------------------------------------------

    def _begin(self) -> None:
        if self._signal_on_subscribe():
            self._start_drain()
            self._make_requests()

    def on_next(self, element: Any, /) -> None:
        if not self._takes(element):
            return
        if self._arrived >= self._requested:
            self._fail(DemandExceededError("§1.1: more elements came than had been asked for"))
            return
        try:
            weight = 0 if self._weigher is None else weigh(self._weigher, element)
            now = 0.0 if self._deadline is None else self._deadline.now()
        except Exception as raised:
            self._fail(raised)
            return
        self._arrived += 1
        self._arrived_bytes += weight
        self._inbox.append((element, weight, now))
        # Start the drain (the delivery loop) at the first element of a batch (``first``), because
        # the drain sets the time at which the batch is due. Also start it when the batch may be
        # full (``many``), and when the stream has ended: then the drain removes the element.
        first = self._news.enter()
        many = self._arrived - self._delivered >= self._n
        if first or many or self._weigher is not None or self._demand.value < 0:
            self._enter()

    # -- delivering elements -----------------------------------------------------------------------

    def _drain(self) -> None:
        super()._drain()
        self._request_elements()  # after the delivery: upstream's ``request`` may take long

    def _work(self) -> bool:
        if self._demand.value < 0:
            self._inbox.clear()
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        self._waits.end()
        more = self._hand_over(run)
        if not more:
            self._waits.begin(for_demand=self._demand.value == 0)
        return more

    def _hand_over(self, run: FusedRun) -> bool:
        # Read ``_completed`` before ``_inbox``. In the other order, elements and the completion
        # could arrive between the two reads, and these elements would be lost.
        completed = self._completed
        while self._fill():
            status = self._deliver(run)
            if status is not RunStatus.MORE:
                return self._end_with_status(status, run)
        if self._full:
            return False  # the full batch waits for demand
        if self._batch and self._demand.value > 0 and (completed or self._is_overdue()):
            status = self._deliver(run)
            if status is not RunStatus.MORE:
                return self._end_with_status(status, run)
        if self._batch:
            return False
        if completed:
            return self._end_with_status(run.finish(), run)
        return self._missed_news()

    def _missed_news(self) -> bool:
        """Make the next element start the drain.

        Return true if ``_inbox`` has an element that has arrived earlier: then the drain must not
        stop.
        """
        news = self._news
        while not news.leave(news.missed):
            pass
        return len(self._inbox) > 0

    def _fill(self) -> bool:
        """Move elements from ``_inbox`` to the batch. Return whether to deliver the batch now."""
        inbox, max_bytes = self._inbox, self._max_bytes
        while inbox and not self._full:
            element, weight, arrived_at = inbox[0]
            if max_bytes is not None:
                if self._batch and self._weight + weight > max_bytes:
                    self._full = True
                    break
                self._weight += weight
            inbox.popleft()
            self._batch.append(element)
            self._full = len(self._batch) >= self._n or (
                max_bytes is not None and self._weight >= max_bytes
            )
            if self._deadline is not None and len(self._batch) == 1 and not self._full:
                self._due_at = arrived_at + self._seconds
                self._check_time = True
        return self._full and self._demand.value > 0

    def _deliver(self, run: FusedRun) -> RunStatus:
        batch, self._batch = self._batch, []
        count, weight = len(batch), self._weight
        self._weight = 0
        self._full = False
        self._due_at = None
        self._gather([batch])
        status = run.push(batch)
        # Increase ``_delivered`` after ``run.push``, which lowers the demand. In the other order,
        # ``_room``, on another thread, might see the new ``_delivered`` and the old, larger demand.
        self._delivered += count
        self._delivered_bytes += weight
        return status

    # -- waiting for a time ------------------------------------------------------------------------

    def _due(self) -> float | None:
        return self._due_at if self._demand.value > 0 else None

    def _time_is_up(self) -> None:
        self._check_time = True
        self._enter()

    def _is_overdue(self) -> bool:
        deadline, due_at = self._deadline, self._due_at
        if deadline is None or due_at is None or not self._check_time:
            return False
        self._check_time = False
        try:
            if due_at <= deadline.now():
                return True
        except Exception as raised:
            self._fail(raised)
            return False
        deadline.update()
        return False

    # -- requests to upstream ----------------------------------------------------------------------

    def _request_elements(self) -> None:
        if self._requesting.enter():
            self._make_requests()

    def _make_requests(self) -> None:
        requesting, turns = self._requesting, self.turns
        try:
            while True:
                missed = requesting.missed
                room = self._room()
                if room > 0:
                    self._requested += room
                    self._request(room)
                if requesting.leave(missed):
                    return
                if turns is not None and turns.is_over():
                    self._pause(requesting, turns)
                    return
        except BaseException as leaving:
            # The exception (such as KeyboardInterrupt) propagates to the caller, which may be a
            # publisher above. So signal the exception to the subscriber by on_error, too.
            if self._demand.value >= 0:
                self._fail(leaving)
            raise

    def _room(self) -> int:
        """Return how many elements to request; 0 if the subscriber has no demand."""
        # Read ``_delivered`` before the demand. If a batch is delivered between the two reads, this
        # method counts its elements as held, so the result may be too small but not too large.
        arrived, delivered = self._arrived, self._delivered
        demand = self._demand.value
        if demand <= 0 or self._completed:
            return 0
        room = self._n - (self._requested - delivered)
        if self._max_bytes is not None:
            batches = demand - (1 if arrived > delivered else 0)
            room = min(room, max(batches, 1) - (self._requested - arrived))
        return min(room, UNBOUNDED)

    def _drop_references(self) -> None:
        self._inbox.clear()
        self._batch = []
        self._delivered, self._delivered_bytes = self._arrived, self._arrived_bytes
        self._weigher = None
        if self._deadline is not None:
            self._deadline.close()
