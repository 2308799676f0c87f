"""An asynchronous boundary: a bounded ring, filled by upstream, drained on a resource.

``upstream -> | ring | -> stages -> subscriber``. All of the right side runs on the resource, and
so does every ``request`` to upstream: a synchronous upstream works there too, and neither
``subscribe`` nor ``request`` nor ``cancel`` ever does.

What the prefetch counts: an element is asked for only when there is a place for it, and gives its
place back after the subscriber has had it. So no more than ``prefetch`` elements are in the ring,
in the burst that is being delivered, and on their way, together.

In bytes only what has arrived can be counted. With ``max_bytes`` one element is asked for at a
time, while less than that is held; so the bound is ``max_bytes`` plus one element, and a single
element larger than ``max_bytes`` passes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from rstreams_fast._checks import (
    Weigher,
    check_bool,
    check_capacity,
    check_weigher,
    describe_callable,
    safe_repr,
    weigh,
)
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, RunStatus, SpscRing
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.runtime.executors import CALLER, check_executor, describe_executor, resource
from rstreams_fast.streams.engine.boundary import StagesBoundary
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.queued_subscriber import QueuedSubscriber
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.engine.subscribing import subscribe_to

__all__ = ["AsyncBoundary", "AsyncBoundarySegment", "AsyncBoundarySubscription"]


class AsyncBoundary(StagesBoundary):
    """The arguments of ``Stream.publish_on``, checked."""

    one_to_one = True  # each element that leaves is one that has come

    def __init__(
        self,
        executor: Any,
        prefetch: int,
        max_bytes: int | None,
        weigher: Weigher | None,
        delay_error: bool,
    ) -> None:
        check_executor(executor)
        self.executor = executor
        self.prefetch = check_capacity("prefetch", prefetch)
        self.max_bytes = check_weigher(max_bytes, weigher)
        self.weigher = weigher
        self.delay_error = check_bool("delay_error", delay_error)

    @property
    def subscription_type(self) -> type[AsyncBoundarySubscription]:
        """What carries it out."""
        return AsyncBoundarySubscription if self.max_bytes is None else _WeighedSubscription

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        """Return a publisher that subscribes to ``upstream``, and works on the executor."""
        return AsyncBoundarySegment(upstream, self, stages, need)

    def describe(self) -> str:
        return self.describe_within(Need())

    def describe_within(self, need: Need) -> str:
        """Say the same, where what is below can make use of ``need`` only."""
        prefetch = min(self.prefetch, max(need.at_once, 1))
        bound = f"at most {prefetch} elements"
        if self.max_bytes is not None and self.weigher is not None:
            bound += (
                f" and {safe_repr(self.max_bytes)} bytes + one element, "
                f"weighed by {describe_callable(self.weigher)}"
            )
        late = ", errors after elements" if self.delay_error else ""
        return f"publish_on({describe_executor(self.executor)}): {bound}{late}"


class AsyncBoundarySegment:
    """Publishes, on a resource, what ``program`` makes of the elements of ``upstream``."""

    def __init__(
        self, upstream: Publisher[Any], options: AsyncBoundary, program: Stages, need: Need
    ) -> None:
        self._upstream = upstream
        self._options = options
        self._program = program
        self._need = need

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Subscribe to upstream on behalf of ``subscriber``; ask for nothing on this thread."""
        kind = self._options.subscription_type
        try:
            subscription = kind(subscriber, self._options, self._program, self._need)
        except MemoryError as error:  # of the buffer, which may be as large as one likes
            refuse(subscriber, error)
            return
        subscribe_to(self._upstream, subscription)
        subscription.start()

    @property
    def where(self) -> str:
        """On which resource the work is done."""
        return describe_executor(self._options.executor)


