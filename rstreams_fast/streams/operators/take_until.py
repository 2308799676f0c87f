"""``take_until``: elements until another publisher signals."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["TakeUntil"]


class TakeUntil(Boundary):
    """The boundary of ``Stream.take_until``, its argument checked."""

    one_to_one = True

    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "take_until(publisher): publisher")
        self.other = other

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _TakeUntilSubscription, self.other)

    def describe(self) -> str:
        return f"take_until({type(self.other).__name__}): holds no elements"


class _TakeUntilSubscription(SubscriptionArbiter):
    """The other one is subscribed to, and asked for one element, before upstream."""

    _runs_sequences = True

    __slots__ = ("_other", "_other_attached", "_until")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], other: Publisher[Any]
    ) -> None:
        super().__init__(subscriber, upstream)
        self._other = new_inner(self, other)
        self._other.custody = None  # what it signals is no element of this stream
        self._unsubscribed.append(self._other)
        self._other_attached = False
        self._until = False  # it has signalled

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the boundaries above, those of the other publisher last."""
        return (*super().metrics(), *self._other.metrics())

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is self._other:
            self._other_attached = True
            self._call_up()
        else:
            super()._inner_attached(inner)

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if inner is self._other:
            self._end_now()
        else:
            super()._inner_burst(inner, burst, over)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if inner is not self._other:
            super()._inner_ended(inner, error)
        elif error is not None:
            self._fail(error)
        else:
            self._end_now()

    def _end_now(self) -> None:
        self._until = True
        self._pending.counter.cancel()  # at once: the drain may be busy with a sequence,
        self._cut_short()  # or with a part of it
        self._enter()

    def _upward(self) -> bool:
        if self._other_attached:
            self._other_attached = False
            self._other.ask(1)
            return True
        return super()._upward()

    def _work(self) -> bool:
        until = self._until  # read before the elements that came before it
        more = super()._work()
        return self._complete() if until and self._demand.value >= 0 else more
