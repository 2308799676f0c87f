"""``switch_map``: the elements of one publisher, until a new element brings the next publisher."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_capacity, describe_callable
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import RunStatus
from rstreams_fast.errors import report_dropped
from rstreams_fast.runtime.executors import taken
from rstreams_fast.streams.engine.arbiter import PendingDemand
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.fan_in import Combined, Ended, FanIn
from rstreams_fast.streams.engine.inner_subscriber import Inner, Sequence, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["SwitchMap"]

#: Further messages in the mail. _SWITCH: its inner becomes current. _ATTACHED: it can be asked.
_SWITCH, _ATTACHED = Ended(None), Ended(None)


class _Run(Ended):
    """A further message: the drain must run ``sequence``."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(None)
        self.sequence = sequence


class SwitchMap(Boundary):
    """The boundary of ``Stream.switch_map``, its arguments checked."""

    def __init__(self, fn: ToPublisher, prefetch: int) -> None:
        self.fn = fn
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _SwitchMapSubscription, self)

    def describe(self) -> str:
        return (
            f"switch_map({describe_callable(self.fn)}): holds the newest element, asks for "
            f"{self.prefetch} ahead, one publisher at a time"
        )


class _SwitchMapSubscription(FanIn):
    """One inner is the outer publisher. An element of it makes another inner the current one.

    The current inner is asked for the demand that the inners before it have not met (§1.1). Only
    the drain knows how much that is. So the drain notes it in ``_askable``, and the upward work
    asks.
    """

    __slots__ = (
        "_active",
        "_askable",
        "_asked",
        "_asks_current",
        "_current",
        "_delivered",
        "_fn",
        "_newest",
        "_outer",
        "_outer_asked",
        "_outer_attached",
        "_outer_over",
        "_prefetch",
        "_requested",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: SwitchMap
    ) -> None:
        super().__init__(subscriber)
        self._fn: ToPublisher | None = self._using(options.fn)
        self._prefetch = options.prefetch
        self._requested = PendingDemand()  # all that the subscriber has ever asked for
        self._outer = new_inner(self, upstream)
        self._unsubscribed.append(self._outer)
        self._outer_attached = False
        # How many elements of the outer publisher have come, and a list of the last one. The thread
        # that takes the element out of the list uses it, or discards it.
        self._newest: tuple[int, list[Any]] = (0, [])
        # For the upward work:
        # The current inner, after the number of the element that it was made of.
        self._current: tuple[int, Inner | None] = (0, None)
        self._asked = 0  # elements that the current inner was asked for
        self._outer_asked = 0  # elements that the outer publisher was asked for
        # For the holder of the drain:
        self._active: Inner | None = None  # the inner whose elements are delivered
        self._delivered = 0
        self._outer_over = False
        # The inner that may be asked, and how many elements were delivered before its first.
        self._askable: tuple[Inner | None, int] = (None, 0)
        self._asks_current = False  # whether the upward work has not looked at _askable yet

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._requested.add(self, n):
            self._call_up()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the boundaries above, the current publisher's first."""
        current = self._current[1]
        return (*(() if current is None else current.metrics()), *self._outer.metrics())

    # -- from inners -----------------------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is self._outer:
            self._outer_attached = True
        else:
            self._mail.append((inner, _ATTACHED))
            self._enter()
        self._call_up()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if inner is not self._outer:
            super()._inner_burst(inner, burst, over)
            return
        if burst:
            came, before = self._newest[0] + len(burst), self._newest[1]
            self._newest = (came, burst[-1:])
            self._discard([*burst[:-1], taken(before)])
            del burst
            first = self._up.enter()
            number, current = self._current
            if current is not None and number < came:
                current.cancel()  # at once: the upward work may be busy with its elements
            if first:
                self._go_up()
        if over:
            super()._inner_ended(inner, None)

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        return inner is not self._outer

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        came, newest = self._newest
        opened, current = self._current
        if came != opened:
            self._switch(came, newest)
            return True
        self._asks_current = False
        (askable, before), requested = self._askable, self._requested.counter.value
        if current is not None and current is askable:
            due = UNBOUNDED if requested >= UNBOUNDED else requested - before
            if due > self._asked:
                n, self._asked = due - self._asked, due
                sequence = current.hand_over() if due >= UNBOUNDED else None
                if sequence is None:
                    current.ask(n)
                else:
                    self._mail.append((current, _Run(sequence)))
                    self._enter()
                return True
        room = self._prefetch - (self._outer_asked - came)
        if requested and self._outer_attached and room >= replenish_at(self._prefetch):
            self._outer_asked += room
            return self._outer.ask_for_a_turn(room)
        return self._demand.value > 0 and self._outer.ask_for_a_turn()

    def _switch(self, number: int, newest: list[Any]) -> None:
        before, fn = self._current[1], self._fn
        if before is not None:
            self._inners.discard(before)
            before.cancel()
        element = taken(newest)
        if fn is None or element is None:
            return
        try:
            inner = new_inner(self, publisher_from("switch_map", fn, element))
        except RecursionError:  # propagates to a caller where the stack has room again
            raise
        except Exception as raised:
            self._fail(raised)
            return
        finally:
            del element
        self._asked = 0
        self._mail.append((inner, _SWITCH))
        self._current = (number, inner)  # after the message, and before a thread may read it
        self._enter()
        if self._newest[0] == number and self._add(inner):
            inner.subscribe()

    # -- the drain -------------------------------------------------------------------------------

    def _to_ask(self) -> bool:
        return self._asks_current

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
                if inner.owner is not None:  # else it was switched from
                    self._delivered += len(what)
                    self._deliver(what)
                else:
                    self._discard(what)
            elif isinstance(what, _Run):
                end = self._run_on(*what.sequence)
                if isinstance(end, Ended):
                    mail.appendleft((inner, end))
                elif end is RunStatus.MORE:
                    mail.append((inner, what))
            elif what is _ATTACHED:
                self._askable = (inner, self._delivered)
                self._asks_current = True
            elif what.error is not None:
                self._fail(what.error)
            elif inner is self._outer:
                self._outer_over = True
            else:
                self._active = None
        if self._demand.value < 0:
            return self._act_on_end()
        if self._outer_over and self._active is None:
            opening = self._newest[0] != self._current[0]
            if not opening and not self._mail:  # last: _SWITCH is mailed before _current is set
                return self._complete()
        return False

    def _drop_references(self) -> None:
        super()._drop_references()
        self._active = None
        self._askable = (None, 0)

    def _forget_upward(self) -> None:
        self._fn = None
        self._current = (0, None)
        self._newest = (0, [])
