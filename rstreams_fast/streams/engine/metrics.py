"""What the boundaries of a running stream hold and wait for, readable at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

from rstreams_fast.core import DemandCounter

__all__ = ["BoundaryMetrics", "Waits", "metrics_above", "metrics_further_up", "metrics_of"]


@dataclass(frozen=True, slots=True)
class BoundaryMetrics:
    """One boundary at one moment.

    The boundary is read without being stopped, so the values may be a moment apart. ``create``,
    ``on_overflow``, ``multicast`` and the operators that combine publishers count their waiting
    time from the first reading on: counting takes a quarter of the time that an element takes.

    Attributes:
        name: The boundary with its bounds, as ``describe()`` names it.
        held: Elements in the ring; the element that is being delivered has left it.
        max_held: The bound on ``held``.
        held_bytes: The bytes of those elements and of the one being delivered, by the weigher;
            ``None`` without a weigher.
        demand: Elements that were requested from below and are not delivered yet.
        waited_for_upstream: Seconds with demand, but without an element to deliver.
        waited_for_demand: Seconds in which an element was, or might have been, ready, but was not
            asked for.
        dropped: Elements that an overflow strategy dropped.
    """

    name: str
    held: int
    max_held: int
    held_bytes: int | None
    demand: int
    waited_for_upstream: float
    waited_for_demand: float
    dropped: int = 0


#: It waits, and nobody has looked yet.
_UNCOUNTED: Final = -1.0


class Waits:
    """What a drain waits for, and for how long: kept by its holder, readable by any thread.

    ``on_look``: kept from the first look on, where it would cost much of what an element does.
    ``counts``: whether it is kept by now.
    """

    __slots__ = ("_demand", "_for_demand", "_since", "_upstream", "counts")

    def __init__(self, *, on_look: bool = False) -> None:
        self.counts = not on_look
        self._since = 0.0  # when the drain found nothing to do, and why; 0: it works
        self._for_demand = True
        self._upstream = self._demand = 0.0

    def begin(self, *, for_demand: bool) -> None:
        """The drain has nothing to do: nothing is asked for, or nothing is there."""
        self._for_demand = for_demand
        self._since = perf_counter() if self.counts else _UNCOUNTED

    def end(self) -> None:
        """The drain works again."""
        since, self._since = self._since, 0.0
        if since > 0:
            if self._for_demand:
                self._demand += perf_counter() - since
            else:
                self._upstream += perf_counter() - since

    def seconds(self, *, going_on: bool) -> tuple[float, float]:
        """Return how long upstream was waited for, and demand; up to now, if it goes on."""
        if not self.counts:
            self.counts = True
            if self._since == _UNCOUNTED:
                self._since = perf_counter()  # should the drain work by now, it begins anew
        since, for_demand = self._since, self._for_demand
        waiting = perf_counter() - since if since > 0 and going_on else 0.0
        return (
            self._upstream + (0.0 if for_demand else waiting),
            self._demand + (waiting if for_demand else 0.0),
        )

    def metrics(
        self,
        demand: DemandCounter,
        *,
        name: str,
        held: int,
        max_held: int,
        held_bytes: int | None = None,
        dropped: int = 0,
    ) -> BoundaryMetrics:
        """Return the metrics of the boundary whose drain this is about."""
        if self._since == _UNCOUNTED:  # elements may have passed the drain by since that began
            self._for_demand = demand.value == 0
        for_upstream, for_demand = self.seconds(going_on=demand.value >= 0)
        return BoundaryMetrics(
            name=name,
            held=held,
            max_held=max_held,
            held_bytes=held_bytes,
            demand=demand.pending,
            waited_for_upstream=for_upstream,
            waited_for_demand=for_demand,
            dropped=dropped,
        )


class _Further:
    """In place of the metrics from here upwards: where to ask for them."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Any) -> None:
        self.subscription = subscription


def metrics_of(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """The metrics of the boundaries above ``subscription``, the nearest first.

    Any thread may call it at any time. After the end the metrics of boundaries further up are gone.
    The metrics of the nearest boundary then tell what was, such as the elements that it dropped:
    nothing is held or asked for any more.

    Args:
        subscription: The argument of ``on_subscribe``, or a ``Run``. A subscription of another
            library has no metrics.
    """
    found: list[BoundaryMetrics] = []
    left: list[Any] = [_Further(subscription)]
    while left:
        one = left.pop()
        if isinstance(one, _Further):
            left.extend(reversed(metrics_above(one.subscription)))
        else:
            found.append(one)
    return tuple(found)


def metrics_above(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """The same for a ``metrics`` method, whose caller is ``metrics_of`` in the end."""
    own = getattr(subscription, "metrics", None)
    return tuple(own()) if callable(own) else ()


def metrics_further_up(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """The same, but asked for later, so that along a long chain the calls do not nest."""
    return (cast("BoundaryMetrics", _Further(subscription)),)
