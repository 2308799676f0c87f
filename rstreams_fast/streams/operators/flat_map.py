"""``flat_map``: a publisher for each element, merged as they run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import check_bool, check_capacity, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import StageReturnedNoneError
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.operators.merge import Merging

__all__ = ["FlatMap", "FlatMapSubscription", "publisher_from"]

ToPublisher = Callable[[Any], Publisher[Any]]


def publisher_from(operator: str, fn: ToPublisher, element: Any) -> Publisher[Any]:
    """Return ``fn(element)``, if that is a publisher; else raise an error naming the stage."""
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
    """The boundary of ``Stream.flat_map``, its arguments checked."""

    operator = "flat_map"

    def __init__(self, fn: ToPublisher, concurrency: int, prefetch: int, delay_error: bool) -> None:
        self.fn = fn
        self.concurrency = check_capacity("concurrency", concurrency)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.delay_error = check_bool("delay_error", delay_error)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, self.subscription_type, self)

    @property
    def subscription_type(self) -> type[FlatMapSubscription]:
        """What carries it out."""
        return FlatMapSubscription

    def describe(self) -> str:
        late = ", errors after elements" if self.delay_error else ""
        return (
            f"{self.operator}({describe_callable(self.fn)}): at most {self.concurrency} "
            f"publishers at once and {self.prefetch} elements of each, "
            f"{self.concurrency * self.prefetch} in all{late}"
        )


class FlatMapSubscription(Merging):
    """One inner is the outer publisher. Its elements wait to be opened, which is upward
    work: at most ``concurrency`` are asked for and not over.
    """

    __slots__ = (
        "_concurrency",
        "_fn",
        "_opening",
        "_operator",
        "_outer",
        "_turn_to_open",
        "_vacant",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: FlatMap
    ) -> None:
        super().__init__(
            subscriber,
            options.prefetch,
            options.delay_error,
            options.describe(),
            concurrency=options.concurrency,
            alive=1,
        )
        self._fn: ToPublisher | None = self._using(options.fn)
        self._operator = options.operator
        self._concurrency = options.concurrency
        self._outer = new_inner(self, upstream)
        self._unsubscribed.append(self._outer)
        self._opening: deque[Any] = deque()
        self._vacant = DemandCounter()  # publishers that are over, and not yet made up for
        self._turn_to_open = False

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        # By turns, so that neither those that run nor those that are to run have to wait for ever.
        if (self._turn_to_open or not self._asks) and self._more():
            self._turn_to_open = False
            return True
        self._turn_to_open = True
        return super()._upward()

    def _more(self) -> bool:
        """Open a publisher, or, if there is none to be opened, ask for elements to make some of."""
        opening, fn = self._opening, self._fn  # replaced, not emptied, by who drops all references
        if opening and fn is not None:
            self._subscribe_for(fn, opening.popleft())
            return True
        vacant = self._vacant.value
        if vacant and self._begun:
            self._vacant.fulfil(vacant)
            self._ask_inner(self._outer, vacant)
            return True
        return False

    def _subscribe_for(self, fn: ToPublisher, element: Any) -> None:
        try:
            publisher = publisher_from(self._operator, fn, element)
        except Exception as raised:
            self._inner_ended(Inner(self), raised)
            return
        finally:
            del element
        self._subscribe_to(publisher)

    # -- from inners -----------------------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is self._outer:
            self._vacant.request(self._concurrency)
            self._call_up()
        else:
            super()._inner_attached(inner)

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if inner is not self._outer:
            super()._inner_burst(inner, burst, over)
            return
        if burst:
            self._alive.request(len(burst))
            self._opening += burst
        if over:
            self._inner_ended(inner, None)
        self._call_up()

    # -- the drain -------------------------------------------------------------------------------

    def _over(self, inner: Inner) -> None:
        super()._over(inner)
        if inner is not self._outer:
            self._vacant.request(1)

    def _to_ask(self) -> bool:
        if self._asks or self._vacant.value > 0:
            return True
        return bool(self._unfinished) and self._demand.value > 0

    def _forget_upward(self) -> None:
        self._fn = None
        self._opening = deque()
