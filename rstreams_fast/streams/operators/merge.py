"""``merge``: delivers the elements of several publishers. ``flat_map`` also uses this file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from rstreams_fast._checks import check_bool, check_capacity
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.defaults import BURST, DELAYED_ERRORS
from rstreams_fast.streams.engine.fan_in import COMPLETED, FanIn, Prefetch, describe_prefetch
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["Merging", "ToPublisher", "check_publishers", "flattened", "merge_source"]

ToPublisher = Callable[[Any], Publisher[Any]]


def merge_source(
    publishers: tuple[Publisher[Any], ...], prefetch: int, delay_error: bool
) -> PublisherSource:
    """Check the arguments of ``rstreams_fast.merge``, and return the merged source.

    The caller must pass at least one publisher.
    """
    check_publishers("merge", publishers)
    prefetch = check_capacity("prefetch", prefetch)
    check_bool("delay_error", delay_error)
    options = prefetch, delay_error

    def is_alike(inside: object) -> bool:
        return isinstance(inside, _Merge) and inside.options == options

    merged = _Merge(tuple(flattened(publishers, is_alike)), prefetch, delay_error)
    return PublisherSource(merged, merged.describe(), trusted=True, inside=merged.publishers)


def check_publishers(operator: str, publishers: Iterable[object]) -> None:
    """Raise a ``TypeError`` if a publisher has no method ``subscribe``.

    The message names ``operator``, and gives the number of the publisher, counted from 1.
    """
    for number, publisher in enumerate(publishers, 1):
        check_publisher(publisher, f"{operator}(*publishers): publisher {number}")


def flattened(
    publishers: Iterable[Publisher[Any]], is_alike: Callable[[Any], bool]
) -> Iterator[Publisher[Any]]:
    """Yield ``publishers``. Replace a merged or concatenated publisher by its parts.

    The parts are the publishers from which it was made. A publisher is replaced if
    ``is_alike(publisher)`` is true. So in ``a.merge(b).merge(c)`` one subscription merges ``a``,
    ``b`` and ``c``. Without this, a long chain of nested subscriptions would exhaust the stack.
    """
    for publisher in publishers:
        inside = publisher.publisher_itself() if isinstance(publisher, Pipeline) else None
        if is_alike(inside):
            yield from inside.publishers  # type: ignore[union-attr]
        else:
            yield publisher


class _Merge:
    def __init__(
        self, publishers: tuple[Publisher[Any], ...], prefetch: int, delay_error: bool
    ) -> None:
        self.publishers = publishers
        self.options = (prefetch, delay_error)

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        size, delay_error = self.options
        prefetch = Prefetch(size, self.describe(), len(self.publishers))
        Merging(subscriber, prefetch, delay_error, self.publishers).start()

    def describe(self) -> str:
        prefetch, delay_error = self.options
        late = ", errors after elements" if delay_error else ""
        return describe_prefetch("merge", len(self.publishers), prefetch) + late


class DelayedErrors:
    """Collects publishers' errors. With ``delay``, errors are signalled after all elements."""

    __slots__ = ("_delay", "_errors")

    def __init__(self, delay: bool) -> None:
        self._delay = delay
        self._errors: list[BaseException] = []

    def delays(self, error: BaseException) -> bool:
        """Return whether ``error`` must wait until the elements of all publishers are delivered."""
        return self._delay and isinstance(error, Exception)

    def add(self, error: BaseException) -> None:
        """Keep ``error``. If too many errors are kept, report ``error`` to ``on_dropped_error``."""
        if len(self._errors) < DELAYED_ERRORS:
            self._errors.append(error)
        else:
            report_dropped(error, f"more than {DELAYED_ERRORS} publishers failed")

    def take(self) -> list[BaseException]:
        errors, self._errors = self._errors, []
        return errors


