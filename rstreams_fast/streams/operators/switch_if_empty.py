"""``switch_if_empty``: goes on with another publisher if upstream sends no element."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined, Ended
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["SwitchIfEmpty"]


class SwitchIfEmpty(Boundary):
    one_to_one = True

    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "switch_if_empty(publisher): publisher")
        self.other = other

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _switched, self.other)

    def describe(self) -> str:
        return f"switch_if_empty({type(self.other).__name__}): holds no elements"


def _switched(
    subscriber: Subscriber[Any], upstream: Publisher[Any], other: Publisher[Any]
) -> SubscriptionArbiter:
    following = _IfEmpty(other)
    arbiter = SubscriptionArbiter(subscriber, upstream, following)
    arbiter.on_first_element = following.drop
    return arbiter


class _IfEmpty:
    """Chooses ``other`` as the next publisher, once, unless upstream has sent an element."""

    def __init__(self, other: Publisher[Any]) -> None:
        self._other: Publisher[Any] | None = other

    def drop(self) -> None:
        self._other = None

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended:
        other, self._other = self._other, None
        return Ended(error) if error is not None or other is None else other