class AsyncBoundarySubscription(QueuedSubscriber):
    """The ring, and the drain below it. ``start`` is to be called once, see there."""

    __slots__ = (
        "_acknowledged",
        "_at_once",
        "_budget",
        "_ended",
        "_enough",
        "_name",
        "_prefetch",
        "_ready",
        "_replenish_at",
        "_started",
        "_takes_nothing",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], options: AsyncBoundary, program: Stages, need: Need
    ) -> None:
        super().__init__(
            subscriber,
            resource(options.executor),
            delay_error=options.delay_error,
            total=need.total,
        )
        self._prefetch = min(options.prefetch, max(need.at_once, 1))
        self._replenish_at = replenish_at(self._prefetch)
        self._budget = need.total
        self._acknowledged = 0  # elements consumed for which others have been asked
        self._started = False
        self._ready = DemandCounter()
        self._takes_nothing = program.takes_nothing
        self._name = options.describe_within(need)
        self._waits = Waits()
        self._ended = False  # nothing more is taken from the ring
        self._enough = False  # because a stage has had all that it takes
        self._queue = self._new_queue()
        self.ring = self._queue
        # The first element in an empty ring wakes the drain: a source that waits in the middle of
        # a burst keeps nothing back. A drain on the caller has to wait for the burst's end.
        self._at_once = options.executor != CALLER
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self._source(), self._stages(program.stages), slot, self._demand)

    @property
    def works_when_asked(self) -> bool:
        """Whether a request may take as long as what it asks for: where the caller drains."""
        return not self._at_once and self._upstream.works_when_asked

    def _new_queue(self) -> Any:
        return SpscRing(self._prefetch)

    def _source(self) -> Any:
        """What the run takes from."""
        return self._queue

    # -- signals from upstream -------------------------------------------------------------------

    def _begin(self) -> None:
        if self._introduce():
            self.start()

    def start(self) -> None:
        """Begin to drain, when ``on_subscribe`` came and ``subscribe`` returned.

        Before that, a synchronous upstream still holds its drain on the subscribing thread, and
        would serve there what we ask for.
        """
        if self._ready.request(1) == 1:
            self._go()

    def on_burst(self) -> None:
        """See what was put in the ring, unless its first element says so itself."""
        if not self._at_once:
            self._enter()

    # -- the drain -------------------------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        if self._ended:
            return self._finish(run)
        if self._late_error is not None and self._overtakes(run.pulled + len(self._queue)):
            return self._end_late()
        if not self._started:
            self._started = True
            if self._takes_nothing:
                return self._end(run, enough=True)
            self._first_ask()
        self._waits.end()
        completed = self._completed  # read before the ring: then an empty one is the end
        status = self._burst_on(run)
        self._replenish(run)
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.IDLE or status is RunStatus.EXHAUSTED:
            if completed and self._empty():
                return self._end(run)
            self._waits.begin(for_demand=status is RunStatus.IDLE)
            # The caller does nothing that nobody has asked for.
            if (status is RunStatus.EXHAUSTED or self._at_once) and self._request_for_a_turn():
                return True
            # Without demand nobody need be woken by an element; a request does it.
            exhausted = status is RunStatus.EXHAUSTED
            return exhausted and self._at_once and not self._queue.arm(self._enter)
        if status is RunStatus.ENDED:
            return self._end(run, enough=True)
        return self._answer(status, run)

    def _empty(self) -> bool:
        """Whether nothing that has come is left."""
        return len(self._queue) == 0

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What this boundary holds and waits for, then those above."""
        mine = self._waits.metrics(
            self._demand,
            name=self._name,
            held=len(self._queue),
            max_held=self._prefetch,
            held_bytes=self._held_bytes(),
        )
        return (mine, *super().metrics())

    def _held_bytes(self) -> int | None:
        return None

    def _end(self, run: FusedRun, *, enough: bool = False) -> bool:
        self._ended = True
        self._enough = enough  # an error that comes now comes after the elements that were enough
        self._upstream.cancel()  # no effect if it was upstream that ended
        return self._finish(run)

    def _finish(self, run: FusedRun) -> bool:
        if self._late_error is not None and not self._enough:
            return self._end_late()
        status = self._flush(run)
        return False if status is RunStatus.IDLE else self._answer(status, run)

    def _first_ask(self) -> None:
        self._ask(self._prefetch)

    def _replenish(self, run: FusedRun) -> None:
        consumed = run.pulled - self._acknowledged
        if consumed >= self._replenish_at:
            self._acknowledged += consumed
            self._ask(consumed)

    def _ask(self, n: int) -> None:
        n = min(n, self._budget)
        if n > 0:
            if self._budget != UNBOUNDED:
                self._budget -= n
            self._request(n)

    def _request(self, n: int) -> None:
        self._request_for_a_turn(n)


class _WeighedSubscription(AsyncBoundarySubscription):
    """Counts bytes, too: one element is asked for at a time, while fewer than ``max_bytes`` are
    held.

    The right to ask is a lock: taken as long as an element is outstanding, it passes from the
    drain to the thread that upstream signals on, and back when there is no room. So upstream goes
    on while a slow element is being worked on, and still no two requests overlap (§2.7).
    """

    __slots__ = (
        "_arrived",
        "_deciding",
        "_expected",
        "_gone",
        "_max_bytes",
        "_outstanding",
        "_weigher",
        "_weights",
    )

    def __init__(
        self, subscriber: Subscriber[Any], options: AsyncBoundary, program: Stages, need: Need
    ) -> None:
        super().__init__(subscriber, options, program, need)
        self.turns = None  # the holder of the right asks, on any thread
        self.ring = None  # elements come one by one, as they must be weighed
        self._max_bytes = options.max_bytes or 0
        self._weigher: Weigher | None = options.weigher
        self._weights: deque[int] = deque()  # of the elements held, oldest first
        self._arrived = 0  # bytes, counted by upstream's thread
        self._gone = 0  # bytes, counted by the drain
        self._outstanding = threading.Lock()
        self._expected = DemandCounter()  # asked for, and not come yet: one at most
        self._deciding = DemandCounter()  # WIP of asking: on_next may come before request returns

    def _accept(self, element: Any) -> bool:
        weigher = self._weigher
        if weigher is None:
            return True
        try:
            self._expected.fulfil(1)
        except DemandExceededError:
            return False
        try:
            weight = weigh(weigher, element)
        except Exception as raised:
            self._fail(raised)
            return True
        self._weights.append(weight)
        self._arrived += weight
        if not self._queue.offer(element):
            return False
        self._decide()
        return True

    def _decide(self) -> None:
        """Ask for the next element or leave the right to ask; for the holder of that right."""
        if self._deciding.request(1) != 0:
            return  # nested in the request below, or beside it: decided there
        while True:
            gone = self._acknowledged
            if len(self._weights) < self._prefetch and self._arrived - self._gone < self._max_bytes:
                self._ask(1)
            else:
                self._outstanding.release()
                # The drain may have made room meanwhile, and found the right to ask taken.
                if gone != self._acknowledged and self._outstanding.acquire(blocking=False):
                    continue
            if self._deciding.fulfil(1) == 0:
                return

    def _request(self, n: int) -> None:
        self._expected.request(n)
        super()._request(n)

    def _first_ask(self) -> None:
        if self._outstanding.acquire(blocking=False):
            self._decide()

    def _replenish(self, run: FusedRun) -> None:
        while self._acknowledged < run.pulled:
            self._gone += self._weights.popleft()
            self._acknowledged += 1  # says that there is room, so it comes last
        self._first_ask()

    def _held_bytes(self) -> int | None:
        return self._arrived - self._gone

    def _burst_on(self, run: FusedRun) -> RunStatus:
        self._burst = 1  # so that an element's bytes are given back as soon as it is done
        return super()._burst_on(run)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._weigher = None
