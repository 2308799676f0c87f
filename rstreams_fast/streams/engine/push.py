"""A subscription that subscribes to a publisher and passes its elements through fused stages.

Each element is processed on the thread that signals the element. The publisher may call ``on_next``
within ``request``. The publisher may even break the rules of Reactive Streams: it may signal from
several threads at the same time, send ``None`` or too many elements, signal after its end, or call
``on_subscribe`` twice. Downstream never sees that a rule was broken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Subscriber, Subscription
from rstreams_fast.core import MISSING, DemandCounter, FusedRun, RunStatus, Wip
from rstreams_fast.errors import DemandExceededError, check_request
from rstreams_fast.streams.engine.operator_subscriber import TOO_MANY, OperatorSubscriber
from rstreams_fast.streams.engine.signals import check_error_signal
from rstreams_fast.streams.engine.stages import Stages

__all__ = ["PushObserver", "PushSubscription", "UpstreamCalls"]


class PushObserver(Protocol):
    """An object that a ``PushSubscription`` informs about requests and deliveries."""

    def wrap_on_next(self, on_next: Callable[[Any], object], /) -> Callable[[Any], object]:
        """Return a wrapper of the subscriber's ``on_next``. Stages pass results to the wrapper."""

    def before_request(self, demand: int, /) -> None:
        """Prepare for a request. ``demand`` is the unfulfilled demand before the request."""

    def demand_rose(self) -> None:
        """React to a request that has raised the unfulfilled demand from zero."""

    def close(self) -> None:
        """Drop all references, because the stream has ended."""


class UpstreamCalls(Protocol):
    """Chooses the threads on which one ``PushSubscription`` makes its calls to upstream."""

    def is_ready(self) -> bool:
        """Return whether requests to upstream may be made now, during upstream's ``on_subscribe``.

        If the result is false, this object must later call ``subscription._make_requests``, for
        example when upstream's ``subscribe`` has returned.
        """

    def schedule_requests(self, subscription: PushSubscription, /) -> None:
        """Call ``subscription._make_requests``, now or later, on any thread."""

    def make_call(self, subscription: PushSubscription, call: Callable[[], object], /) -> None:
        """Run ``call``, which makes one call to upstream. Called by ``_make_requests``."""

    def close(self) -> None:
        """Close the executor on which the calls to upstream were made: the stream has ended."""


