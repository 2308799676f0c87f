"""``switch_map``: makes publishers from elements, and delivers the newest publisher's elements."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_capacity, describe_callable
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import RunStatus
from rstreams_fast.errors import report_dropped
from rstreams_fast.runtime.executors import take_held
from rstreams_fast.streams.engine.arbiter import PendingDemand
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.fan_in import Ended, FanIn, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import Inner, Sequence, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["SwitchMap"]

#: Messages to the delivering thread. Each item of the queue ``_mail`` is a pair: the subscriber to
#: a publisher, and a message. ``_SWITCH``: from now on, deliver only this publisher's elements.
#: ``_ATTACHED``: this publisher has called ``on_subscribe``, and so accepts requests.
_SWITCH, _ATTACHED = Ended(None), Ended(None)


class _Run(Ended):
    """A message to the delivering thread: deliver the elements of ``sequence``, such as a list."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(None)
        self.sequence = sequence


class SwitchMap(Boundary):
    def __init__(self, fn: ToPublisher, prefetch: int) -> None:
        self.fn = fn
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _SwitchMapSubscription, self)

    def describe(self) -> str:
        return (
            f"switch_map({describe_callable(self.fn)}): holds the newest element, asks for "
            f"{self.prefetch} ahead, one publisher at a time"
        )


