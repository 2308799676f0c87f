"""``publish_on``: upstream puts elements in a bounded ring, and an executor takes them out.

``upstream -> ring -> stages -> subscriber``. Everything to the right of the ring, and each
``request`` to upstream, runs on the *resource*: an executor, an event loop or a thread. So a
synchronous upstream works on the resource, too. The threads that call ``subscribe``, ``request`` or
``cancel`` do none of this work.

``prefetch`` bounds the elements that were requested from upstream and not delivered yet. So an
element is requested only when the ring has room for it. The delivery of an element makes room for
another element.

``max_bytes``, a bound in bytes, can only include elements that have arrived: see ``WeighedQueue``.
"""

from __future__ import annotations

from typing import Any, Protocol

from rstreams_fast._checks import (
    Weigher,
    check_bool,
    check_capacity,
    check_weigher,
    describe_callable,
    safe_repr,
)
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import FusedRun, RunStatus, SpscRing, Wip
from rstreams_fast.errors import BufferOverflowError
from rstreams_fast.runtime.executors import CALLER, check_executor, describe_executor, resource
from rstreams_fast.streams.engine.boundary import RingSubscriber, StagesBoundary
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.engine.trampoline import subscribe_to
from rstreams_fast.streams.operators.boundary_queues import (
    BoundaryQueue,
    ElementQueue,
    WeighedQueue,
)

__all__ = ["AsyncBoundary", "AsyncBoundarySegment", "AsyncBoundarySubscription"]


class AsyncBoundary(StagesBoundary):
    one_to_one = True

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

    def new_queue(self, subscription: AsyncBoundarySubscription, need: Need) -> BoundaryQueue:
        capacity = self._capacity(need)
        if self.max_bytes is None or self.weigher is None:
            return ElementQueue(capacity, need.total, subscription._request_for_a_turn)
        return WeighedQueue(
            capacity,
            need.total,
            self.max_bytes,
            self.weigher,
            request=subscription._request,
            fail=subscription._fail,
            turns=subscription.turns,
        )

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        return AsyncBoundarySegment(upstream, self, stages, need)

    def describe(self) -> str:
        return self.describe_within(Need())

    def describe_within(self, need: Need) -> str:
        bound = f"at most {self._capacity(need)} elements"
        if self.max_bytes is not None and self.weigher is not None:
            bound += (
                f" and {safe_repr(self.max_bytes)} bytes + one element, "
                f"weighed by {describe_callable(self.weigher)}"
            )
        late = ", errors after elements" if self.delay_error else ""
        return f"publish_on({describe_executor(self.executor)}): {bound}{late}"

    def _capacity(self, need: Need) -> int:
        return min(self.prefetch, max(need.at_once, 1))


class BoundaryOptions(Protocol):
    """Interface of the options that ``AsyncBoundarySubscription`` uses."""

    executor: Any
    delay_error: bool

    def new_queue(self, subscription: AsyncBoundarySubscription, need: Need, /) -> BoundaryQueue:
        """Return a queue that requests and holds the elements for ``subscription``.

        ``need``: the most elements that downstream can use in the whole stream; 5 for ``take(5)``.
        """

    def describe_within(self, need: Need, /) -> str:
        """Return one line with the boundary's name, its executor and the size of its queue.

        ``need``: the most elements that downstream can use in the whole stream; 5 for ``take(5)``.
        """


