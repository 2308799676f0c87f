"""Streams that a stream is divided into, which elements come for while they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import Any, ClassVar

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, RunStatus
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.parking import signallers_here
from rstreams_fast.streams.engine.assembly import Foreign
from rstreams_fast.streams.engine.boundary import ListSubscriber, StagesSource
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.inner_subscriber import InnerSubscriber
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.not_picklable import is_internal
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.stages import Stages

__all__ = ["Divider", "Part", "ToStream"]

ToStream = Callable[[Foreign], Publisher[Any]]
_NO_STAGES = Stages()


class Part:
    """What is held of one part. Each element is counted once, by the thread that takes it out."""

    __slots__ = ("abandoned", "divider", "elements", "error", "key", "over", "reader", "removed")

    def __init__(self, divider: Divider, key: Hashable) -> None:
        self.elements: deque[Any] = deque()
        self.divider = divider
        self.key = key
        self.reader: _PartSubscription | None = None
        self.abandoned = False  # nobody has subscribed, and nobody can
        self.over = False
        self.removed = DemandCounter()  # terminated by who closes it
        self.error: BaseException | None = None

    def wake(self) -> None:
        """Have what was put in ``elements`` delivered, as far as it is asked for."""
        if self.reader is not None:
            self.reader._enter()
        elif self.abandoned and self.divider.takes_no_more:
            self.discard()

    def end(self, error: BaseException | None) -> None:
        """End it, after what is held."""
        self.error = error
        self.over = True
        self.wake()

    def discard(self) -> None:
        """Take out all that is left."""
        count = 0
        with suppress(IndexError):  # another thread may take them out, too
            while self.elements:
                self.elements.popleft()
                count += 1
        if count:
            self.divider.took(count)


class _Once(StagesSource):
    """The publisher of a part, for one subscriber; the user's alone, so that its end is seen."""

    __slots__ = ("__weakref__", "_latch", "_part")

    where = "the threads that upstream signals on, and the caller of request"
    is_sequence = True  # as a source, which it is for ``whole`` only

    def __init__(self, part: Part) -> None:
        self._part = part
        self._latch = DemandCounter()

    @property
    def key(self) -> Any:
        """The key of the part."""
        return self._part.key

    def with_stages(self, stages: Stages) -> _OnceBelow:
        return _OnceBelow(self, stages)

    def whole(self) -> _Once | None:
        """Itself, as a source, if all its elements are there and nobody has taken them."""
        part = self._part
        whole = part.divider.gives_whole_parts and part.over and part.error is None
        own = part.divider.custody is None and self._latch.value >= 0
        return self if whole and own else None

    def open(self) -> Iterator[Any]:
        """Give its elements, which are all there."""
        if not self._latch.terminate():
            raise _had_its_subscriber()
        elements, self._part.elements = self._part.elements, deque()
        return iter(elements)

    def describe(self) -> str:
        """Name it in one line."""
        return "a part of a stream"

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self.subscribe_below(_NO_STAGES, subscriber)

    def subscribe_below(self, stages: Stages, subscriber: Subscriber[Any]) -> None:
        if self._latch.terminate():
            divider = self._part.divider
            if divider.signals_here():
                signallers_here().append(divider.signals_here)
            self._part.reader = reader = _PartSubscription(subscriber, self._part, stages)
            reader._begin()
        else:
            refuse(subscriber, _had_its_subscriber())

    def __del__(self) -> None:
        # At the exit modules are empty.
        if self._latch.terminate() and call_from_finalizer is not None:
            self._part.abandoned = True
            call_from_finalizer(self._part.divider.forget_abandoned)


def _had_its_subscriber() -> RuntimeError:
    return RuntimeError("this part of a stream has had its one subscriber")


class _OnceBelow:
    """The same below stages."""

    __slots__ = ("_once", "_stages")

    where = _Once.where

    def __init__(self, once: _Once, stages: Stages) -> None:
        self._once = once
        self._stages = stages

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self._once.subscribe_below(self._stages, subscriber)


