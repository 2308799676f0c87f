"""The drain: all work of a subscription, done by one thread at a time, the caller's or another.

A thread that has news (a request, a cancel, an element, a terminal signal) stores it in a field
that the drain reads, and *enters*: it adds one to the work in progress (WIP). The thread that takes
WIP from 0 to 1 drains, and looks again until it has seen the news of all threads that entered.
Other threads return at once. So signals never overlap (§1.3), a request from within ``on_next``
never nests (§3.3), and no thread waits. On an event loop a drain works for a turn at a time.

A ``RecursionError`` of the calls from one subscriber to the next propagates through these calls, as
``KeyboardInterrupt`` does: a full stack has no room to report it.

The demand counter decides how a stream ends: exactly one call of ``cancel()`` or ``terminate()``
returns true. To end with an error, its caller then stores the error in ``_failure`` and enters.
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
from rstreams_fast.streams.engine.chain import drop, stand_on
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import BURST, CALLER_BURST, next_burst
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import forked, leaves, report_late, silent

__all__ = ["Drain"]


class Drain:
    """A subscription handed to a downstream subscriber, and the work behind it.

    Subclasses fill in ``_work``, ``_stop`` and ``_drop_references``. ``resource=None``: the
    thread that enters does the work.
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
        "_paused",
        "_pid",
        "_resource",
        "_run",
        "_subscriber",
        "_wip",
        "custody",
        "depth",
        "trampoline",
        "turns",
    )

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None

    #: Whether downstream is the caller, if there is no resource: then exceptions reach it directly.
    _asked_from_below: ClassVar[bool] = True

    def __init__(self, subscriber: Subscriber[Any], resource: Resource | None) -> None:
        stand_on(self, subscriber)
        self._subscriber: Subscriber[Any] | None = subscriber
        self._demand = DemandCounter()
        # Held from the start: on_subscribe may request, and must return before any other signal
        # (§3.2).
        self._wip = Wip(held=True)
        self._run: FusedRun | None = None
        self._failure: BaseException | None = None
        #: An error that waits behind elements. The drain signals it, or reports it at the end.
        self._late_error: BaseException | None = None
        self._resource = resource
        self._context: Context | None = None if resource is None else copy_context()
        self._pid = process_id()
        if resource is not None:
            self.turns = None
        self._paused = False
        # Elements may be slow: where other work waits for a turn, bursts grow from one element.
        self._grows = resource is not None or self.turns is not None
        self._burst = 1 if self._grows else BURST
        self._on_burst: Callable[[], None] | None = None

    # -- the subscription's face, any thread -----------------------------------------------------

    @property
    def works_when_asked(self) -> bool:
        """Whether a request may take until the requested elements are delivered."""
        return self._resource is None

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        # _add_demand, inlined to save a call: many subscribers request within each on_next.
        if self._pid != process_id():
            self._add_demand(n)
            return
        try:
            before = self._demand.request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        if before == 0:  # else the thread that drains sees the demand (§3.3, §3.4)
            self._enter()

    def _add_demand(self, n: int) -> int:
        """Add ``n``; return the demand before, or a negative number if the stream is over."""
        if self._pid != process_id():
            # The threads that would serve the request live in the parent process only.
            if self._demand.value >= 0:
                self._fail(forked())
            return CANCELLED
        try:
            return self._demand.request(n)
        except Exception as refused:
            self._bad_request(refused)
            return CANCELLED

    def cancel(self) -> None:
        """Stop (§1.8, §3.12), and forget the subscriber (§3.13)."""
        if self._demand.cancel():
            try:
                self._stop()
            finally:  # also when Ctrl-C interrupts a clean-up
                self._enter()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the boundaries from here upwards, the nearest first."""
        return ()

    # -- entering --------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._wip.enter():
            self._go()
        elif self._resource is not None and process_id() != self._pid:
            self._refused(forked())  # the thread that holds the drain is in the parent process

    def _go(self) -> None:
        """Drain, or schedule the drain on the resource: for the holder of the drain only."""
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

    def _turn(self) -> None:
        """Drain on a resource for at most ``TURN_SECONDS``, then queue the rest of the work."""
        wip, context, resource = self._wip, self._context, self._resource
        if context is None or resource is None:
            return
        try:
            while True:
                missed = wip.missed
                # Leave the context before the drain: another thread may drain next, and enter it.
                if context.run(self._work_for_a_turn):
                    break
                if wip.leave(missed):
                    return
        except BaseException as leaving:
            self._interrupted(leaving)
            raise
        self._schedule(resource)

    def _work_for_a_turn(self) -> bool:
        """Work for at most ``TURN_SECONDS``; return whether there is more to do."""
        until = perf_counter() + TURN_SECONDS
        while self._work():
            if perf_counter() >= until:
                return True
        return False

    def _refused(self, error: BaseException) -> None:
        """End with ``error``, as the resource refused the work. For the holder of the drain."""
        ended = self._demand.terminate()
        if ended:
            self._failure = error
        self._stop_and_leave_drain(ended)

    # -- the drain -------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Drain on the calling thread."""
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
        """Leave the work that ``wip`` counts to the next turn, or to a thread that enters first."""
        first, self._paused = not self._paused, True
        while not wip.leave(wip.missed):
            pass  # other threads entered meanwhile: the next turn does their work, too
        if first:
            turns.pause(self)
        if self._demand.value < 0:  # the stream is over: clean up now
            self.resume()

    def resume(self) -> None:
        """Go on with the work that was left to this turn."""
        self._paused = False
        self._enter()

    def _work(self) -> bool:
        """Do some work; true if there is more to do at once."""
        raise NotImplementedError

    def _stages(self, stages: tuple[tuple[Any, ...], ...]) -> tuple[tuple[Any, ...], ...]:
        """Make the stages of a run that is not at a source discard the elements that they drop."""
        custody = self.custody
        return stages if custody is None else custody.stages(stages)

    def _gathered(self, groups: list[Any]) -> list[Any]:
        """Note that each list or tuple in ``groups`` is one element from now on; return them."""
        custody = self.custody
        if custody is not None:
            for group in groups:
                custody.gather(group)
        return groups

    def _discard(self, elements: list[Any]) -> None:
        """Call the hook of ``on_discard`` for ``elements``, dropped while the stream goes on."""
        custody = self.custody
        if custody is not None:
            custody.discard(elements)

    def _using(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``fn``, which uses up its argument: if it raises, ``on_discard`` gets that."""
        custody = self.custody
        return fn if custody is None else custody.using(fn)

    def _burst_on(self, run: FusedRun) -> RunStatus:
        """Drain one burst. If ``_grows``, the next burst is smaller after slow elements."""
        started = perf_counter() if self._grows else 0.0
        status = run.drain(self._burst)
        if self._on_burst is not None:
            self._on_burst()
        if not self._grows:
            return status
        self._burst = next_burst(self._burst, perf_counter() - started)
        return status

    def _flush(self, run: FusedRun) -> RunStatus:
        """Deliver the elements that stages hold at the end."""
        status = run.finish()
        if self._on_burst is not None:
            self._on_burst()
        return status

    def _slot_by_bursts(self, subscriber: Subscriber[Any], *, waits: bool = False) -> Any:
        """Return the output of a run: an internal subscriber's ring, list or function, or
        ``on_next``. ``waits``: the run's source may wait in the middle of a burst.
        """
        # Read ``ring`` once: the subscriber may drop it at any time.
        if isinstance(subscriber, RingSubscriber) and (ring := subscriber.ring) is not None:
            self._on_burst = subscriber.on_burst
            return ring
        if isinstance(subscriber, ListSubscriber) and not (waits and subscriber.prompt):
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
        """End, as ``leaving`` (say, ``KeyboardInterrupt``) propagates through the drain."""
        if self._resource is None and self._asked_from_below:
            ended = self._demand.cancel()
        else:
            # It propagates to a resource's thread, or to upstream. So downstream gets it as
            # on_error.
            ended = self._demand.terminate()
            if ended:
                self._failure = leaving
        self._stop_and_leave_drain(ended)
        if not ended and self._resource is not None and isinstance(leaving, RecursionError):
            # No subscriber is left to receive it, and an executor may swallow it.
            report_dropped(leaving, "§2.13: a subscriber filled the stack")

    def _stop_and_leave_drain(self, ended: bool) -> None:
        """Call ``_stop`` if the caller has ``ended`` the stream; then leave the drain.

        For the holder of the drain.
        """
        try:
            if ended:
                self._stop()
        finally:  # as in cancel()
            self._leave_drain()

    def _leave_drain(self) -> None:
        """Act on the end, and leave the drain."""
        wip = self._wip
        while True:
            missed = wip.missed
            self._act_on_end()
            if wip.leave(missed):
                return

    # -- endings, for the holder of the drain ----------------------------------------------------

    def _answer(self, status: RunStatus, run: FusedRun) -> bool:
        """Act on the end of a run. Always false: there is nothing more to do."""
        if status is RunStatus.FAILED:
            error = run.error
            if error is not None:
                self._fail(error)
        elif status is RunStatus.SLOT_FAILED:
            error = run.error
            if isinstance(error, RecursionError):
                raise error
            self._on_next_raised(error)
            return False
        elif status is RunStatus.DONE:
            return self._complete()
        return self._act_on_end()

    def _complete(self) -> bool:
        """Signal ``on_complete``, unless the stream is over. Always false: nothing more to do."""
        if not self._demand.terminate():
            return self._act_on_end()
        self._stop()
        subscriber = self._drop_everything()
        if subscriber is not None:
            silent(subscriber.on_complete)  # §1.5
        self._report_undelivered()
        return False

    def _on_next_raised(self, raised: BaseException | None) -> None:
        """Act on an ``on_next`` that raised, as if the subscriber had cancelled (§2.13)."""
        if self._demand.cancel():
            self._stop()
        self._act_on_end()
        if raised is not None:
            report_dropped(raised, "§2.13: on_next raised")

    def _bad_request(self, refused: Exception) -> None:
        """End with the error of a wrong request (§3.9), or the error that ``__index__`` raised."""
        # Without the traceback, which would keep the caller's frame and so the subscriber.
        self._fail(refused.with_traceback(None))

    def _fail(self, error: BaseException) -> None:
        """End with ``error``, or report it. Any thread."""
        if not self.end_with(error):
            report_late(error)

    def end_with(self, error: BaseException) -> bool:
        """End with ``error``, which the drain signals; false if the stream is over. Any thread."""
        ends = self._demand.terminate()
        if ends:
            try:
                self._stop()
            finally:  # as in cancel()
                self._failure = error
                self._enter()
        return ends

    def _end_late(self) -> bool:
        """End with ``_late_error``, once all elements before it are delivered. For the drain."""
        late, self._late_error = self._late_error, None
        if late is not None:
            self._fail(late)
        return self._act_on_end()

    def _act_on_end(self) -> bool:
        """After a cancel or a terminal decision: drop everything, and signal ``on_error`` if the
        stream has failed.
        """
        failure = self._failure
        if failure is not None:  # else do not write: a thread may store it at this moment
            self._failure = None
            subscriber = self._drop_everything()
            if subscriber is not None:
                silent(subscriber.on_error, failure)  # §1.4
            else:
                report_late(failure)
        elif self._demand.cancelled:
            drop(self._drop_everything())
        # else: the thread that called terminate() stores the error next, and then enters
        self._report_undelivered()
        return False

    def _report_undelivered(self) -> None:
        """Report an error that still waits at the end. No error is missed: a thread that stores an
        error enters after that.
        """
        error = self._late_error
        if error is not None:  # else do not write: a thread may store it at this moment
            self._late_error = None
            report_late(error)

    def _drop_everything(self) -> Subscriber[Any] | None:
        """Drop all references (§3.13). The first call returns the subscriber, for a last signal."""
        subscriber, self._subscriber = self._subscriber, None
        self._on_burst = None
        run, self._run = self._run, None
        if run is not None:
            run.clear()
        if subscriber is not None:
            self._drop_references()
            if self._resource is not None:
                self._resource.close()
        return subscriber

    def _stop(self) -> None:
        """Cancel upstream. Called once, by the thread whose ``cancel()`` or ``terminate()``
        returned true.
        """

    def _drop_references(self) -> None:
        """Drop, or close, the objects that the subclass holds."""

    def _begin(self) -> None:
        """Signal ``on_subscribe``, and do the work that is there."""
        if self._introduce():
            self._go()

    def _introduce(self) -> bool:
        """Signal ``on_subscribe``, once (§2.12); false if the subscriber raised and so cancelled
        itself (§2.13).
        """
        subscriber = self._subscriber
        if subscriber is None:
            return False
        try:
            subscriber.on_subscribe(self)
        except BaseException as raised:
            if self._demand.cancel():
                self._stop()
            self._drop_everything()
            if leaves(raised):
                raise
            report_dropped(raised, "§2.13: on_subscribe raised")
            return False
        return True
