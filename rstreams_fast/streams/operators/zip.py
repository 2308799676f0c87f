"""``zip_``: delivers a tuple of all first elements, then one of all second elements, and so on."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.fan_in import FanIn, Prefetch, describe_prefetch
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["zip_source"]


def zip_source(publishers: tuple[Publisher[Any], ...], prefetch: int) -> PublisherSource:
    """Check the arguments of ``rstreams_fast.zip_``, and return the source of the tuples.

    The caller must pass at least one publisher.
    """
    check_publishers("zip_", publishers)
    zipped = _Zip(publishers, check_capacity("prefetch", prefetch))
    return PublisherSource(zipped, zipped.describe(), trusted=True, inside=publishers)


class _Zip:
    def __init__(self, publishers: tuple[Publisher[Any], ...], prefetch: int) -> None:
        self._publishers = publishers
        self._prefetch = prefetch

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        prefetch = Prefetch(self._prefetch, self.describe(), len(self._publishers))
        _ZipSubscription(subscriber, self._publishers, prefetch).start()

    def describe(self) -> str:
        return describe_prefetch("zip", len(self._publishers), self._prefetch)


class _ZipSubscription(FanIn):
    """Delivers tuples with one element of each publisher.

    Each publisher has a queue. An element waits in the queue until every other publisher has sent
    its element for the same tuple.
    """

    __slots__ = ("_consumed", "_lacking", "_order")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        publishers: tuple[Publisher[Any], ...],
        prefetch: Prefetch,
    ) -> None:
        super().__init__(subscriber, prefetch)
        self._order = tuple(new_inner(self, publisher) for publisher in publishers)
        self._unsubscribed.extend(self._order)
        self._lacking = len(publishers)  # how many publishers have an empty queue
        self._consumed = 0

    def _lacking_for(self, inner: Inner, /) -> list[Inner]:
        order = self._order if inner.queue else ()
        return [other for other in order if not other.queue and not other.done]

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        prefetch = self._prefetch
        prefetch.waits.end()
        if self._mail and self._sort():
            return self._complete()
        if demand == 0 or self._lacking:
            return prefetch.begin_wait(demand)
        order = self._order
        queues = [inner.queue or [] for inner in order]
        count = min(demand, BURST, prefetch.replenish_at - self._consumed, *map(len, queues))
        burst = list(zip(*(queue[:count] for queue in queues), strict=True))
        for inner, queue in zip(order, queues, strict=True):
            del queue[:count]
            if not queue:
                inner.queue = None
                self._lacking += 1
        del queues
        self._deliver(self._gather(burst))
        if self._lacking and any(inner.done and not inner.queue for inner in order):
            return self._complete()
        self._consumed += count
        if self._consumed >= prefetch.replenish_at:
            consumed, self._consumed = self._consumed, 0
            prefetch.due_requests.extend((inner, consumed) for inner in order)
        return True

    def _sort(self) -> bool:
        """Move the received elements from ``_mail`` to the queues of their publishers.

        Return true if the stream must end: a publisher has ended, and its queue is empty.
        """
        mail = self._mail
        over = False
        while mail:
            inner, what = mail.popleft()
            if inner.done:
                continue
            if not isinstance(what, list):
                inner.done = True
                over = over or not inner.queue
            elif inner.queue:
                inner.queue += what
                what.clear()
            else:
                inner.queue = what
                self._lacking -= 1
        return over

    def _drop_references(self) -> None:
        super()._drop_references()
        self._order = ()