class _PartSubscription(Drain):
    __slots__ = ("_ended", "_part", "_pulled")

    _asked_from_below = False

    def __init__(self, subscriber: Subscriber[Any], part: Part, program: Stages) -> None:
        super().__init__(subscriber, None)
        self._part = part
        self._pulled = 0
        self._ended = program.takes_nothing  # no more is taken from the part
        slot = self._slot_by_bursts(subscriber)
        self._run = run = FusedRun(part.elements, self._stages(program.stages), slot, self._demand)
        if not program.stages or run.ratio == UNBOUNDED:
            self._grows = False  # nothing is slow, or nothing comes out before the end
            self._burst = BURST

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return self._part.divider.metrics()

    @property
    def waiting(self) -> Subscriber[Any] | None:
        """The subscriber, if it has asked for elements and there is none."""
        return self._subscriber if self._demand.value > 0 and not self._part.elements else None

    def sleeps(self, waiting: set[int]) -> bool:
        """Whether the subscriber asks for nothing, and will not by itself, so far.

        A subscriber of the package may be slow, or wait for a slow one. It sleeps if it needs an
        element from another one, whose ``id`` is in ``waiting``. Of a foreign one nothing is known.
        """
        subscriber = self._subscriber
        if self._demand.value != 0 or self._wip.value != 0 or subscriber is None:
            return False
        if isinstance(subscriber, InnerSubscriber):
            return any(id(other) in waiting for other in subscriber.lacking)
        return not is_internal(subscriber)

    def _drain(self) -> None:
        super()._drain()
        self._part.divider.ask_again()  # not from within the drain: upstream may be slow to answer

    def _work(self) -> bool:
        part, run = self._part, self._run
        if self._demand.value < 0:
            self._drop_references()  # again, for what came after that
            return self._act_on_end()
        if run is None:
            return False
        if self._ended:
            return self._end(run)
        over = part.over  # read before the elements that came before it
        if not self._demand.value and (part.elements or not over):
            return False
        status = self._burst_on(run)
        part.divider.took(run.pulled - self._pulled)
        self._pulled = run.pulled
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.ENDED:
            return self._end(run)
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._answer(status, run)
        if over and not part.elements:
            if part.error is None:
                return self._end(run)
            self._fail(part.error)
            return self._act_on_end()
        return False

    def _end(self, run: FusedRun) -> bool:
        """Deliver what stages hold: nothing more is wanted, or none comes."""
        self._ended = True
        self._stop()
        self._part.discard()
        status = self._flush(run)
        return False if status is RunStatus.IDLE else self._answer(status, run)

    def _stop(self) -> None:
        self._part.divider.close_part(self._part)

    def _drop_references(self) -> None:
        self._part.discard()
        self._part.error = None


