"""Merging: the elements of several publishers, as they come, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.core._common import check_bool, check_capacity
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.assembly import Foreign
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.junction import Ended, Junction, QueueLink
from rstreams_fast.streams.sources import empty
from rstreams_fast.streams.stream import Stream
from rstreams_fast.streams.tuning import BURST, DELAYED_ERRORS, INNER_PREFETCH

__all__ = ["Merging", "check_publishers", "merge"]

T = TypeVar("T")


def merge(
    *publishers: Publisher[T], prefetch: int = INNER_PREFETCH, delay_error: bool = False
) -> Stream[T]:
    """The elements of all ``publishers``, each as soon as it is there and asked for.

    All are subscribed to at once, and asked when the subscriber first asks: for at most
    ``prefetch`` elements ahead of what was delivered, and again when three quarters are. Those that
    have elements waiting take turns. Completes when all have completed; of no publishers, at once.

    The error of one ends the stream at once and cancels the others. With ``delay_error`` it comes
    after everything: itself if it is the only one, else in an ``ExceptionGroup``, of 64 at most;
    those beyond go to ``on_dropped_error``.

    Elements are delivered on the threads that they come on, one at a time. A publisher that works
    on whoever asks it, and waits there, keeps the others from being asked for more meanwhile: give
    it a resource of its own by ``subscribe_on``.

    The publishers may be any objects with ``subscribe``, and need not keep the rules; else it is a
    ``TypeError``.
    """
    check_publishers("merge", publishers)
    prefetch = check_capacity("prefetch", prefetch)
    check_bool("delay_error", delay_error)
    if not publishers:
        return empty()
    merged = _Merge(tuple(_flat(publishers, prefetch, delay_error)), prefetch, delay_error)
    return Stream(Foreign(merged, merged.describe(), trusted=True, inside=merged.publishers))


def check_publishers(operator: str, publishers: Iterable[object]) -> None:
    """Refuse what has no ``subscribe``, and say which it was."""
    for number, publisher in enumerate(publishers, 1):
        if not callable(getattr(publisher, "subscribe", None)):
            hint = "; use from_iterable" if hasattr(publisher, "__iter__") else ""
            raise TypeError(
                f"{operator}(*publishers): publisher {number} must have a method "
                f"subscribe(subscriber), got {type(publisher).__name__}{hint}"
            )


def _flat(
    publishers: Iterable[Publisher[Any]], prefetch: int, delay_error: bool
) -> Iterator[Publisher[Any]]:
    """Take merges of the same kind apart: a long chain of ``stream.merge(other)`` is no deep
    stack.
    """
    for publisher in publishers:
        inside = publisher._publisher_itself() if isinstance(publisher, Stream) else None
        if isinstance(inside, _Merge) and inside.options == (prefetch, delay_error):
            yield from inside.publishers
        else:
            yield publisher


class _Merge:
    def __init__(
        self, publishers: tuple[Publisher[Any], ...], prefetch: int, delay_error: bool
    ) -> None:
        self.publishers = publishers
        self.options = (prefetch, delay_error)

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        check_subscriber(subscriber)
        _MergeSubscription(subscriber, self.publishers, *self.options, self.describe()).start()

    def describe(self) -> str:
        """Say in one line how much may be held."""
        count = len(self.publishers)
        prefetch, delay_error = self.options
        late = ", errors after elements" if delay_error else ""
        return (
            f"merge of {count} publishers: at most {prefetch} elements of each, "
            f"{count * prefetch} in all{late}"
        )


class MergeLink(QueueLink):
    """Delivers at once, where nothing stands in between: with demand, and nobody at work."""

    __slots__ = ()

    def on_next(self, element: Any, /) -> None:
        """Deliver an element, or leave it to whoever holds the drain."""
        owner: Merging | None = self._owner_of(element)
        if owner is None:
            return
        wip = owner._wip
        if wip.request(1) != 0:
            owner._link_next(self, element)
            return
        if owner._mail or owner._ready or owner._demand.value <= 0:
            owner._mail.append((self, element))
        else:
            waits = owner._waits
            if waits is not None:
                waits.end()
            try:
                owner._deliver(element)
            except BaseException as leaving:
                owner._abandon(leaving)
                raise
            finally:
                del element  # a traceback keeps this frame (§3.13)
            if waits is not None:
                waits.begin(for_demand=owner._demand.value == 0)
            self.consumed += 1
            if self.consumed < owner._replenish_at:
                if wip.fulfil(1) == 0:
                    return
            else:
                owner._replenish(self)
        owner._drain()


class Merging(Junction):
    """Delivers what comes by links, whichever comes first; by turns, where there is a choice."""

    __slots__ = ("_alive", "_delay_error", "_errors", "_ready")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        prefetch: int,
        delay_error: bool,
        name: str,
        *,
        concurrency: int,
        alive: int,
    ) -> None:
        super().__init__(subscriber, prefetch, name, concurrency * prefetch)
        self._alive = DemandCounter(alive)  # links that may still bring something, or more links
        self._delay_error = delay_error
        self._errors: list[BaseException] = []
        self._ready: deque[QueueLink] = deque()  # those that have elements, in turn

    def _delays(self, error: BaseException) -> bool:
        return self._delay_error and isinstance(error, Exception)

    # -- the drain -------------------------------------------------------------------------------

    def _step(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._settle()
        if self._mail:
            return self._sort()
        ready = self._ready
        turns = min(demand, BURST, len(ready))
        for _ in range(turns):
            link = ready.popleft()
            queue = link.queue
            if not queue:
                continue
            if len(queue) > 1:
                ready.append(link)
            self._deliver(queue.popleft())
            link.consumed += 1
            if link.done:
                if not queue:
                    self._over(link)
            elif link.consumed >= self._replenish_at:
                self._replenish(link)
            if self._demand.value < 0:
                break
        return turns > 0

    def _sort(self) -> bool:
        """Put what was mailed where it belongs."""
        mail = self._mail
        while mail:
            link, what = mail.popleft()
            if link.done:
                continue
            if type(what) is not Ended:
                if not link.queue:
                    self._ready.append(link)
                link.put(what)
                continue
            if what.error is not None:
                self._note(what.error)
            link.done = True
            if not link.queue:
                self._over(link)
        return True

    def _replenish(self, link: QueueLink) -> None:
        if link.consumed >= self._replenish_at and not link.done:
            consumed, link.consumed = link.consumed, 0
            self._asks.append((link, consumed))

    def _over(self, link: QueueLink) -> None:
        """Nothing more comes by ``link``, and all that came was delivered."""
        self._links.discard(link)
        link.forget()
        if self._alive.fulfil(1) == 0:
            self._end()

    def _end(self) -> None:
        errors, self._errors = self._errors, []
        if not errors:
            self._complete()
        elif len(errors) == 1:
            self._fail(errors[0])
        else:
            self._fail(BaseExceptionGroup("several publishers failed", errors))

    def _note(self, error: BaseException) -> None:
        if len(self._errors) < DELAYED_ERRORS:
            self._errors.append(error)
        else:
            report_dropped(error, f"more than {DELAYED_ERRORS} publishers failed")

    def _let_go(self) -> None:
        super()._let_go()
        self._ready = deque()
        self._errors = []


class _MergeSubscription(Merging):
    __slots__ = ("_publishers",)

    def __init__(
        self,
        subscriber: Subscriber[Any],
        publishers: tuple[Publisher[Any], ...],
        prefetch: int,
        delay_error: bool,
        name: str,
    ) -> None:
        count = len(publishers)
        super().__init__(subscriber, prefetch, delay_error, name, concurrency=count, alive=count)
        self._publishers = deque(publishers)

    def _upward(self) -> bool:
        publishers = self._publishers  # replaced, not emptied, by who lets go
        if publishers:  # all are subscribed to before any is asked
            publisher = publishers.popleft()
            link = MergeLink(self)
            if self._add(link):
                link.subscribe(publisher)
            return True
        return super()._upward()

    def _let_go(self) -> None:
        super()._let_go()
        self._publishers = deque()
