"""Merging: the elements of several publishers, as they come, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from rstreams_fast._checks import check_bool, check_capacity
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.assembly import Foreign
from rstreams_fast.streams.engine.defaults import BURST, DELAYED_ERRORS
from rstreams_fast.streams.engine.fan_in import COMPLETED, QueueingFanIn
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["Merging", "check_publishers", "merge_source"]


def merge_source(
    publishers: tuple[Publisher[Any], ...], prefetch: int, delay_error: bool
) -> Foreign:
    """The source of ``rstreams_fast.merge``, its arguments checked: one publisher or more."""
    check_publishers("merge", publishers)
    prefetch = check_capacity("prefetch", prefetch)
    check_bool("delay_error", delay_error)
    merged = _Merge(tuple(_flat(publishers, prefetch, delay_error)), prefetch, delay_error)
    return Foreign(merged, merged.describe(), trusted=True, inside=merged.publishers)


def check_publishers(operator: str, publishers: Iterable[object]) -> None:
    """Refuse what has no ``subscribe``, and say which it was."""
    for number, publisher in enumerate(publishers, 1):
        check_publisher(publisher, f"{operator}(*publishers): publisher {number}")


def _flat(
    publishers: Iterable[Publisher[Any]], prefetch: int, delay_error: bool
) -> Iterator[Publisher[Any]]:
    """Take merges of the same kind apart: a long chain of ``stream.merge(other)`` is no deep
    stack.
    """
    for publisher in publishers:
        inside = publisher.publisher_itself() if isinstance(publisher, Pipeline) else None
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


class Merging(QueueingFanIn):
    """Delivers the elements of all inners; by turns, where there is a choice."""

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
        self._alive = DemandCounter(alive)  # inners that may still bring something, or more inners
        self._delay_error = delay_error
        self._errors: list[BaseException] = []
        self._ready: deque[Inner] = deque()  # those that have elements, in turn

    def _delays(self, error: BaseException) -> bool:
        return self._delay_error and isinstance(error, Exception)

    # -- from inners, any thread -----------------------------------------------------------------

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        """Deliver at once where nothing stands in between: with demand, and nobody at work."""
        wip = self._wip
        if wip.request(1) != 0:
            super()._inner_burst(inner, burst, over)
            return
        count = len(burst)
        if (
            self._mail
            or self._ready
            or self._waits.counts
            or self._demand.value < count
            or inner.consumed + count >= self._replenish_at
        ):
            self._mail.append((inner, burst))
            if over:
                self._mail.append((inner, COMPLETED))
        else:
            try:
                self._deliver(burst)
            except BaseException as leaving:
                self._interrupted(leaving)
                raise
            inner.consumed += count
            if over:
                inner.done = True
                self._over(inner)
            if wip.fulfil(1) == 0:
                if over and self._to_ask():
                    self._call_up()
                return
        self._drain()
        if self._to_ask():
            self._call_up()

    # -- the drain -------------------------------------------------------------------------------

    def _step(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        if self._mail:
            self._sort()
        ready = self._ready
        if not ready or not demand:
            return False
        if demand >= len(ready):
            turn = list(ready)
            ready.clear()
        else:
            turn = [ready.popleft() for _ in range(demand)]
        # Where others are to be asked for, it is done before the next elements are delivered.
        most = min(self._replenish_at - inner.consumed for inner in turn)
        burst = _take_turns(turn, min(max(1, min(demand, BURST) // len(turn)), most))
        each = len(burst) // len(turn)
        self._deliver(burst)
        for inner in turn:
            inner.consumed += each
            if inner.queue:
                ready.append(inner)
            elif inner.done:
                self._over(inner)
                continue
            if inner.consumed >= self._replenish_at:
                consumed, inner.consumed = inner.consumed, 0
                if not inner.done:
                    self._asks.append((inner, consumed))
        return True

    def _sort(self) -> None:
        """Put what was mailed where it belongs."""
        mail = self._mail
        while mail:
            inner, what = mail.popleft()
            if inner.done:
                continue
            if isinstance(what, list):
                if inner.queue:
                    inner.queue += what
                    what.clear()
                else:
                    inner.queue = what
                    self._ready.append(inner)
                continue
            if what.error is not None:
                self._note(what.error)
            inner.done = True
            if not inner.queue:
                self._over(inner)

    def _over(self, inner: Inner) -> None:
        """``inner`` sends nothing more, and all its elements were delivered."""
        self._inners.discard(inner)
        inner.forget()
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

    def _report_undelivered(self) -> None:
        super()._report_undelivered()
        errors, self._errors = self._errors, []
        for error in errors:
            report_late(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._ready = deque()


def _take_turns(turn: list[Inner], most: int) -> list[Any]:
    """Take as many elements of each inner, at most ``most``: one of each, then the next ones."""
    if len(turn) == 1:
        (inner,) = turn
        queue = inner.queue or []
        if len(queue) <= most:
            inner.queue = None
            return queue
    queues = [inner.queue or [] for inner in turn]
    each = min(most, *map(len, queues))
    burst = list(chain.from_iterable(zip(*(queue[:each] for queue in queues), strict=True)))
    for queue in queues:
        del queue[:each]
    return burst


class _MergeSubscription(Merging):
    __slots__ = ()

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
        self._unsubscribed.extend(new_inner(self, publisher) for publisher in publishers)