class _SwitchMapSubscription(FanIn):
    """Delivers the elements of the newest publisher, made by ``fn`` from upstream's newest element.

    ``_outer`` is the subscriber to upstream. Each publisher that ``fn`` makes has its own
    subscriber. The newest publisher gets a request for the demand that remains after the elements
    of the earlier publishers (§1.1). Only the delivering thread knows how many elements the earlier
    publishers have delivered. It stores this number in ``_requestable``. Then the method
    ``_upward``, maybe on another thread, requests the total demand minus this number.
    """

    __slots__ = (
        "_active",
        "_current",
        "_current_requested",
        "_delivered",
        "_fn",
        "_newest",
        "_outer",
        "_outer_attached",
        "_outer_over",
        "_outer_prefetch",
        "_outer_requested",
        "_request_is_due",
        "_requestable",
        "_requested",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: SwitchMap
    ) -> None:
        super().__init__(subscriber)
        self._fn: ToPublisher | None = self._wrap_function(options.fn)
        self._outer_prefetch = options.prefetch
        self._requested = PendingDemand()  # the sum of all requests; deliveries do not lower it
        self._outer = new_inner(self, upstream)
        self._unsubscribed.append(self._outer)
        self._outer_attached = False
        # ``_newest``: how many elements of upstream have arrived, and a list with the newest
        # element. The thread that takes the element out of the list makes a publisher from the
        # element, or discards the element.
        self._newest: tuple[int, list[Any]] = (0, [])
        # Only ``_upward`` (one thread at a time) writes the next three fields. ``_current``: the
        # subscriber to the newest publisher, and the number of upstream's element from which this
        # publisher was made. ``_current_requested``: how many elements were requested from this
        # publisher. ``_outer_requested``: how many elements were requested from upstream.
        self._current: tuple[int, Inner | None] = (0, None)
        self._current_requested = 0
        self._outer_requested = 0
        # Only the delivering thread writes the following fields. ``_active``: the subscriber to the
        # publisher whose elements are delivered now.
        self._active: Inner | None = None
        self._delivered = 0
        self._outer_over = False
        # ``_requestable``, a pair: the subscriber to the newest publisher that has called
        # ``on_subscribe``, and how many elements all earlier publishers have delivered.
        self._requestable: tuple[Inner | None, int] = (None, 0)
        self._request_is_due = False  # whether the newest publisher may now get its first request

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._requested.add(self, n):
            self._enter_upward()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        current = self._current[1]
        return (*(() if current is None else current.metrics()), *self._outer.metrics())

    # -- signals from the inner subscribers --------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is self._outer:
            self._outer_attached = True
        else:
            self._mail.append((inner, _ATTACHED))
            self._enter()
        self._enter_upward()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if inner is not self._outer:
            super()._inner_burst(inner, burst, over)
            return
        if burst:
            came, before = self._newest[0] + len(burst), self._newest[1]
            self._newest = (came, burst[-1:])
            self._discard([*burst[:-1], take_held(before)])
            del burst
            first = self._upward_wip.enter()
            number, current = self._current
            if current is not None and number < came:
                # ``current`` subscribes to a publisher made from an older element. ``_switch``
                # cancels it, too, but maybe later, if the thread that calls ``_switch`` is busy.
                current.cancel()
            if first:
                self._run_upward()
        if over:
            super()._inner_ended(inner, None)

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        return inner is not self._outer

    # -- calls to publishers -----------------------------------------------------------------------

    def _upward(self) -> bool:
        came, newest = self._newest
        opened, current = self._current
        if came != opened:
            self._switch(came, newest)
            return True
        self._request_is_due = False
        (requestable, before), requested = self._requestable, self._requested.counter.value
        if current is not None and current is requestable:
            due = UNBOUNDED if requested >= UNBOUNDED else requested - before
            if due > self._current_requested:
                n, self._current_requested = due - self._current_requested, due
                sequence = current.hand_over() if due >= UNBOUNDED else None
                if sequence is None:
                    current.request(n)
                else:
                    self._mail.append((current, _Run(sequence)))
                    self._enter()
                return True
        room = self._outer_prefetch - (self._outer_requested - came)
        if requested and self._outer_attached and room >= replenish_at(self._outer_prefetch):
            self._outer_requested += room
            return self._outer.request_for_a_turn(room)
        return self._demand.value > 0 and self._outer.request_for_a_turn()

    def _switch(self, number: int, newest: list[Any]) -> None:
        before, fn = self._current[1], self._fn
        if before is not None:
            self._inners.discard(before)
            before.cancel()
        element = take_held(newest)
        if fn is None or element is None:
            return
        try:
            inner = new_inner(self, publisher_from("switch_map", fn, element))
        except RecursionError:
            # The stack is full. Only an outer caller has room on the stack to report the error.
            raise
        except Exception as raised:
            self._fail(raised)
            return
        finally:
            del element
        self._current_requested = 0
        self._mail.append((inner, _SWITCH))
        # Set ``_current`` after the message ``_SWITCH`` is in ``_mail``. In the other order,
        # ``_work``, on another thread, might see the new ``_current`` but not the message, and
        # complete the stream before the new publisher has sent anything.
        self._current = (number, inner)
        self._enter()
        if self._newest[0] == number and self._add(inner):
            inner.subscribe()

    # -- delivering elements -----------------------------------------------------------------------

    def _upward_is_due(self) -> bool:
        return self._request_is_due

    def _work(self) -> bool:
        mail = self._mail
        while self._demand.value >= 0 and mail:
            inner, what = mail.popleft()
            if what is _SWITCH:
                self._active = inner
                self._drop_run()
            elif inner is not self._active and inner is not self._outer:
                if isinstance(what, list):
                    self._discard(what)
                elif what.error is not None:
                    report_dropped(what.error, "an error of a publisher that was switched from")
            elif isinstance(what, list):
                if inner.owner is not None:  # not cancelled: upstream has sent no newer element
                    self._delivered += len(what)
                    self._deliver(what)
                else:
                    self._discard(what)
            elif isinstance(what, _Run):
                end = self._deliver_through(*what.sequence)
                if isinstance(end, Ended):
                    mail.appendleft((inner, end))
                elif end is RunStatus.MORE:
                    mail.append((inner, what))
                    return True
            elif what is _ATTACHED:
                self._requestable = (inner, self._delivered)
                self._request_is_due = True
            elif what.error is not None:
                self._fail(what.error)
            elif inner is self._outer:
                self._outer_over = True
            else:
                self._active = None
        if self._demand.value < 0:
            return self._act_on_end()
        if self._outer_over and self._active is None:
            # Complete only if there is no newer publisher. ``_switch``, on another thread, first
            # puts a message about a newer publisher (``_SWITCH``) in ``_mail``, and then sets
            # ``_current``. So read ``_current`` before ``_mail``. In the other order, ``_switch``
            # could do both between the two reads, and the message would be overlooked.
            opening = self._newest[0] != self._current[0]
            if not opening and not self._mail:
                return self._complete()
        return False

    def _drop_references(self) -> None:
        super()._drop_references()
        self._active = None
        self._requestable = (None, 0)

    def _forget_upward(self) -> None:
        self._fn = None
        self._current = (0, None)
        self._newest = (0, [])
