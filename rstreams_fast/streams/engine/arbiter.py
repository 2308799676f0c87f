"""The subscription arbiter: subscribes to several publishers, one after another.

The subscriber sees one stream. If a publisher ends before it has sent all requested elements, the
arbiter requests the missing elements from the next publisher (§1.1). *Upward work* means requests
to a publisher and the change to the next publisher. One thread at a time does the upward work. So a
request and a change never happen at the same time, and the calls of many changes do not nest
(§3.3).

A sequence, such as the list of ``from_iterable``, needs no subscription: the drain loop (the loop
that delivers elements) iterates the sequence itself. At the end of the sequence, the thread that
leaves the drain loop changes to the next publisher.

An operator can give two objects to its arbiter. A ``PublisherChooser`` chooses the next publisher.
A ``Companion`` handles a second publisher, which sends at the same time as the current publisher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, RunStatus
from rstreams_fast.errors import check_request
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import FEW
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.fan_in import COMPLETED, Ended, FanIn, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.pipeline import sequence_of
from rstreams_fast.streams.engine.pull_source import take_burst
from rstreams_fast.streams.engine.signals import report_late

__all__ = [
    "ArbiterBoundary",
    "Companion",
    "Concatenation",
    "PendingDemand",
    "PublisherChooser",
    "SubscriptionArbiter",
]


class PendingDemand:
    """Counts the requested elements that an arbiter has not yet requested from a publisher."""

    __slots__ = ("counter",)

    def __init__(self) -> None:
        self.counter = DemandCounter()

    def add(self, subscription: Drain, n: int) -> bool:
        """Add ``n`` to the demand. Return false if ``n`` is invalid or the stream has ended."""
        # Convert ``n`` only once: its ``__index__`` can return another number at a second call.
        if type(n) is not int:
            try:
                n = check_request(n)
            except Exception as refused:
                subscription._bad_request(refused)
                return False
        if subscription._add_demand(n) < 0:
            return False
        self.counter.request(n)
        return True

    def request_from(self, inner: Inner, most: int = UNBOUNDED) -> bool:
        """Request at most ``most`` of the counted elements. Return whether a request was made.

        ``self`` counts the elements that downstream has requested, but that were not yet requested
        from a publisher. ``inner`` now requests them from its publisher, and the count is reduced.
        """
        n = self.counter.value
        if n <= 0 or not inner.attached or inner.requested >= UNBOUNDED:
            return False
        n = min(n, most)
        self.counter.fulfil(n)  # subtracts n; an unbounded demand stays unbounded
        inner.request(n)
        return True

    def return_unreceived(self, inner: Inner) -> None:
        """Count again the elements that ``inner`` has requested but not received.

        The publisher has ended. So the operator must request these elements from another one.
        """
        left = inner.requested - inner.received
        if left > 0:
            self.counter.request(left)


class Concatenation:
    """A list of publishers for an arbiter, which subscribes to them one after another."""

    def __init__(self, publishers: tuple[Publisher[Any], ...]) -> None:
        self.publishers = publishers


class PublisherChooser(Protocol):
    """Chooses the next publisher when the current publisher of an arbiter has ended."""

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended | None:
        """Return the publisher to which the arbiter subscribes next.

        ``error`` is the error of the previous publisher, or ``None`` if that publisher has
        completed. If the result is an ``Ended``, the stream ends after the elements that have come
        are delivered. The result ``None`` means that the next publisher is not known yet. Then the
        operator must later call the arbiter's ``subscribe_next`` with the next publisher, or
        ``call_next``, so that the arbiter calls ``next`` again. If ``next`` raises an
        ``Exception``, the stream fails with the exception. The arbiter makes one call of ``next``
        at a time, and never within a signal to downstream.
        """


class Companion(Protocol):
    """Handles a second publisher, which sends while the arbiter is subscribed to another publisher.

    The second publisher of ``take_until(other)``, for example, is ``other``. ``inner`` is the
    subscriber to the second publisher. The arbiter subscribes to the second publisher before it
    subscribes to any other. If the second publisher fails, the stream fails immediately.
    """

    inner: Inner

    def receive(self, burst: list[Any], over: bool, /) -> bool:
        """Handle ``burst``, elements of the operator's second publisher.

        The second publisher of ``take_until(other)``, for example, is ``other``. If ``over`` is
        true, the second publisher has completed. Return true to complete the operator's stream.
        ``receive`` is called on any thread, one call at a time.
        """

    def upward(self, arbiter: SubscriptionArbiter, /) -> bool:
        """If a call of the second publisher's ``request`` is due, make one call.

        The second publisher of ``take_until(other)`` is ``other``. Return whether a call was made.
        """

    def metrics(
        self, arbiter: SubscriptionArbiter, above: tuple[BoundaryMetrics, ...], /
    ) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of an operator with two publishers, and of the operators above it.

        The second publisher of ``take_until(other)``, for example, is ``other``. ``above``: the
        metrics of the operators above the publisher to which the arbiter is subscribed now. The
        result contains ``above``, the metrics of the operators above the second publisher and, if
        the operator has metrics of its own, these metrics.
        """