class Outer:
    """The state of ``flat_map``'s upstream. The function ``fn`` makes a publisher of each element.

    Each of these publishers has an inner subscriber. At most ``concurrency`` elements are in
    progress at a time. An element is in progress from its request until all elements of its
    publisher are delivered. With ``sequential``, only the oldest inner subscriber delivers.
    """

    __slots__ = ("_line", "concurrency", "elements", "fn", "inner", "turn", "vacant")

    def __init__(self, inner: Inner, fn: ToPublisher, concurrency: int, sequential: bool) -> None:
        self.inner = inner
        self.fn: ToPublisher | None = fn
        self.concurrency = concurrency
        self.elements: deque[Any] = deque()
        self.vacant = DemandCounter()  # how many elements may be requested from upstream now
        self.turn = False
        # ``_line``: with ``sequential``, the inner subscribers in the order of delivery; else None.
        self._line: deque[Inner] | None = deque() if sequential else None

    def add(self, inner: Inner) -> None:
        """With ``sequential``, let ``inner`` deliver after all earlier inner subscribers.

        Without ``sequential``, do nothing. Only ``_open_inner`` may call this method, because it
        makes the inner subscribers in the order of upstream's elements.
        """
        line = self._line  # read the field once: clear(), on another thread, may replace it
        if line is not None:
            line.append(inner)

    def delivers(self, inner: Inner) -> bool:
        """Return whether ``inner`` may deliver. With ``sequential``, only the oldest one may."""
        line = self._line
        return line is None or (bool(line) and line[0] is inner)

    def next(self) -> Inner | None:
        """With ``sequential``, return the oldest inner subscriber that can still deliver.

        If there is none, or if publishers may deliver in any order (without ``sequential``), return
        ``None``. Only the delivering thread may call this method.
        """
        line = self._line
        while line and line[0].done and not line[0].queue:
            line.popleft()
        return line[0] if line else None

    def clear(self) -> None:
        """Drop all references. Replace the deques, because another thread may be using them."""
        self.fn = self._line = None
        self.elements = deque()


