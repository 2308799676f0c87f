"""``merge_sorted``: merges several sorted publishers into one sorted stream."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import check_bool, check_capacity, check_sync
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.fan_in import FanIn, FanInPublisher, Prefetch, describe_prefetch
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["MergeSorted"]


class MergeSorted(Boundary):
    def __init__(
        self,
        others: tuple[Publisher[Any], ...],
        key: Callable[[Any], Any] | None,
        reverse: bool,
        prefetch: int,
    ) -> None:
        check_publishers("merge_sorted", others)
        if key is not None:
            check_sync("merge_sorted", "key", key)
        self.others = others
        self.key = key
        self.reverse = check_bool("reverse", reverse)
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _SortedSubscription, self)

    def describe(self) -> str:
        return describe_prefetch("merge_sorted", 1 + len(self.others), self.prefetch)


class _SortedSubscription(FanIn):
    """Merges sorted publishers: compares their oldest elements, and delivers the smallest element.

    With ``reverse`` the largest of these elements is delivered.

    Each publisher has a queue for its elements. Nothing is delivered while a publisher that has not
    ended has an empty queue. A queue is a list whose last item is the oldest element, so that
    ``pop`` takes this element. It is called the *head*.
    """

    __slots__ = ("_heads", "_lacking", "_new", "_options", "_ranks")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: MergeSorted
    ) -> None:
        count = 1 + len(options.others)
        super().__init__(subscriber, Prefetch(options.prefetch, options.describe(), count))
        self._unsubscribed.extend(new_inner(self, each) for each in (upstream, *options.others))
        self._options = options
        # ``_ranks``: the number of each publisher among the arguments. The rank decides the order
        # of elements with equal keys. With ``reverse`` the next element is taken from the end of
        # ``_heads``, not from its start, so the ranks are negative.
        step = -1 if options.reverse else 1
        self._ranks = {inner: place * step for place, inner in enumerate(self._unsubscribed)}
        # Three collections of publishers. ``_lacking``: publishers that have not ended, and have an
        # empty queue. ``_new``: publishers with a head (oldest element) whose key is not computed
        # yet. ``_heads``: the other publishers with elements, sorted by the key of the head.
        self._lacking = set(self._ranks)
        self._new: list[Inner] = []
        self._heads: list[tuple[Any, int, Inner]] = []

    def _lacking_for(self, inner: Inner, /) -> list[Inner]:
        return list(self._lacking.copy()) if inner.queue else []

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        prefetch = self._prefetch
        prefetch.waits.end()
        self._sort()
        burst: list[Any] = []
        try:
            last = self._merge(burst, min(demand, BURST))
        except Exception as raised:  # raised by the key function or by a comparison of keys
            self._deliver(burst)
            self._fail(raised)
            return True
        if last is None:
            over = not (self._lacking or self._new or self._heads)
            return self._complete() if over else prefetch.begin_wait(demand)
        self._deliver(burst)
        # ``_merge`` has already counted the elements as delivered. So count 0 more: this call only
        # stores the next request to the publisher of ``last``, if it is due.
        prefetch.count_delivered(last, 0)
        return True

    def _sort(self) -> None:
        """Move the received elements from ``_mail`` to the queues of their publishers."""
        mail, lacking = self._mail, self._lacking
        while mail:
            inner, what = mail.popleft()
            if not isinstance(what, list):
                inner.done = True
                lacking.discard(inner)
            elif what:  # ignore an empty list, which may come just before a publisher's end
                what.reverse()
                if inner.queue:
                    what += inner.queue
                else:
                    self._new.append(inner)
                    lacking.discard(inner)
                inner.queue = what

    def _merge(self, burst: list[Any], most: int) -> Inner | None:
        """Move up to ``most`` elements, in order, from the queues to ``burst``.

        Stop earlier when a publisher has to send before the merge can go on, or when the caller
        has to request more elements from a publisher. Return the inner subscriber from which the
        last moved element came. Return ``None`` if no element can be delivered yet.
        """
        if self._lacking or not most:
            return None
        heads, new, options = self._heads, self._new, self._options
        key, first, enough = options.key, -1 if options.reverse else 0, self._prefetch.replenish_at
        inner = queue = head = None
        try:
            while new:
                inner = new.pop()
                queue = inner.queue or []
                head = queue[-1] if key is None else key(queue[-1])
                insort(heads, (head, self._ranks[inner], inner))
            while heads and len(burst) < most and not self._lacking:
                head, rank, inner = heads.pop(first)
                queue = inner.queue or []
                burst.append(queue.pop())
                inner.consumed += 1
                if not queue:
                    if not inner.done:
                        self._lacking.add(inner)
                elif inner.consumed >= enough or len(burst) == most:
                    new.append(inner)
                    break
                else:
                    head = queue[-1] if key is None else key(queue[-1])
                    insort(heads, (head, rank, inner))
            return inner
        finally:
            del heads, queue, head  # the traceback of an error must not keep elements (§3.13)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._ranks, self._lacking, self._new, self._heads = {}, set(), [], []
