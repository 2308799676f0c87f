"""``switch_if_empty``: another publisher where there is no element."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["SwitchIfEmpty"]


class SwitchIfEmpty(Boundary):
    """The boundary of ``Stream.switch_if_empty``, its argument checked."""

    one_to_one = True

    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "switch_if_empty(publisher): publisher")
        self.other = other

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _SwitchSubscription, self.other)

    def describe(self) -> str:
        return f"switch_if_empty({type(self.other).__name__}): holds no elements"


class _SwitchSubscription(SubscriptionArbiter):
    _runs_sequences = True

    __slots__ = ("_other",)

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], other: Publisher[Any]
    ) -> None:
        super().__init__(subscriber, upstream)
        self._other: Publisher[Any] | None = other  # until an element has come

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if burst:
            self._other = None
        super()._inner_burst(inner, burst, over)

    def _last_stages(self) -> tuple[tuple[Any, ...], ...]:
        return (("skip_while", self._no_element),) if self._other is not None else ()

    def _no_element(self, _element: object) -> bool:
        self._other = None
        return False

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        other, self._other = self._other, None
        if error is None and other is not None:
            return other
        return super()._next(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._other = None