class PushSubscription(OperatorSubscriber):
    """Subscribes to upstream, and is the subscription of the subscriber below the fused stages.

    There are two kinds of work, each done by one thread at a time. The drain loop signals
    downstream. The other work is to make requests to upstream: the ``Wip`` in ``_requesting`` lets
    one thread at a time make requests. This thread must first leave the drain loop, because
    upstream may call ``on_next`` before ``request`` returns.

    Args:
        subscriber: The subscriber below the stages.
        program: The stages.
        observer: A function that makes a ``PushObserver``, which this object informs about requests
            and deliveries.
        early: Whether ``start`` signals ``on_subscribe`` downstream. By default, ``on_subscribe``
            is signalled downstream when upstream has signalled ``on_subscribe``.
        calls: The object that makes the calls to upstream. By default, the thread that requests
            elements makes the calls.
    """

    __slots__ = (
        "_backlog",
        "_budget",
        "_calls",
        "_direct",
        "_early",
        "_ended",
        "_observer",
        "_open",
        "_outstanding",
        "_pending",
        "_ratio",
        "_replacements",
        "_requesting",
        "_requests_left",
        "_seed",
        "_seed_count",
        "_unbounded",
    )

    def __init__(
        self,
        subscriber: Subscriber[Any],
        program: Stages,
        observer: Callable[[PushSubscription], PushObserver] | None = None,
        *,
        early: bool = False,
        calls: UpstreamCalls | None = None,
    ) -> None:
        super().__init__(subscriber, None)
        self._early = early
        self._calls = calls
        if calls is not None:
            # ``turns`` limits how long requests occupy an event loop. No limit is needed here,
            # because ``calls`` makes the requests on another thread.
            self.turns = None
        self._observer = None if observer is None else observer(self)
        on_next: Callable[[Any], object] = subscriber.on_next
        if self._observer is not None:
            on_next = self._observer.wrap_on_next(on_next)
        stages = program.stages if self.custody is None else self._wrap_stages(program.stages)
        run = FusedRun(None, stages, on_next, self._demand)
        self._run = run
        self._ratio = run.ratio
        self._seed = program.seed
        # A seed (the initial value of ``scan``) is the first element of the stream. So if there is
        # a seed, request one element less from upstream.
        self._seed_count = 0 if program.seed is MISSING else 1
        limits = program.limits
        self._budget = DemandCounter(limits.budget)
        self._requests_left = limits.most  # how many elements may still be requested from upstream
        self._outstanding: DemandCounter | None = DemandCounter() if limits.drops else None
        self._replacements = 0
        self._pending = DemandCounter()
        # ``_requesting`` lets one thread at a time make requests to upstream. ``held=True`` lets no
        # thread do so before on_subscribe has returned.
        self._requesting = Wip(held=True)
        self._unbounded = False
        self._backlog: deque[Any] = deque()
        self._open = True  # whether on_next accepts elements
        self._ended = program.takes_nothing
        # ``_direct``: whether on_next may process an element without queueing it. If there is a
        # seed (the initial value of ``scan``), ``_direct`` is false until the seed is sent. If the
        # stages take no elements, as with ``take(0)``, ``_direct`` is always false.
        self._direct = program.seed is MISSING and not program.takes_nothing

    # -- the methods of the subscription -----------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Add demand for ``n`` results of the stages, and request elements from upstream."""
        try:
            # Convert ``n`` only once: its ``__index__`` can return another number at a second call.
            n = check_request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        observer = self._observer
        if observer is not None:
            observer.before_request(self._demand.value)
        before = self._add_demand(n)
        if before < 0:
            return
        if before == 0 and observer is not None:
            observer.demand_rose()
        # Deliver the seed (initial value of ``scan``), or elements that stages hold at the end.
        if before == 0 and (self._completed or self._ended or self._seed is not MISSING):
            self._enter()
        self._add_request(min(n * self._ratio, UNBOUNDED))

    # -- signals from upstream -------------------------------------------------------------------

    def start(self) -> bool:
        """Signal ``on_subscribe`` downstream. Return false if the subscriber raised.

        If upstream signals during this call, its signals are passed on after ``on_subscribe`` has
        returned.
        """
        started = self._signal_on_subscribe()
        if started:
            self._start_drain()
        return started

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Keep the first subscription, and make the pending requests. Cancel later ones (§2.5)."""
        if not self._early:
            super().on_subscribe(subscription)
        elif self._upstream.attach(subscription) and (
            self._calls is None or self._calls.is_ready()
        ):
            self._start_requests()

    def _begin(self) -> None:
        if self.start():
            self._make_requests()

    def _begin_late(self) -> None:
        if not self._early:
            super()._begin_late()

    def on_next(self, element: Any, /) -> None:
        """Process ``element``. If another element is being processed, queue ``element`` (§2.11)."""
        self._check_element(element)
        if not self._open:
            self._upstream.on_late_element()
            return
        wip = self._wip
        if not wip.enter():
            # The drain loop is already running: on another thread, or in an outer call on this
            # thread (it has called on_next, and a request within on_next has led to this call). The
            # drain loop takes the element from _backlog.
            if not self._upstream.attached:
                self._too_early()
            elif self._most_coming() > len(self._backlog):
                self._backlog.append(element)
                self._enter()
            else:
                self._fail(DemandExceededError(TOO_MANY))
            return
        run = self._run
        if run is None or self._backlog or not self._direct:
            self._backlog.append(element)
        else:
            try:
                status = run.push(element)
                if self._outstanding is not None:
                    self._count_received(self._outstanding, status, run)
                goes_on = status is RunStatus.MORE or status is RunStatus.DROPPED
                if not goes_on:
                    self._act_on(status, run)
            except BaseException as leaving:
                self._interrupted(leaving)
                raise
            if goes_on:
                added = self._replacements and self._add_replacements()
                if wip.leave():
                    if added:
                        self._enter_requesting()
                    return
        del element
        self._drain()  # handle the events of threads that have entered the drain meanwhile

    def _most_coming(self) -> int:
        """Return how many elements, at most, are still to be processed.

        These are the elements in ``_backlog``, and the requested elements that have not come yet.
        After the end of the stream, return ``UNBOUNDED``: then ``on_next`` accepts any element, and
        the drain loop drops the element.
        """
        demand, outstanding = self._demand.value, self._outstanding
        if demand < 0:
            return UNBOUNDED
        # If stages can drop elements, ``_outstanding`` counts the elements still to be processed.
        # Otherwise it is None, and each result needs ``_ratio`` elements (5 with ``batch(5)``).
        return demand * self._ratio if outstanding is None else outstanding.value

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error after the earlier elements, even without demand (§2.10)."""
        check_error_signal(self, error)
        self._open = False
        self._fail_after_elements(error)

    def on_complete(self) -> None:
        """Signal ``on_complete`` after all elements, including those that stages still hold."""
        self._open = False
        super().on_complete()

    # -- the drain: delivering elements ------------------------------------------------------------

    def _drain(self) -> None:
        super()._drain()
        if self._outstanding is not None and self._pending.value and not self._unbounded:
            self._enter_requesting()

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        if self._seed is not MISSING and self._demand.value > 0:
            seed, self._seed = self._seed, MISSING
            self._direct = not self._ended
            if self.custody is not None:
                self.custody.enter(seed)
            status = run.push(seed)
            if status is RunStatus.DROPPED:
                self._replacements += run.refund
            elif status is not RunStatus.MORE:
                return self._act_on(status, run)
        # Read _completed and _late_error before _backlog: upstream sets one of these fields after
        # its last element. So if a field is set here, _backlog contains all elements that are left.
        completed, error = self._completed, self._late_error
        while self._backlog and not self._ended:
            status = run.push(self._backlog.popleft())
            if self._outstanding is not None:
                self._count_received(self._outstanding, status, run)
            if status is not RunStatus.MORE and status is not RunStatus.DROPPED:
                return self._act_on(status, run)
        if self._ended:
            return self._act_on(RunStatus.ENDED, run)
        if error is not None:
            return self._end_late()
        if completed and self._seed is MISSING:
            return self._act_on(RunStatus.ENDED, run)
        if self._replacements:
            self._add_replacements()
        return False

    def _act_on(self, status: RunStatus, run: FusedRun) -> bool:
        if status is RunStatus.ENDED:
            self._ended = True
            self._open = self._direct = False
            self._backlog.clear()
            self._upstream.cancel()
            status = run.finish()
            if status is RunStatus.IDLE:
                return False
        return self._end_with_status(status, run)

    def _stop(self) -> None:
        self._open = False
        super()._stop()

    def _act_on_end(self) -> bool:
        super()._act_on_end()
        self._backlog.clear()  # an element may have come since _drop_references() cleared _backlog
        return False

    def _drop_references(self) -> None:
        self._open = False
        self._seed = MISSING
        self._backlog.clear()
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()
        if self._calls is not None:
            self._calls.close()

    # -- requests to upstream ----------------------------------------------------------------------

    def _count_received(self, outstanding: DemandCounter, status: RunStatus, run: FusedRun) -> None:
        """Count a processed element. If a stage dropped it, note how many must replace it."""
        if outstanding.value > 0:
            outstanding.fulfil(1)
        if status is RunStatus.DROPPED and not self._unbounded:
            self._replacements += run.refund

    def _add_replacements(self) -> bool:
        """Add ``_replacements`` to the elements to request, and return true.

        ``_replacements`` is the number of elements that must replace elements that stages dropped.
        If ``_replacements`` is less than the number of requested elements that are still to come,
        do nothing and return false: one large request costs less than many small requests. If the
        result is true, the caller must leave the drain loop, and then make the request.
        """
        outstanding = self._outstanding
        if outstanding is not None and self._replacements < outstanding.value:
            return False
        added, self._replacements = self._replacements, 0
        self._budget.request(added)
        self._pending.request(added)
        return True

    def _add_request(self, n: int) -> None:
        self._pending.request(n)
        self._enter_requesting()

    def _enter_requesting(self) -> None:
        if self._requesting.enter():
            self._start_requests()

    def _start_requests(self) -> None:
        """Make the pending requests. Only a thread that holds ``_requesting`` may call this."""
        if self._calls is None:
            self._make_requests()
        else:
            self._calls.schedule_requests(self)

    def _make_requests(self) -> None:
        requesting, pending, turns = self._requesting, self._pending, self.turns
        while True:
            missed = requesting.missed
            n = pending.value
            budget = self._budget.value
            if n == UNBOUNDED:
                if budget == UNBOUNDED:
                    n = 0 if self._unbounded else UNBOUNDED
                    self._unbounded = True
            elif n:
                pending.fulfil(n)
                n, self._seed_count = n - self._seed_count, 0
            n = min(n, budget, self._requests_left)
            if n > 0 and not self._upstream.over:
                self._budget.fulfil(n)
                if self._requests_left != UNBOUNDED:
                    self._requests_left -= n
                if self._outstanding is not None:
                    self._outstanding.request(n)
                if self._calls is None:
                    self._request(n)
                else:
                    self._calls.make_call(self, partial(self._request, n))
            if requesting.leave(missed):
                return
            if turns is not None and turns.is_over():
                self._pause(requesting, turns)
                return

    def resume(self) -> None:
        super().resume()
        self._enter_requesting()