class AsyncBoundarySegment:
    """A publisher that passes elements of ``upstream`` through stages, on an executor.

    ``program``: the stages. ``need``: the most elements that downstream can use; 5 for ``take(5)``.
    """

    def __init__(
        self, upstream: Publisher[Any], options: BoundaryOptions, program: Stages, need: Need
    ) -> None:
        self._upstream = upstream
        self._options = options
        self._program = program
        self._need = need

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Subscribe to upstream for ``subscriber``. The executor makes the requests later."""
        try:
            subscription = AsyncBoundarySubscription(
                subscriber, self._options, self._program, self._need
            )
        except MemoryError as error:  # not enough memory for the ring
            refuse(subscriber, error)
            return
        subscribe_to(self._upstream, subscription)
        subscription.start()

    @property
    def where(self) -> str:
        """A text that names the threads on which elements are delivered."""
        return describe_executor(self._options.executor)


class AsyncBoundarySubscription(OperatorSubscriber, RingSubscriber):
    """Subscribes to upstream, queues elements, and delivers the elements on the executor.

    The code that makes this object must call ``start`` after upstream's ``subscribe`` has returned.
    """

    __slots__ = (
        "_at_once",
        "_delay_error",
        "_ended",
        "_enough",
        "_input",
        "_queue",
        "_ready",
        "_started",
        "_takes_nothing",
        "_total",
        "ring",
    )

    def __init__(
        self, subscriber: Subscriber[Any], options: BoundaryOptions, program: Stages, need: Need
    ) -> None:
        super().__init__(subscriber, resource(options.executor))
        self._begin_turns(on_threads=options.executor != CALLER)
        self._delay_error = options.delay_error
        self._total = need.total  # the most elements that downstream can use; 5 for ``take(5)``
        self._started = False
        # ``start`` is called twice: when upstream has called on_subscribe, and when upstream's
        # ``subscribe`` has returned. ``_ready`` recognizes the second call, which begins the work.
        self._ready = Wip()
        self._takes_nothing = program.takes_nothing
        self._ended = False  # whether no more elements are taken from the queue
        self._enough = False
        self._queue = options.new_queue(self, need)
        self._input = self._queue.input
        self._waits = Waits(options.describe_within(need), self._queue.capacity)
        self.ring: SpscRing | None = self._input.elements if self._queue.direct else None
        # ``_at_once``: with an executor, the first element in the empty ring starts the delivery,
        # because the next element may come much later. Without an executor (``CALLER``), only
        # ``on_burst`` starts it, which upstream calls after several elements.
        self._at_once = options.executor != CALLER
        slot = self._slot_by_bursts(subscriber)
        if self._queue.one_by_one:
            self._grows = False
            self._burst = 1
        stages = self._wrap_stages(program.stages)
        self._run = FusedRun(self._queue.source(), stages, slot, self._demand)

    @property
    def works_in_request(self) -> bool:
        """Whether ``request`` may deliver elements before it returns.

        This is possible only with the executor ``CALLER`` (no executor).
        """
        return not self._at_once and self._upstream.works_in_request

    # -- signals from upstream ---------------------------------------------------------------------

    def _begin(self) -> None:
        if self._signal_on_subscribe():
            self.start()

    def start(self) -> None:
        """Start work on the executor, at the second call of this method.

        ``on_subscribe`` makes one call. The other call is made after upstream's ``subscribe`` has
        returned. If work started earlier, its first request might reach upstream within
        ``subscribe``: a synchronous upstream would send its elements on the subscribing thread.
        """
        if not self._ready.enter():
            self._start_drain()

    def on_next(self, element: Any, /) -> None:
        if self._add_element(element, self._input.accept):
            self.on_burst()

    def on_burst(self) -> None:
        """Start the delivery of the elements that upstream has put in the ring."""
        if not self._at_once:  # otherwise the first element in the ring has started the delivery
            self._enter()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error immediately, without the elements in the queue.

        With ``delay_error`` the elements are delivered before the error. They are also delivered
        first if downstream uses only ``_total`` elements (as ``take(n)`` does) and upstream has
        sent ``_total`` elements.
        """
        if self._delay_error or self._total != UNBOUNDED:
            self._keep_error(error)
        else:
            super().on_error(error)

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run, queue = self._run, self._queue
        if run is None:
            return False
        if self._ended:
            return self._finish(run)
        if (
            self._late_error is not None
            and not self._delay_error
            and run.pulled + len(self._input.elements) < self._total
        ):
            return self._end_late()
        if not self._started:
            self._started = True
            if self._takes_nothing:
                return self._end(run, enough=True)
            queue.first_request()
        self._waits.end()
        # Read ``_completed`` before the queue. In the other order, elements and the completion
        # could arrive between the two reads, and these elements would be lost.
        completed = self._completed
        status = self._burst_on(run)
        queue.replenish(run.pulled)
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.IDLE or status is RunStatus.EXHAUSTED:
            if completed and queue.is_empty():
                return self._end(run)
            self._waits.begin(for_demand=status is RunStatus.IDLE)
            # Request the elements that an earlier turn (a time slice of 1 ms) did not request.
            # Without an executor (``CALLER``) do so only if there is demand: this is a caller's
            # thread, which should not work for elements that nobody has requested.
            if (status is RunStatus.EXHAUSTED or self._at_once) and self._request_for_a_turn():
                return True
            # If there is demand, ``arm`` makes the next element start the delivery. If there is no
            # demand, the subscriber's next request starts the delivery.
            exhausted = status is RunStatus.EXHAUSTED
            return exhausted and self._at_once and not self._input.elements.arm(self._enter)
        if status is RunStatus.ENDED:
            return self._end(run, enough=True)
        return self._end_with_status(status, run)

    def _end(self, run: FusedRun, *, enough: bool = False) -> bool:
        self._ended = True
        # ``enough``: the stages below the ring, such as ``take``, need no more elements. Then an
        # error of upstream does not fail the stream.
        self._enough = enough
        self._upstream.cancel()  # a cancel has no effect if upstream has ended
        return self._finish(run)

    def _finish(self, run: FusedRun) -> bool:
        late = self._late_error
        if late is not None and not self._enough:
            return self._end_late()
        if isinstance(late, BufferOverflowError):
            # The stages need no more elements, so the stream completes, and upstream's error is
            # only reported to ``on_dropped_error``. An overflow is not reported: nobody needs the
            # lost elements.
            self._late_error = None
        return self._finish_run(run)

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        held = len(self._input.elements)
        mine = self._waits.metrics(self._demand.value, held, self._queue.held_bytes)
        return (mine, *super().metrics())

    def _drop_references(self) -> None:
        super()._drop_references()
        self.ring = None
        self._queue.drop()
