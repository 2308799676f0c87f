"""Several publishers above, one subscriber below: what all operators that combine streams share.

There are two kinds of work, each done by one thread at a time:

* *downward*, the drain: signalling the subscriber;
* *upward*: calling the user's function, subscribing to publishers, asking them for elements.

A publisher that is called may answer before the call returns. So the drain makes no such call,
and whatever an answer calls for upward waits until the call before has returned: nothing nests,
however many synchronous publishers there are (§3.3), and the elements of a slow one come out as
they come in. What is to be asked for is noted in the drain; the thread that leaves it, or comes
while it is held, does the asking.

Elements come in bursts, which are mailed to the drain and delivered under one entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, RunStatus
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.boundary import burst_slot
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.pull_source import at_end
from rstreams_fast.streams.engine.signals import report_late

__all__ = ["Combined", "Ended", "FanIn", "QueueingFanIn"]

A = TypeVar("A")


class Ended:
    """The last letter of an inner."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


COMPLETED = Ended(None)
_AT_END = (RunStatus.IDLE, RunStatus.EXHAUSTED, RunStatus.ENDED)


class FanIn(Drain):
    """A subscription below several publishers. Subclasses fill in ``_work``, for the drain,
    ``_upward``, and what inners report to.
    """

    __slots__ = (
        "_delivering",
        "_inners",
        "_mail",
        "_on_next",
        "_open",
        "_take_burst",
        "_unsubscribed",
        "_up",
    )

    _asked_from_below = False

    def __init__(self, subscriber: Subscriber[Any]) -> None:
        super().__init__(subscriber, None)
        #: To be subscribed to before anything else is done upward.
        self._unsubscribed: deque[Inner] = deque()
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self._take_burst: Callable[[list[Any]], None] | None = None
        self._inners: set[Inner] = set()  # those that must be cancelled when the stream ends
        self._mail: deque[tuple[Inner, list[Any] | Ended]] = deque()
        self._open = True  # whether elements are delivered
        self._delivering: list[Any] | None = None  # at this moment
        self._up = DemandCounter(1)  # WIP of upward work: held until on_subscribe has returned

    def start(self) -> None:
        """Introduce ourselves, and begin with the upward work."""
        if self._introduce():
            subscriber = self._subscriber
            if subscriber is not None:
                self._take_burst = burst_slot(subscriber)
            self._go()
            self._go_up()

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        """Make one call upward; false if there is none to be made."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """Act on the end. For the thread that does the upward work."""
        self._forget_upward()

    def _forget_upward(self) -> None:
        """Drop what the upward work keeps: some may have come after all was dropped."""

    def _call_up(self) -> None:
        """Have the upward work done. Not within the drain."""
        if self._up.request(1) == 0:
            self._go_up()

    def _go_up(self) -> None:
        up, turns = self._up, self.turns
        try:
            while True:
                missed = up.value
                while self._demand.value >= 0:
                    first = self._unsubscribed  # replaced, not emptied, by who drops all references
                    if first:
                        self._subscribe(first.popleft())
                    elif not self._upward():
                        break
                    if turns is not None and turns.is_over():
                        self._pause(up, turns)
                        return
                if self._demand.value < 0:
                    self._give_up()
                if up.fulfil(missed) == 0:
                    return
        except BaseException as leaving:
            # KeyboardInterrupt and its like pass through, perhaps to a publisher above, so the
            # subscriber gets the error as well.
            if self._demand.value >= 0:
                self._fail(leaving)
            raise

    def resume(self) -> None:
        """Go on with what was left to this turn."""
        super().resume()
        self._call_up()

    def _subscribe_to(self, publisher: Publisher[Any]) -> Inner:
        """Subscribe to ``publisher``, unless the stream has ended."""
        inner = new_inner(self, publisher)
        self._subscribe(inner)
        return inner

    def _subscribe(self, inner: Inner) -> None:
        if self._add(inner):
            inner.subscribe()

    def _add(self, inner: Inner) -> bool:
        """Have ``inner`` cancelled when the stream ends; false if it has ended already."""
        self._inners.add(inner)
        if self._demand.value >= 0:
            return True
        self._inners.discard(inner)  # who ended it may have looked before
        inner.cancel()
        return False

    # -- from inners, any thread -----------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        raise NotImplementedError

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._mail.append((inner, burst))
        if over:
            self._mail.append((inner, COMPLETED))
        del burst  # a traceback keeps this frame (§3.13)
        self._enter()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        self._mail.append((inner, COMPLETED if error is None else Ended(error)))
        self._enter()

    def _lacking_for(self, inner: Inner, /) -> list[Inner]:  # noqa: ARG002 - by default, for none
        return []

    # -- the drain -------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._wip.request(1) == 0:
            self._drain()
        if self._to_ask():  # it was left by the drain, whose holder may be busy for long
            self._call_up()

    def _to_ask(self) -> bool:
        """Whether the drain has left something for the upward work."""
        raise NotImplementedError

    def _deliver(self, burst: list[Any]) -> None:
        """Hand elements on, which all are asked for, and empty their list."""
        count = len(burst)
        take_burst = self._take_burst
        on_next = self._on_next
        if on_next is None or not self._open:
            return
        try:
            if take_burst is not None:
                take_burst(burst)
            else:
                self._delivering = burst
                if self._open:  # else it was too early to empty the burst
                    for element in burst:
                        on_next(element)
        except RecursionError:
            raise
        except Exception as raised:
            self.cancel()
            report_dropped(raised, "§2.13: on_next raised")
        finally:
            self._delivering = None
            burst.clear()  # a traceback keeps this frame, and those that called it (§3.13)
            on_next = take_burst = element = None
        self._demand.fulfil(count)

    def _cut_short(self) -> None:
        """Deliver nothing more of the burst that is being delivered."""
        delivering = self._delivering
        if delivering is not None:
            delivering.clear()  # which ends the loop over it

    def _run_on(
        self,
        iterator: Iterator[Any],
        stages: tuple[tuple[Any, ...], ...],
        demand: DemandCounter,
    ) -> RunStatus | Ended:
        """Deliver a burst of a sequence, from a run to the subscriber: how it has ended, or not."""
        run = self._run
        if run is None:
            if self._subscriber is None:
                return RunStatus.CANCELLED
            slot = self._slot_by_bursts(self._subscriber)
            self._run = run = FusedRun(iterator, stages, slot, demand)
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return status
        try:
            if status is RunStatus.IDLE and not at_end(iterator):
                return status
        except Exception as raised:
            end = Ended(raised)
        else:
            if status in _AT_END:
                status = self._flush(run)
            if status is RunStatus.SLOT_FAILED:
                self._answer(status, run)
            if status is not RunStatus.DONE and status is not RunStatus.FAILED:
                return status
            end = Ended(run.error)
        self._drop_run()
        return end

    def _drop_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.clear()

    def _report_undelivered(self) -> None:
        super()._report_undelivered()
        mail = self._mail  # what was on its way when the stream ended is kept nowhere
        while mail:
            _, what = mail.popleft()
            if isinstance(what, Ended) and what.error is not None:
                report_late(what.error)

    def _stop(self) -> None:
        self._open = False
        self._cut_short()
        for inner in self._inners.copy():
            inner.cancel()

    def _drop_references(self) -> None:
        self._open = False
        self._on_next = self._take_burst = None
        unsubscribed, self._unsubscribed = self._unsubscribed, deque()
        for inner in (*self._inners.copy(), *unsubscribed.copy()):
            inner.cancel()  # the thread that ends this may not have arrived at it yet
            inner.forget()
        self._inners.clear()
        self._forget_upward()


class QueueingFanIn(FanIn):
    """Publishers that are all asked ahead, for ``prefetch`` elements each, which wait here for
    demand.
    """

    __slots__ = (
        "_asks",
        "_begun",
        "_max_held",
        "_name",
        "_prefetch",
        "_replenish_at",
        "_unfinished",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], prefetch: int, name: str, max_held: int
    ) -> None:
        super().__init__(subscriber)
        self._prefetch = prefetch
        self._replenish_at = replenish_at(prefetch)
        self._name = name
        self._max_held = max_held
        self._asks: deque[tuple[Inner, int]] = deque()
        self._unfinished: deque[Inner] = deque()  # that are to be asked for more in another turn
        self._waits = Waits(on_look=True)
        self._begun = False  # nobody is asked before the subscriber has asked

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        super().request(n)
        if not self._begun and self._demand.value > 0:
            self._begun = True
            self._call_up()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What is held here and waited for, then the boundaries above, inner by inner."""
        inners = self._inners.copy()
        mine = self._waits.metrics(
            self._demand,
            name=self._name,
            held=sum(len(what) for _, what in self._mail.copy() if isinstance(what, list))
            + sum(len(inner.queue or ()) for inner in inners),
            max_held=self._max_held,
        )
        return (mine, *(metrics for inner in inners for metrics in inner.metrics()))

    def _upward(self) -> bool:
        # Replaced, not emptied, by who drops all references.
        asks, unfinished = self._asks, self._unfinished
        asked = bool(asks) and self._begun
        if asked:
            self._ask_inner(*asks.popleft())
        if unfinished and self._demand.value > 0:
            self._ask_inner(unfinished.popleft(), 0)
            asked = True
        return asked

    def _ask_inner(self, inner: Inner, n: int) -> None:
        inner.ask_for_a_turn(n)
        if inner.due and inner not in self._unfinished:
            self._unfinished.append(inner)

    def _to_ask(self) -> bool:
        return bool(self._asks or (self._unfinished and self._demand.value > 0))

    def _inner_attached(self, inner: Inner, /) -> None:
        self._asks.append((inner, self._prefetch))
        self._call_up()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if error is not None and not self._delays(error):
            self._fail(error)  # at once: it overtakes what waits for demand
        else:
            super()._inner_ended(inner, error)

    def _work(self) -> bool:
        self._waits.end()
        more = self._step()
        if not more:
            self._waits.begin(for_demand=self._demand.value == 0)
        return more

    def _step(self) -> bool:
        """Do some work; true if there is more to do at once."""
        raise NotImplementedError

    def _delays(self, error: BaseException) -> bool:  # noqa: ARG002
        """Whether the error of an inner comes after all elements."""
        return False

    def _drop_references(self) -> None:
        super()._drop_references()
        self._asks = deque()
        self._unfinished = deque()


class Combined(Generic[A]):
    """A publisher: a fan-in below ``upstream``, and others, made anew for each subscriber.

    ``make(subscriber, upstream, argument)`` returns it.
    """

    def __init__(
        self,
        upstream: Publisher[Any],
        make: Callable[[Subscriber[Any], Publisher[Any], A], FanIn],
        argument: A,
    ) -> None:
        self._upstream = upstream
        self._make = make
        self._argument = argument

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Start a fan-in for ``subscriber``."""
        self._make(subscriber, self._upstream, self._argument).start()