class Divider(OperatorSubscriber, ListSubscriber):
    """Publishes what it makes of upstream's elements, parts or lists, as it is asked.

    Who cancels takes no more parts; upstream is cancelled when nobody reads those that are open.
    Subclasses fill in ``_take``, ``_finish_parts`` and ``_room``.
    """

    #: Whether the elements of a part that is over make no room as they leave it one by one.
    gives_whole_parts: ClassVar[bool] = False

    __slots__ = (
        "_asked",
        "_asking",
        "_came",
        "_failed",
        "_made",
        "_name",
        "_open",
        "_signals",
        "_touched",
        "_waits",
        "burst",
    )

    def __init__(self, subscriber: Subscriber[Any], name: str) -> None:
        super().__init__(subscriber, None)
        # Plain code on the loop may read a part, and cannot wait for another turn of the loop.
        self.turns = None
        self._name = name
        self._made: deque[Any] = deque()  # what is to be delivered
        self._run = FusedRun(self._made, (), self._slot_by_bursts(subscriber), self._demand)
        self._open: dict[Hashable, Part] = {}
        self._touched: dict[Part, None] = {}  # to be woken when all of a burst have been taken
        self.burst: list[Any] = []
        self._failed = False
        self._asked = self._came = 0  # elements: by the thread that asks, and by upstream
        self._asking = DemandCounter(1)  # WIP of asking: held until on_subscribe has returned
        self._signals = 0  # the thread in which upstream signals, at this moment
        self._waits = Waits()

    def signals_here(self) -> bool:
        """Whether this thread is upstream's, which nothing more comes from before it has left."""
        return self._signals == get_ident()

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more (§3.8)."""
        super().request(n)
        self.ask()

    def cancel(self) -> None:
        """Take no more parts (§3.12); what those held that nobody can read makes room."""
        super().cancel()
        self.ask_again()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What is held for those that are open, then the boundaries above."""
        held = sum(len(part.elements) for part in list(self._open.values()))
        mine = self._waits.metrics(self._demand, name=self._name, held=held, max_held=self._most())
        return (mine, *super().metrics())

    # -- signals from upstream -------------------------------------------------------------------

    def _begin(self) -> None:
        if self._introduce():
            self._go()
            self._ask_now()

    def on_next(self, element: Any, /) -> None:
        """Do with an element what the operator does."""
        self._check_element(element)
        self.burst.append(element)
        self.on_burst()

    def on_burst(self) -> None:
        """Do the same with several."""
        burst = self.burst.copy()
        self.burst.clear()
        signals, self._signals = self._signals, get_ident()
        here = signallers_here()
        before = len(here)
        try:
            self._signal(burst)
        finally:
            self._signals = signals
            del here[before:]

    def _signal(self, burst: list[Any]) -> None:
        try:
            if self._upstream.over:
                self._upstream.unwanted()
            elif self.custody is None:
                self._take(burst)
            else:
                for element in burst:
                    if self._upstream.over:
                        break
                    self.custody.claim(element)  # it may leave in several parts, or in none
                    self._take([element])
        except Exception as raised:
            self._fail(raised)
        finally:
            burst.clear()  # a traceback keeps this frame (§3.13)
            element = None
        if self._made:
            self._enter()
        touched, self._touched = self._touched, {}
        for part in touched:
            part.wake()
        if self._failed:  # those that were opened meanwhile: nobody has them
            self._end_all(RuntimeError("the stream that this was a part of has failed"))
        self.look_for_readers()

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on, to the parts that are open, too."""
        if self._demand.cancelled and self._upstream.ended():
            self._fail(error)
        else:
            super().on_error(error)

    def on_complete(self) -> None:
        """Complete, after the parts that are open."""
        if not self._upstream.over:
            self._finish_parts()
            self._end_all(None)
        super().on_complete()
        self.look_for_readers()

    def _fail(self, error: BaseException) -> None:
        self._failed = True  # the error itself would keep those that subscribed (§3.13)
        if not self._demand.cancelled or not self._open:
            super()._fail(error)
        self._end_all(error)
        self.look_for_readers()

    def _end_all(self, error: BaseException | None) -> None:
        for part in list(self._open.values()):
            self._remove(part)
            part.end(error)

    def _remove(self, part: Part) -> None:
        """Have ``part`` open no more, once for each; another may have its key."""
        if self._open.get(part.key) is part and part.removed.terminate():
            self._open.pop(part.key, None)

    # -- parts -----------------------------------------------------------------------------------

    def _new_part(self, key: Hashable, to_stream: ToStream) -> tuple[Part, Publisher[Any]]:
        """Open a part; the stream of it is to be delivered when its first element is in."""
        self._open[key] = part = Part(self, key)
        return part, to_stream(Foreign(_Once(part), self._name, trusted=True))

    def _push(self, part: Part, elements: list[Any]) -> None:
        part.elements.extend(elements)
        self._touched[part] = None

    def took(self, n: int) -> None:
        """Note that so many elements have left their part."""

    def ask_again(self) -> None:
        """Ask for as many as have left, if they make room. Not within a drain."""

    def close_part(self, part: Part) -> None:
        """Open another one for the elements of ``part``, which is over or not wanted."""
        self._remove(part)
        self.look_for_readers()

    @property
    def takes_no_more(self) -> bool:
        """Whether no part is wanted any more but those that somebody has."""
        return self._demand.value < 0

    def look_for_readers(self) -> None:
        """Cancel upstream if no part is wanted, and none of those that are open is read."""
        if self.takes_no_more:
            for part in self._holding():
                if part.abandoned:
                    self._remove(part)
                    part.discard()
            if not self._open:
                self._upstream.cancel()

    def forget_abandoned(self) -> None:
        """Look for readers, and ask for as many elements as those held that nobody can read."""
        self.look_for_readers()
        self.ask_again()

    def _holding(self) -> list[Part]:
        """Those that may hold elements."""
        return list(self._open.values())

    # -- what the operator does ------------------------------------------------------------------

    def _take(self, burst: list[Any]) -> None:
        """Put elements where they belong, and count them in ``_came``."""
        raise NotImplementedError

    def _finish_parts(self) -> None:
        """Deliver what was kept until upstream's end."""

    def _room(self) -> int:
        """How many more elements to ask for."""
        raise NotImplementedError

    def _most(self) -> int:
        """How many may be held."""
        raise NotImplementedError

    # -- the drain, and asking upstream ----------------------------------------------------------

    def _work(self) -> bool:
        run = self._run
        if self._demand.value < 0 or run is None:
            self._made.clear()
            return self._act_on_end()
        self._waits.end()
        completed = self._completed  # read before what came before it
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._answer(status, run)
        if completed and not self._made:
            return self._answer(self._flush(run), run)
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        return False

    def ask(self) -> None:
        """Ask upstream for as many as there is room for. Not within a drain."""
        if self._asking.request(1) == 0:
            self._ask_now()

    def _ask_now(self) -> None:
        while True:
            missed = self._asking.value
            room = self._room()
            if room > 0 and not self._upstream.over:
                self._asked += room
                self._request(room)
            if self._asking.fulfil(missed) == 0:
                return

    def _stop(self) -> None:
        if self._demand.cancelled:
            self.look_for_readers()
        else:
            super()._stop()

    def _drop_references(self) -> None:
        self._made.clear()
