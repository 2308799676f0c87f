"""``combine_latest``: at each element, delivers a tuple of all publishers' newest elements."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from rstreams_fast._checks import check_capacity
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.fan_in import FanIn, FanInPublisher, Prefetch, describe_prefetch
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["CombineLatest"]


class CombineLatest(Boundary):
    def __init__(self, others: tuple[Publisher[Any], ...], prefetch: int) -> None:
        check_publishers("combine_latest", others)
        self.others = others
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _CombineSubscription, self)

    def describe(self) -> str:
        bounds = describe_prefetch("combine_latest", 1 + len(self.others), self.prefetch)
        return f"{bounds}, and the newest of each"


class _CombineSubscription(FanIn):
    """Delivers tuples of the newest elements of all publishers.

    Elements wait in the queue ``_mail``, in the order in which they arrived. The first request to
    each publisher is for one element: no tuple can be made before every publisher has sent an
    element. After that, each publisher gets a request for ``prefetch`` elements.
    """

    __slots__ = ("_alive", "_lacking", "_latest", "_places")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: CombineLatest
    ) -> None:
        count = 1 + len(options.others)
        super().__init__(subscriber, Prefetch(options.prefetch, options.describe(), count))
        order = [new_inner(self, each) for each in (upstream, *options.others)]
        self._unsubscribed.extend(order)
        self._places = {inner: place for place, inner in enumerate(order)}
        self._latest: list[Any] = [None] * count
        self._lacking = count  # how many publishers have sent no element yet
        self._alive = count

    def _inner_attached(self, inner: Inner, /) -> None:
        self._prefetch.due_requests.append((inner, 1))
        self._enter_upward()

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        prefetch, mail, latest = self._prefetch, self._mail, self._latest
        prefetch.waits.end()
        if not mail:
            return prefetch.begin_wait(demand)
        inner, what = mail[0]
        place = self._places[inner]
        if not isinstance(what, list):
            mail.popleft()
            self._alive -= 1
            # Complete if no more tuples can be made: all publishers have ended, or the publisher of
            # ``inner``, which has just ended, has sent no element.
            if not self._alive or latest[place] is None:
                return self._complete()
            return True
        if not demand:
            return prefetch.begin_wait(demand)
        begins = latest[place] is None
        count = min(demand, BURST, prefetch.replenish_at - inner.consumed, len(what))
        burst = what[:count]
        del what[:count]
        if not what:
            mail.popleft()
        before, after = latest[:place], latest[place + 1 :]
        latest[place] = burst[-1]
        if not begins:
            prefetch.count_delivered(inner, count)
        else:
            self._lacking -= 1
            if self._lacking:
                return True
            prefetch.due_requests.extend((each, prefetch.size) for each in self._places)
        columns = (*map(repeat, before), burst, *map(repeat, after))
        self._deliver(self._gather(list(zip(*columns, strict=False))))
        return True

    def _drop_references(self) -> None:
        super()._drop_references()
        self._places = {}
        self._latest = []