class SubscriptionArbiter(FanIn):
    """A subscription that delivers the elements of several publishers, one publisher after another.

    ``start()`` signals ``on_subscribe`` to the subscriber, and subscribes to the publisher
    ``first``, unless ``first`` is ``None``. When a publisher ends, ``chooser`` chooses the next
    publisher. Without a ``chooser`` the stream ends when ``first`` ends.
    """

    __slots__ = (
        "_companion",
        "_current",
        "_ending",
        "_error",
        "_over",
        "_publisher",
        "_rest",
        "_sequence",
        "chooser",
        "on_end",
        "on_first_element",
        "pending",
    )

    def __init__(self, subscriber: Subscriber[Any], first: Publisher[Any] | None) -> None:
        super().__init__(subscriber)
        self.chooser: PublisherChooser | None = None
        #: ``on_first_element`` is called once, when the current publisher sends its first element.
        self.on_first_element: Callable[[], None] | None = None
        #: ``on_end`` is called on any thread, perhaps repeatedly, when the stream has ended.
        self.on_end: Callable[[], None] | None = None
        self._companion: Companion | None = None
        self._publisher = first  # the publisher to which the arbiter subscribes next
        self._rest: deque[Publisher[Any]] = deque()
        self._current: Inner | None = None
        self._over = False  # whether the current publisher has ended
        self._error: BaseException | None = None
        #: ``pending`` counts the elements that downstream has requested, but that the arbiter has
        #: not yet requested from a publisher. No requests are made to a sequence (such as a list):
        #: ``_work`` iterates it, and subtracts each delivered element from ``pending``.
        self.pending = PendingDemand()
        # ``_sequence`` is None unless the current publisher is a sequence, such as a list. For a
        # sequence, it is a tuple: an iterator of the sequence, and the stages (such as ``map``).
        self._sequence: tuple[Iterator[Any], tuple[tuple[Any, ...], ...]] | None = None
        self._ending: Ended | None = None

    def request(self, n: int, /) -> None:
        if self.pending.add(self, n):
            if self._sequence is not None:
                self._enter()
            else:
                self._enter_upward()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        current, companion = self._current, self._companion
        above = () if current is None else current.metrics()
        return above if companion is None else companion.metrics(self, above)

    # -- methods that operators call ---------------------------------------------------------------

    def add_companion(self, companion: Companion) -> None:
        """Let ``start()`` also subscribe to a second publisher, as in ``take_until(second)``.

        ``companion`` has the subscriber to this publisher, and handles its elements.
        """
        self._companion = companion
        self._unsubscribed.append(companion.inner)

    def subscribe_next(self, publisher: Publisher[Any]) -> None:
        """Subscribe to ``publisher`` as the next publisher. Any thread may call this.

        Needed after ``PublisherChooser.next`` has returned ``None``, which means: not known yet.
        """
        self._publisher = publisher
        self._enter_upward()

    def call_next(self) -> None:
        """Let the arbiter call ``PublisherChooser.next`` again.

        Needed after ``next`` has returned ``None``, which means: not known yet. Only the thread
        that makes the calls to publishers may call this.
        """
        self._over = True

    def outstanding(self) -> int:
        """Return how many requested elements the publishers have not sent. For any thread."""
        current = self._current
        coming = 0 if current is None else current.requested - current.received
        return self.pending.counter.pending + coming

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        inner.attached = True
        self._enter_upward()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        companion = self._companion
        if companion is not None and inner is companion.inner:
            self._pass_to_companion(companion, burst, over)
            return
        if self.on_first_element is not None and burst:
            self._first_element(None)
        self._mail.append((inner, burst))
        del burst  # so that the traceback of an exception keeps no element alive (§3.13)
        self._enter()
        if over:
            self._inner_ended(inner, None)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        companion = self._companion
        if companion is None or inner is not companion.inner:
            self._error = error
            self._over = True
            self._enter_upward()
        elif error is not None:
            self._fail(error)
        else:
            self._pass_to_companion(companion, [], True)

    def _pass_to_companion(self, companion: Companion, burst: list[Any], over: bool) -> None:
        if not companion.receive(burst, over):
            self._enter_upward()
            return
        self._mail.append((companion.inner, COMPLETED))
        # The second publisher (in ``take_until(other)``: ``other``) completes the stream. Another
        # thread may be delivering a list of elements now. If so, drop the rest of this list.
        self.pending.counter.cancel()
        self._cut_short()
        self._enter()

    def _first_element(self, _element: object) -> bool:
        """Call ``on_first_element``, and return false.

        This method is the predicate of a ``skip_while`` stage. Such a stage calls its predicate
        until the result is false. So the stage calls this method only for the first element of the
        publisher, and skips no element.
        """
        on_first_element, self.on_first_element = self.on_first_element, None
        if on_first_element is not None:
            on_first_element()
        return False

    # -- calls to publishers: subscribe and request ------------------------------------------------

    def _upward(self) -> bool:
        companion = self._companion
        if companion is not None and companion.upward(self):
            return True
        changed = self._over
        if changed:
            self._change_over()
        publisher = self._publisher
        # Clear _publisher only if a publisher was read: another thread may have stored one since.
        if publisher is not None:
            self._publisher = None
            self._begin_with(publisher)
            changed = True
        current = self._current
        return changed if current is None else self.pending.request_from(current) or changed

    def _begin_with(self, publisher: Publisher[Any]) -> None:
        while isinstance(publisher, Concatenation):
            publisher, *rest = publisher.publishers
            self._rest.extendleft(reversed(rest))
        # The drain loop can iterate a sequence (such as a list) without a subscription. But an
        # ``on_discard`` downstream needs ``custody``, the record of the undelivered elements. Only
        # an inner subscriber adds elements to this record. So if there is a ``custody``, subscribe.
        found = sequence_of(publisher) if self.custody is None else None
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
            last = (("skip_while", self._first_element),) if self.on_first_element else ()
            self._sequence = iterator, stages.stages + last
            if self._wip.enter():
                self._drain()

    def _change_over(self) -> None:
        error, self._error = self._error, None
        self._over = False
        current, self._current = self._current, None
        if current is not None:
            self._inners.discard(current)
            current.forget()
            self.pending.return_unreceived(current)
        rest = self._rest
        if rest and error is None:
            self._publisher = rest.popleft()
            return
        rest.clear()
        self.on_first_element = None
        chooser = self.chooser
        try:
            found = Ended(error) if chooser is None else chooser.next(error)
        except RecursionError:  # re-raise the error: the stack has no room to handle it here
            raise
        except Exception as raised:
            if error is not None and raised is not error and raised.__context__ is None:
                # A plain assignment to ``__context__`` fails if ``raised`` is a frozen dataclass.
                BaseException.__setattr__(raised, "__context__", error)
            found = Ended(raised)
        finally:
            error = None  # avoid a reference cycle: error -> traceback -> frame -> error (§3.13)
        if isinstance(found, Ended):
            self._ending = found
            del found  # avoid a reference cycle: error -> traceback -> frame -> error (§3.13)
            self._enter()
        elif found is not None:
            self._publisher = found

    # -- the drain: delivering elements ------------------------------------------------------------

    def _upward_is_due(self) -> bool:
        return self._over

    def _work(self) -> bool:
        # Another thread puts all elements of a publisher in the queue _mail, before it sets _ending
        # (the end of the stream) or _sequence (the next publisher, if it is a list, for example).
        # So read these two fields first: if one is set, _mail contains all earlier elements.
        ending, sequence = self._ending, self._sequence
        mail = self._mail
        while mail and self._demand.value >= 0:
            self._take(*mail.popleft())
        if self._demand.value < 0:
            return self._act_on_end()
        if sequence is not None:
            iterator, stages = sequence
            # For few elements, a plain loop takes less time than the creation of a ``FusedRun``.
            few = not stages and self._run is None and length_hint(iterator, FEW + 1) <= FEW
            pending = self.pending.counter
            end = (
                self._pass_on(iterator) if few else self._deliver_through(iterator, stages, pending)
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
        """Deliver the requested elements of ``iterator``, an iterator of a short sequence.

        Return an ``Ended`` if the sequence has ended or has raised, otherwise ``None``.
        """
        asked_for = max(0, self.pending.counter.value)
        burst, over, error = take_burst(iterator, min(asked_for, FEW))
        n = len(burst)
        try:
            if n:
                self._deliver(burst)
                self.pending.counter.fulfil(n)
            if error is not None:
                return Ended(error)
            return COMPLETED if over else None
        finally:
            del burst, error  # so that the traceback of an exception keeps no element alive (§3.13)

    def _stop(self) -> None:
        self.pending.counter.cancel()
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

    def _end_upward(self) -> None:
        error, self._error = self._error, None
        super()._end_upward()
        if error is not None:
            report_late(error)

    def _forget_upward(self) -> None:
        self._publisher = self._current = self._sequence = None
        self.chooser = self.on_first_element = None
        if self.on_end is not None:
            self.on_end()


class ArbiterBoundary(Boundary):
    """The base of operators that use a ``SubscriptionArbiter``, such as ``retry``."""

    one_to_one = True

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _new_arbiter, self)

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:
        """Prepare ``arbiter``, a new subscription, whose first publisher is ``upstream``.

        Set ``arbiter.chooser``, which chooses the next publisher when a publisher has ended. Or
        call ``arbiter.add_companion``, to subscribe to a second publisher at the same time.
        """
        raise NotImplementedError


def _new_arbiter(
    subscriber: Subscriber[Any], upstream: Publisher[Any], boundary: ArbiterBoundary
) -> SubscriptionArbiter:
    arbiter = SubscriptionArbiter(subscriber, upstream)
    boundary.prepare(arbiter, upstream)
    return arbiter
