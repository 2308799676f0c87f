"""``switch_if_empty``: subscribes to another publisher if upstream completes without an element."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher
from rstreams_fast.streams.engine.arbiter import ArbiterBoundary, SubscriptionArbiter
from rstreams_fast.streams.engine.fan_in import Ended
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["SwitchIfEmpty"]


class SwitchIfEmpty(ArbiterBoundary):
    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "switch_if_empty(publisher): publisher")
        self.other = other

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:  # noqa: ARG002
        arbiter.chooser = chooser = _IfEmpty(self.other)
        arbiter.on_first_element = chooser.drop

    def describe(self) -> str:
        return f"switch_if_empty({type(self.other).__name__}): holds no elements"


class _IfEmpty:
    """Chooses ``other`` as the next publisher, if upstream completes without an element."""

    def __init__(self, other: Publisher[Any]) -> None:
        self._other: Publisher[Any] | None = other

    def drop(self) -> None:
        self._other = None

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended:
        other, self._other = self._other, None
        return Ended(error) if error is not None or other is None else other
