"""One stream after another, for the same subscriber, who notices nothing but the elements.

What was asked for and has not come when one publisher ends is asked of the next: nothing twice
(§1.1), and nothing forgotten. Asking and changing over are the upward work of a fan-in, done by one
thread at a time, so a request may race with the change, and a thousand changes in a row do not
nest (§3.3).

A sequence of the package needs no asking: the drain runs it, from where its elements go to the
subscriber directly, and leaves the changing over to the thread that leaves the drain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import length_hint
from typing import Any, ClassVar

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, RunStatus
from rstreams_fast.errors import check_request
from rstreams_fast.streams.engine.defaults import FEW
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.fan_in import COMPLETED, Ended, FanIn
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.pipeline import sequence_of
from rstreams_fast.streams.engine.pull_source import take_burst
from rstreams_fast.streams.engine.signals import report_late

__all__ = ["Chain", "PendingDemand", "SubscriptionArbiter"]


class PendingDemand:
    """The demand of the subscriber that no publisher was asked for yet."""

    __slots__ = ("counter",)

    def __init__(self) -> None:
        self.counter = DemandCounter()

    def add(self, subscription: Drain, n: int) -> bool:
        """Add ``request(n)`` of ``subscription``; false if it is refused or the stream is over."""
        if type(n) is not int:  # convert it once: __index__ may answer differently the next time
            try:
                n = check_request(n)
            except Exception as refused:
                subscription._bad_request(refused)
                return False
        if subscription._add_demand(n) < 0:
            return False
        self.counter.request(n)
        return True

    def ask(self, inner: Inner, most: int = UNBOUNDED) -> bool:
        """Ask ``inner`` for the demand, for at most ``most``; false if it cannot be asked."""
        n = min(self.counter.value, most)
        if n <= 0 or not inner.attached or inner.asked >= UNBOUNDED:
            return False
        self.counter.fulfil(n)  # an unbounded demand stays
        inner.ask(n)
        return True

    def take_back(self, inner: Inner) -> None:
        """Add what ``inner`` was asked for and has not given before its end."""
        left = inner.asked - inner.came
        if left > 0:
            self.counter.request(left)


class Chain:
    """Publishers, one after another: whatever else an arbiter does, it goes through them itself."""

    def __init__(self, publishers: tuple[Publisher[Any], ...]) -> None:
        self.publishers = publishers


class SubscriptionArbiter(FanIn):
    """A subscription that has one publisher after another above it.

    ``start()`` introduces it and subscribes to ``first``. Subclasses say in ``_next`` what to go on
    with when a publisher has ended.
    """

    __slots__ = (
        "_current",
        "_ending",
        "_error",
        "_over",
        "_pending",
        "_publisher",
        "_rest",
        "_sequence",
    )

    #: Whether the drain runs sequences: then none of their elements reaches a method of this.
    _runs_sequences: ClassVar[bool] = False

    def __init__(self, subscriber: Subscriber[Any], first: Publisher[Any] | None) -> None:
        super().__init__(subscriber)
        self._publisher: Publisher[Any] | None = first  # to go on with
        self._rest: deque[Publisher[Any]] = deque()  # of a chain, if that one completes
        self._current: Inner | None = None
        self._over = False  # it has ended, which is to be acted on,
        self._error: BaseException | None = None  # with this
        self._pending = PendingDemand()  # to be asked for, or to come of the sequence
        # In place of a current one.
        self._sequence: tuple[Iterator[Any], tuple[tuple[Any, ...], ...]] | None = None
        self._ending: Ended | None = None  # how all ends, after what has come

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._pending.add(self, n):
            if self._sequence is not None:
                self._enter()
            else:
                self._call_up()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the boundaries above the current publisher."""
        current = self._current
        return () if current is None else current.metrics()

    # -- for subclasses --------------------------------------------------------------------------

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        """Say what to go on with: a publisher has completed, or has failed with ``error``.

        ``None`` is for nothing, after ``_finish()``, or for nothing yet: ``_go_on`` is to be called
        later. One call at a time, outside of any signal to downstream. An ``Exception`` it raises
        ends the stream. By itself it goes on with nothing.
        """
        self._finish(error)
        return None

    def _last_stages(self) -> tuple[tuple[Any, ...], ...]:
        """Stages to be run below those of a sequence."""
        return ()

    def _go_on(self, publisher: Publisher[Any]) -> None:
        """Subscribe to ``publisher``: from any thread, once after ``_next`` returned ``None``."""
        self._publisher = publisher
        self._call_up()

    def _finish(self, error: BaseException | None = None) -> None:
        """Complete, or fail with ``error``, after what has come before."""
        self._ending = COMPLETED if error is None else Ended(error)
        self._enter()

    # -- from the current one --------------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        inner.attached = True
        self._call_up()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._mail.append((inner, burst))
        del burst  # a traceback keeps this frame (§3.13)
        self._enter()
        if over:
            self._inner_ended(inner, None)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:  # noqa: ARG002
        self._error = error
        self._over = True
        self._call_up()

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        changed = self._over
        if changed:
            self._change_over()
        publisher = self._publisher
        if publisher is not None:  # else nothing is written: one may come at this very moment
            self._publisher = None
            self._begin_with(publisher)
            changed = True
        current = self._current
        return changed if current is None else self._pending.ask(current) or changed

    def _begin_with(self, publisher: Publisher[Any]) -> None:
        while isinstance(publisher, Chain):
            publisher, *rest = publisher.publishers
            self._rest.extendleft(reversed(rest))
        # With a custody each has a scope of its own, which ends with it.
        found = sequence_of(publisher) if self._runs_sequences and self.custody is None else None
        if found is None:
            self._current = self._subscribe_to(publisher)
            return
        source, stages = found
        try:
            iterator = source.open()
        except Exception as raised:
            self._error = raised
            self._over = True
        else:
            self._sequence = iterator, stages.stages + self._last_stages()
            if self._wip.enter():
                self._drain()  # and what that leaves is looked at next

    def _change_over(self) -> None:
        error, self._error = self._error, None
        self._over = False
        current, self._current = self._current, None
        if current is not None:
            self._inners.discard(current)
            current.forget()
            self._pending.take_back(current)
        rest = self._rest
        if rest and error is None:
            self._publisher = rest.popleft()
            return
        rest.clear()
        try:
            following = self._next(error)
            if following is not None:
                self._publisher = following
        except RecursionError:  # to where the stack has room again
            raise
        except Exception as raised:
            if error is not None and raised is not error and raised.__context__ is None:
                raised.__context__ = error
            self._finish(raised)
        finally:
            error = None  # a traceback keeps this frame

    # -- the drain -------------------------------------------------------------------------------

    def _to_ask(self) -> bool:
        return self._over

    def _work(self) -> bool:
        # Read before the elements that came before them.
        ending, sequence = self._ending, self._sequence
        mail = self._mail
        while mail and self._demand.value >= 0:
            self._take(*mail.popleft())
        if self._demand.value < 0:
            return self._act_on_end()
        if sequence is not None:
            iterator, stages = sequence
            # To make a run costs more than a few elements do.
            few = not stages and self._run is None and length_hint(iterator, FEW + 1) <= FEW
            end = (
                self._pass_on(iterator)
                if few
                else self._run_on(iterator, stages, self._pending.counter)
            )
            if isinstance(end, Ended):
                self._sequence = None
                self._error = end.error
                self._over = True
            return end is RunStatus.MORE
        if ending is None:
            return False
        self._ending = None
        if ending.error is None:
            return self._complete()
        self._fail(ending.error)
        return self._act_on_end()

    def _pass_on(self, iterator: Iterator[Any]) -> Ended | None:
        """Deliver the few elements of a sequence that are asked for: its end, if that is there."""
        asked_for = max(0, self._pending.counter.value)  # even of nothing the end may be there
        burst, over, error = take_burst(iterator, min(asked_for, FEW))
        n = len(burst)
        try:
            if n:
                self._deliver(burst)
                self._pending.counter.fulfil(n)
            if error is not None:
                return Ended(error)
            return COMPLETED if over else None
        finally:
            del burst, error  # a traceback keeps this frame (§3.13)

    def _take(self, inner: Inner, what: Any) -> None:  # noqa: ARG002
        self._deliver(what)

    def _stop(self) -> None:
        self._pending.counter.cancel()
        super()._stop()

    def _drop_references(self) -> None:
        super()._drop_references()
        self._rest = deque()

    def _report_undelivered(self) -> None:
        super()._report_undelivered()
        ending = self._ending
        if ending is not None:
            self._ending = None
            if ending.error is not None:
                report_late(ending.error)

    def _give_up(self) -> None:
        error, self._error = self._error, None
        super()._give_up()
        if error is not None:
            report_late(error)

    def _forget_upward(self) -> None:
        self._publisher = self._current = self._sequence = None
