"""The drain: the loop of a subscription that delivers elements. One thread at a time runs the loop.

A thread with an event (a request, a cancel, an element, a terminal signal) stores the event in a
field that the drain loop reads. The thread then *enters* the drain: it adds 1 to the work in
progress (WIP). The thread that changes WIP from 0 to 1 *holds* the drain: it runs the loop until it
has handled the events of all threads that have entered. The other threads return immediately. So
signals never overlap (§1.3), a request within ``on_next`` never nests (§3.3), and no thread waits.
On an event loop, the drain loop works for one *turn* (a time slice of 1 ms) at a time.

If calls from subscriber to subscriber fill the stack, the ``RecursionError`` propagates through all
these calls, as ``KeyboardInterrupt`` does, because a full stack has no room to report the error.

The demand counter decides how a stream ends: exactly one call of its ``cancel()`` or
``terminate()`` returns true. To end the stream with an error, a thread calls ``terminate()``. If
the result is true, the thread stores the error in ``_failure`` and enters the drain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from time import perf_counter
from typing import Any, ClassVar

from rstreams_fast.api import Subscriber
from rstreams_fast.core import CANCELLED, DemandCounter, FusedRun, RunStatus, Wip
from rstreams_fast.errors import report_dropped
from rstreams_fast.runtime.executors import Resource, Trampoline, process_id
from rstreams_fast.runtime.turns import TURN_SECONDS, Turns
from rstreams_fast.streams.engine.boundary import (
    FunctionSubscriber,
    ListSubscriber,
    RingSubscriber,
)
from rstreams_fast.streams.engine.chain import drop, take_over_attributes
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import BURST, CALLER_BURST, next_burst
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import forked, interrupts, report_late, silent

__all__ = ["Drain"]


class Drain:
    """A subscription, and the loop that delivers elements to its subscriber.

    Subclasses override ``_work``, ``_stop`` and ``_drop_references``. The loop runs on the executor
    ``resource``. If ``resource`` is ``None``, the loop runs on the thread that makes a request or
    sends an element.
    """

    __slots__ = (
        "__weakref__",
        "_burst",
        "_context",
        "_demand",
        "_failure",
        "_grows",
        "_late_error",
        "_on_burst",
        "_pid",
        "_resource",
        "_run",
        "_subscriber",
        "_wip",
        "custody",
        "depth",
        "paused",
        "trampoline",
        "turns",
    )

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None

    #: ``_only_downstream_calls``: true if upstream never calls this object. Then an exception such
    #: as ``KeyboardInterrupt`` propagates out of ``request`` to downstream. If false, the exception
    #: is signalled to downstream by ``on_error``.
    _only_downstream_calls: ClassVar[bool] = True

    def __init__(self, subscriber: Subscriber[Any], resource: Resource | None) -> None:
        take_over_attributes(self, subscriber)
        self._subscriber: Subscriber[Any] | None = subscriber
        self._demand = DemandCounter()
        # ``held=True``: no thread delivers before on_subscribe has returned. So a request within
        # on_subscribe is served after that (§3.2).
        self._wip = Wip(held=True)
        self._run: FusedRun | None = None
        self._failure: BaseException | None = None
        #: ``_late_error`` is an error to signal after the waiting elements. If the stream ends
        #: before these elements are delivered, the error is reported to ``on_dropped_error``.
        self._late_error: BaseException | None = None
        self._resource = resource
        self._context: Context | None = None if resource is None else copy_context()
        self._pid = process_id()
        if resource is not None:
            self.turns = None
        self.paused = False
        # On an executor or event loop, other work can wait for this thread, and the processing of
        # one element can take long. So the first burst there has only one element. If the first
        # bursts are quick, later bursts have more elements.
        self._grows = resource is not None or self.turns is not None
        self._burst = 1 if self._grows else BURST
        self._on_burst: Callable[[], None] | None = None

    # -- the methods of the subscription, for any thread -------------------------------------------

    @property
    def works_in_request(self) -> bool:
        """Whether ``request`` can deliver the requested elements before it returns."""
        return self._resource is None

    def request(self, n: int, /) -> None:
        """Request ``n`` more elements (§3.8)."""
        # This code repeats _add_demand to save a call, because many subscribers call request in
        # each on_next.
        if self._pid != process_id():
            self._add_demand(n)
            return
        try:
            before = self._demand.request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        if before == 0:  # there was no demand, so the drain loop may have stopped: start it
            self._enter()

    def _add_demand(self, n: int) -> int:
        """Add ``n`` to the demand. Return the old demand, or a negative number after the end."""
        if self._pid != process_id():
            # This is a forked child. It does not have its parent's threads, which serve requests.
            if self._demand.value >= 0:
                self._fail(forked())
            return CANCELLED
        try:
            return self._demand.request(n)
        except Exception as refused:
            self._bad_request(refused)
            return CANCELLED

    def cancel(self) -> None:
        """Stop all signals (§1.8, §3.12), and drop the reference to the subscriber (§3.13)."""
        if self._demand.cancel():
            try:
                self._stop()
            finally:  # the stream must end even if an exception interrupts _stop()
                self._enter()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of this boundary and of the boundaries above, the nearest first."""
        return ()

    # -- entering the drain, and running its loop --------------------------------------------------

    def _enter(self) -> None:
        if self._wip.enter():
            self._start_drain()
        elif self._resource is not None and process_id() != self._pid:
            self._refused(forked())  # this forked child does not have the thread that delivers

    def _start_drain(self) -> None:
        """Run the drain loop now on this thread or, if there is an executor, later on the executor.

        Only the thread that holds the drain may call this (``_wip.enter()`` has returned true).
        """
        if self._resource is None:
            self._drain()
        else:
            self._schedule(self._resource)

    def _schedule(self, resource: Resource) -> None:
        try:
            if process_id() != self._pid:
                raise forked()
            resource.execute(self._turn, self._refused)
        except Exception as refused:
            self._refused(refused)
            if isinstance(refused, RecursionError):
                raise

    def _turn(self) -> None:
        """Deliver on the executor for at most ``TURN_SECONDS``. Then schedule the rest."""
        wip, context, resource = self._wip, self._context, self._resource
        if context is None or resource is None:
            return
        try:
            while True:
                missed = wip.missed
                # Only one thread at a time may be in a ``Context`` of contextvars. So leave
                # ``context`` first. ``wip.leave`` then lets another thread deliver in ``context``.
                if context.run(self._work_for_a_turn):
                    break
                if wip.leave(missed):
                    return
        except BaseException as leaving:
            self._interrupted(leaving)
            raise
        self._schedule(resource)

    def _work_for_a_turn(self) -> bool:
        """Deliver for at most ``TURN_SECONDS``. Return whether work is left."""
        until = perf_counter() + TURN_SECONDS
        while self._work():
            if perf_counter() >= until:
                return True
        return False

    def _refused(self, error: BaseException) -> None:
        """End the stream with ``error``, because the executor has refused to run the drain loop."""
        ended = self._demand.terminate()
        if ended:
            self._failure = error
        self._stop_and_leave_drain(ended)

    # -- the drain: delivering elements ------------------------------------------------------------

    def _drain(self) -> None:
        """Run the drain loop here until no work is left, or the turn (time slice) is over."""
        wip, turns = self._wip, self.turns
        try:
            while True:
                missed = wip.missed
                while self._work():
                    if turns is not None and turns.is_over():
                        self._pause(wip, turns)
                        return
                if wip.leave(missed):
                    return
        except BaseException as leaving:
            self._interrupted(leaving)
            raise

    def _pause(self, wip: Wip, turns: Turns) -> None:
        """Stop the work for now, because the turn (a time slice of 1 ms) is over.

        ``wip`` lets one thread at a time do this work: signals to downstream, or calls to
        publishers. The work goes on in the next turn, or earlier if another thread enters ``wip``.
        """
        turns.pause(wip, self)
        if self._demand.value < 0:  # a negative demand: the stream has ended, so clean up now
            self.resume()

    def resume(self) -> None:
        """Go on with the paused work, in a new turn (a time slice of 1 ms)."""
        self.paused = False
        self._enter()

    def _work(self) -> bool:
        """Deliver some elements, or handle the end of the stream. Return whether work is left."""
        raise NotImplementedError

    def _wrap_stages(self, stages: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
        """Return ``stages``, changed so that ``on_discard`` gets the elements that the stages drop.

        Call this only if ``custody``, the record of undelivered elements, contains each element
        before the stages get it: ``on_discard`` gets only recorded elements.
        """
        custody = self.custody
        return stages if custody is None else custody.wrap_stages(stages)

    def _gather(self, groups: list[Any]) -> list[Any]:
        """Record each list or tuple in ``groups`` as one undelivered element, for ``on_discard``.

        The members of the groups are no longer recorded. Return ``groups``.
        """
        custody = self.custody
        if custody is not None:
            for group in groups:
                custody.gather(group)
        return groups

    def _discard(self, elements: list[Any]) -> None:
        """Pass ``elements``, which the operator drops, to the hook of ``on_discard``."""
        custody = self.custody
        if custody is not None:
            custody.discard(elements)

    def _wrap_function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of ``fn``. If ``fn`` raises, ``on_discard``'s hook gets the argument."""
        custody = self.custody
        return fn if custody is None else custody.wrap_function(fn)

    def _burst_on(self, run: FusedRun) -> RunStatus:
        """Process a burst of elements in ``run``. If the burst was quick, enlarge the next one."""
        started = perf_counter() if self._grows else 0.0
        status = run.drain(self._burst)
        if self._on_burst is not None:
            self._on_burst()
        if not self._grows:
            return status
        full = status is RunStatus.MORE
        self._burst = next_burst(self._burst, perf_counter() - started, full=full)
        return status

    def _flush(self, run: FusedRun) -> RunStatus:
        """Deliver elements that stages hold when the source has ended, such as a partial batch."""
        status = run.finish()
        if self._on_burst is not None:
            self._on_burst()
        return status

    def _finish_run(self, run: FusedRun) -> bool:
        """Deliver the elements that stages still hold. If all are delivered, end the stream.

        Always return false, which tells the drain loop that no work is left for now.
        """
        status = self._flush(run)
        return False if status is RunStatus.IDLE else self._end_with_status(status, run)

    def _slot_by_bursts(self, subscriber: Subscriber[Any], *, waits: bool = False) -> Any:
        """Return the object to which a fused run (a loop of stages) passes its results.

        The object is the first of these that the subscriber has: a ring buffer, the ``append`` of a
        list, a ``slot`` (the user's function itself), or ``on_next``. Results stay in the list
        while the source waits for its next element. So the list is not used if the source can wait
        (``waits``) and the subscriber must get each result at once (``prompt``).
        """
        # Read ``subscriber.ring`` only once, because another thread can set it to ``None``.
        if isinstance(subscriber, RingSubscriber) and (ring := subscriber.ring) is not None:
            self._on_burst = subscriber.on_burst
            return ring
        if (
            isinstance(subscriber, ListSubscriber)
            and subscriber.takes_bursts
            and not (waits and subscriber.prompt)
        ):
            self._on_burst = subscriber.on_burst
            self._grows = True
            self._burst = 1
            return subscriber.burst.append
        if not self._grows:
            self._burst = CALLER_BURST
        if isinstance(subscriber, FunctionSubscriber) and (slot := subscriber.slot) is not None:
            return slot
        return subscriber.on_next

    def _interrupted(self, leaving: BaseException) -> None:
        """End the stream, because the exception ``leaving`` has interrupted the drain loop."""
        if self._resource is None and self._only_downstream_calls:
            ended = self._demand.cancel()
        else:
            # The exception, such as KeyboardInterrupt, propagates to the executor or to upstream,
            # but not to downstream. So it must also be signalled to downstream by on_error.
            ended = self._demand.terminate()
            if ended:
                self._failure = leaving
        self._stop_and_leave_drain(ended)
        if not ended and self._resource is not None and isinstance(leaving, RecursionError):
            # Report the RecursionError, because it may otherwise be lost: the stream had already
            # ended, so no subscriber gets the error by on_error, and the executor may ignore it.
            report_dropped(leaving, "§2.13: a subscriber filled the stack")

    def _stop_and_leave_drain(self, ended: bool) -> None:
        """Clean up after the end of the stream, and stop running the drain loop on this thread.

        If ``ended`` is true, this thread has just ended the stream: first cancel upstream.
        """
        try:
            if ended:
                self._stop()
        finally:  # the stream must end even if an exception interrupts _stop()
            self._leave_drain()

    def _leave_drain(self) -> None:
        """Clean up after the end of the stream, and stop running the drain loop on this thread.

        If another thread has stored an error meanwhile, and called ``_enter``, clean up again.
        """
        wip = self._wip
        while True:
            missed = wip.missed
            self._act_on_end()
            if wip.leave(missed):
                return

    # -- the end of the stream ---------------------------------------------------------------------

    def _end_with_status(self, status: RunStatus, run: FusedRun) -> bool:
        """End the stream, because ``run`` (the fused stages) has returned ``status``.

        Always return false, which tells the drain loop that no work is left.
        """
        if status is RunStatus.FAILED:
            error = run.error
            if error is not None:
                self._fail(error)
        elif status is RunStatus.SLOT_FAILED:
            if run.error is not None:
                self._on_next_raised(run.error)
            return self._act_on_end()
        elif status is RunStatus.DONE:
            return self._complete()
        return self._act_on_end()

    def _complete(self) -> bool:
        """Signal ``on_complete``, unless the stream has ended. Return false: no work is left."""
        if not self._demand.terminate():
            return self._act_on_end()
        try:
            self._stop()
        finally:  # the stream must end even if an exception interrupts _stop()
            self._signal_end(None)
        self._report_undelivered()
        return False

    def _on_next_raised(self, raised: BaseException) -> None:
        """Cancel the stream, and report the exception of the subscriber's ``on_next`` (§2.13).

        If the exception interrupts the stream (see ``interrupts``), raise it instead.
        """
        subscriber = self._subscriber
        if subscriber is not None and interrupts(raised, subscriber.on_next):
            raise raised
        try:
            if self._demand.cancel():
                self._stop()
            self._act_on_end()
        finally:
            report_dropped(raised, "§2.13: on_next raised")

    def _bad_request(self, refused: Exception) -> None:
        """Fail the stream with ``refused``, the error of an invalid ``request(n)`` (§3.9)."""
        # Remove the traceback, because it would keep the caller's frame and the subscriber alive.
        self._fail(refused.with_traceback(None))

    def _fail(self, error: BaseException) -> None:
        """End the stream with ``error``. Any thread may call this.

        If the stream has already ended, report ``error`` to ``on_dropped_error`` instead.
        """
        if not self.end_with(error):
            report_late(error)

    def end_with(self, error: BaseException) -> bool:
        """End the stream. The thread that delivers then signals ``error`` by ``on_error``.

        Return false if the stream has already ended. Any thread may call this.
        """
        ends = self._demand.terminate()
        if ends:
            self._stop_with(error)
        return ends

    def _stop_with(self, error: BaseException) -> None:
        """Cancel upstream. Then have the thread that delivers signal ``error``."""
        try:
            self._stop()
        finally:  # the stream must end even if an exception interrupts _stop()
            self._failure = error
            self._enter()

    def _end_late(self) -> bool:
        """Signal the error that waited for the last element. Return false: no work is left."""
        late, self._late_error = self._late_error, None
        if late is not None:
            self._fail(late)
        return self._act_on_end()

    def _act_on_end(self) -> bool:
        """If the stream has failed, signal ``on_error``. If it was cancelled, signal nothing.

        In both cases, drop the references to the subscriber, source and elements (§3.13). Always
        return false, which tells the drain loop that no work is left.
        """
        failure = self._failure
        # Clear _failure only if an error was read: another thread may have stored one since.
        if failure is not None:
            self._failure = None
            self._signal_end(failure)
        elif self._demand.cancelled:
            subscriber = self._subscriber
            try:
                self._drop_everything()
            finally:
                drop(subscriber)
        # If the stream has failed, but _failure is still None: the thread that called terminate()
        # soon stores the error, and calls _enter(), which leads to another call of this method.
        self._report_undelivered()
        return False

    def _report_undelivered(self) -> None:
        """Report the error in ``_late_error``, which came too late to be signalled.

        A thread that stores an error in ``_late_error`` calls ``_enter`` afterwards. ``_enter``
        leads to another call of this method. So no error is missed.
        """
        error = self._late_error
        # Clear _late_error only if an error was read: another thread may have stored one since.
        if error is not None:
            self._late_error = None
            report_late(error)

    def _signal_end(self, error: BaseException | None) -> None:
        """Drop all references, and signal ``error``, or completion if ``error`` is ``None``.

        If there is no subscriber any more, report ``error`` to ``on_dropped_error`` instead.
        """
        subscriber = self._subscriber
        try:
            self._drop_everything()
        finally:  # signal the end even if a clean-up raises an exception such as SystemExit
            if subscriber is None:
                if error is not None:
                    report_late(error)
            elif error is None:
                silent(subscriber.on_complete)
            else:
                silent(subscriber.on_error, error)

    def _drop_everything(self) -> None:
        """Drop all references, also that to the subscriber (§3.13)."""
        subscriber, self._subscriber = self._subscriber, None
        self._on_burst = None
        run, self._run = self._run, None
        if run is not None:
            run.clear()
        if subscriber is not None:
            try:
                self._drop_references()
            finally:
                if self._resource is not None:
                    self._resource.close()

    def _stop(self) -> None:
        """Cancel upstream. Called once, when the stream has ended.

        Only the thread that has ended the stream calls this: the thread for which
        ``_demand.cancel()`` or ``_demand.terminate()`` has returned true.
        """

    def _drop_references(self) -> None:
        """Drop or close the objects that a subclass holds. Called once, after the end."""

    def _begin(self) -> None:
        if self._signal_on_subscribe():
            self._start_drain()

    def _signal_on_subscribe(self) -> bool:
        """Signal ``on_subscribe`` to the subscriber. Called once (§2.12).

        If the subscriber raises, cancel the stream (§2.13), and return false.
        """
        subscriber = self._subscriber
        if subscriber is None:
            return False
        try:
            subscriber.on_subscribe(self)
        except BaseException as raised:
            must_leave = interrupts(raised, subscriber.on_subscribe)
            try:
                if self._demand.cancel():
                    self._stop()
            finally:
                self._drop_everything()
                if not must_leave:
                    report_dropped(raised, "§2.13: on_subscribe raised")
            if must_leave:
                raise
            return False
        return True