class Merging(FanIn):
    """The subscription of ``merge`` and ``flat_map``: delivers the elements of several publishers.

    ``merge`` passes the publishers as an argument. ``flat_map`` makes a publisher from each element
    of upstream. Elements are delivered as they arrive. If elements of several publishers wait, one
    element of each is delivered in turn. But with ``sequential`` a publisher's elements follow all
    elements of the previous publisher. An ``Inner`` is the subscriber to one publisher.
    """

    __slots__ = ("_alive", "_errors", "_outer", "_ready")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        prefetch: Prefetch,
        delay_error: bool,
        publishers: Iterable[Publisher[Any]] = (),
    ) -> None:
        super().__init__(subscriber, prefetch)
        self._errors = DelayedErrors(delay_error)
        self._ready: deque[Inner] = deque()  # subscribers with queued elements, the next one first
        self._outer: Outer | None = None
        self._unsubscribed.extend(new_inner(self, publisher) for publisher in publishers)
        # How many publishers have not ended. For ``flat_map`` this number also includes upstream,
        # and the elements from which no publisher was made yet.
        self._alive = DemandCounter(len(self._unsubscribed))

    def flat_map(
        self, upstream: Publisher[Any], fn: ToPublisher, concurrency: int, *, sequential: bool
    ) -> None:
        """Merge the publishers that ``fn`` makes from the elements of ``upstream``.

        Call this before ``start``.
        """
        inner = new_inner(self, upstream)
        self._outer = Outer(inner, fn, concurrency, sequential)
        self._unsubscribed.append(inner)
        self._alive.request(1)

    # -- calls to publishers -----------------------------------------------------------------------

    def _upward(self) -> bool:
        outer = self._outer
        if outer is None:
            return self._prefetch.step(self._demand)
        # Alternate between two tasks: subscribe to the next publisher, and request elements from
        # publishers. If one task always came first, the other task might never be done.
        if (outer.turn or not self._prefetch.due_requests) and self._open_more(outer):
            outer.turn = False
            return True
        outer.turn = True
        return self._prefetch.step(self._demand)

    def _open_more(self, outer: Outer) -> bool:
        """Make a publisher from one waiting element, and subscribe to the publisher.

        If no element waits, request elements from upstream instead. Return false if neither is
        possible now.
        """
        elements, fn = outer.elements, outer.fn  # copies, because clear() may replace the fields
        if elements and fn is not None:
            self._open_inner(outer, fn, elements.popleft())
            return True
        vacant = outer.vacant.value
        if vacant and self._prefetch.has_begun(self._demand):
            outer.vacant.fulfil(vacant)
            self._prefetch.request(outer.inner, vacant)
            return True
        return False

    def _open_inner(self, outer: Outer, fn: ToPublisher, element: Any) -> None:
        try:
            publisher = fn(element)
        except Exception as raised:
            self._inner_ended(Inner(self), raised)
            return
        finally:
            del element  # drop the element: an error's traceback would keep it alive (§3.13)
        inner = new_inner(self, publisher)
        outer.add(inner)
        self._subscribe(inner)

    def _forget_upward(self) -> None:
        super()._forget_upward()
        if self._outer is not None:
            self._outer.clear()

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        outer = self._outer
        if outer is not None and inner is outer.inner:
            outer.vacant.request(outer.concurrency)
            self._enter_upward()
        else:
            super()._inner_attached(inner)

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        """Deliver ``burst`` immediately, if there is demand for all its elements.

        Otherwise queue ``burst``. Also queue it if other elements wait, if another thread is
        delivering, or if the next request to the publisher is due.
        """
        outer, wip = self._outer, self._wip
        if outer is not None and inner is outer.inner:
            self._outer_burst(outer, burst, over)
            return
        if (outer is not None and not outer.delivers(inner)) or not wip.enter():
            super()._inner_burst(inner, burst, over)
            return
        count = len(burst)
        prefetch, ready = self._prefetch, self._ready
        if (
            self._mail
            or ready
            or prefetch.waits.counts
            or self._demand.value < count
            or inner.consumed + count >= prefetch.replenish_at
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
            if not ready and wip.leave():
                if over and self._upward_is_due():
                    self._enter_upward()
                return
        self._drain()
        if self._upward_is_due():
            self._enter_upward()

    def _outer_burst(self, outer: Outer, burst: list[Any], over: bool) -> None:
        if burst:
            self._alive.request(len(burst))
            outer.elements += burst
        if over:
            self._inner_ended(outer.inner, None)
        self._enter_upward()

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        return self._errors.delays(error)

    # -- delivering elements -----------------------------------------------------------------------

    def _upward_is_due(self) -> bool:
        outer = self._outer
        if outer is not None and outer.vacant.value > 0:
            return True
        return self._prefetch.is_due(self._demand)

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        prefetch = self._prefetch
        prefetch.waits.end()
        if self._mail:
            self._sort()
        ready = self._ready
        if not ready or not demand:
            return prefetch.begin_wait(demand)
        if demand >= len(ready):
            turn = list(ready)
            ready.clear()
        else:
            turn = [ready.popleft() for _ in range(demand)]
        # ``most`` limits this delivery: it stops when the next request to one of the publishers is
        # due, so that the request is made before more elements are delivered.
        most = min(prefetch.replenish_at - inner.consumed for inner in turn)
        burst = _take_turns(turn, min(max(1, min(demand, BURST) // len(turn)), most))
        each = len(burst) // len(turn)
        self._deliver(burst)
        for inner in turn:
            if inner.queue:
                ready.append(inner)
            elif inner.done:
                self._over(inner)
                continue
            prefetch.count_delivered(inner, each)
        return True

    def _sort(self) -> None:
        """Move the received elements from ``_mail`` to the queues of their publishers."""
        mail, outer = self._mail, self._outer
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
                    if outer is None or outer.delivers(inner):
                        self._ready.append(inner)
                continue
            if what.error is not None:
                self._errors.add(what.error)
            inner.done = True
            if not inner.queue:
                self._over(inner)

    def _over(self, inner: Inner) -> None:
        """Remove ``inner``: its publisher has ended, and all its elements were delivered."""
        self._inners.discard(inner)
        inner.forget()
        if self._alive.fulfil(1) == 0:
            self._end()
        outer = self._outer
        if outer is not None and inner is not outer.inner:
            outer.vacant.request(1)
            next_inner = outer.next()
            if next_inner is not None and next_inner.queue and not self._ready:
                self._ready.append(next_inner)

    def _end(self) -> None:
        errors = self._errors.take()
        if not errors:
            self._complete()
        elif len(errors) == 1:
            self._fail(errors[0])
        else:
            self._fail(BaseExceptionGroup("several publishers failed", errors))

    def _report_undelivered(self) -> None:
        super()._report_undelivered()
        for error in self._errors.take():
            report_late(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._ready = deque()


def _take_turns(turn: list[Inner], most: int) -> list[Any]:
    """Take equally many elements, at most ``most``, from the queue of each subscriber in ``turn``.

    Return a list with the first element of each queue, then the second element of each queue, and
    so on.
    """
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
