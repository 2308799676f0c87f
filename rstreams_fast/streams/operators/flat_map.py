"""``flat_map``: makes a publisher from each element, and merges these publishers."""

from __future__ import annotations

from functools import partial
from typing import Any

from rstreams_fast._checks import check_bool, check_capacity, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import StageReturnedNoneError
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import FanInPublisher, Prefetch
from rstreams_fast.streams.operators.merge import Merging, ToPublisher

__all__ = ["FlatMap", "ToPublisher", "publisher_from"]


def publisher_from(operator: str, fn: ToPublisher, element: Any) -> Publisher[Any]:
    """Return the publisher ``fn(element)``.

    If the result is not a publisher, raise an error whose message names ``operator``.
    """
    publisher = fn(element)
    if callable(getattr(publisher, "subscribe", None)):
        return publisher
    who = f"{describe_callable(fn)}, the function of {operator}, returned"
    if publisher is None:
        raise StageReturnedNoneError(f"§2.13: {who} None; for no elements return empty()")
    hint = ""
    if hasattr(publisher, "__iter__"):
        hint = f"; for iterables use map({describe_callable(fn)}).unbatch()"
    elif hasattr(publisher, "__await__"):
        hint = "; to await it use map_async"
    raise TypeError(
        f"{who} {type(publisher).__name__}, which is no publisher: it has no method "
        f"subscribe(subscriber){hint}"
    )


class FlatMap(Boundary):
    def __init__(
        self,
        fn: ToPublisher,
        concurrency: int,
        prefetch: int,
        delay_error: bool,
        *,
        sequential: bool = False,
    ) -> None:
        self.operator = "flat_map_sequential" if sequential else "flat_map"
        self.sequential = sequential
        self.fn = fn
        self.concurrency = check_capacity("concurrency", concurrency)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.delay_error = check_bool("delay_error", delay_error)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _subscription, self)

    def describe(self) -> str:
        late = ", errors after elements" if self.delay_error else ""
        return (
            f"{self.operator}({describe_callable(self.fn)}): at most {self.concurrency} "
            f"publishers at once and {self.prefetch} elements of each, "
            f"{self.concurrency * self.prefetch} in all{late}"
        )


def _subscription(
    subscriber: Subscriber[Any], upstream: Publisher[Any], options: FlatMap
) -> Merging:
    prefetch = Prefetch(options.prefetch, options.describe(), options.concurrency)
    merging = Merging(subscriber, prefetch, options.delay_error)
    fn = partial(publisher_from, options.operator, merging._wrap_function(options.fn))
    merging.flat_map(upstream, fn, options.concurrency, sequential=options.sequential)
    return merging
