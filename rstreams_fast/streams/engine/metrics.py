"""What the boundaries of a running stream hold and wait for, readable at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

from rstreams_fast.core import DemandCounter

__all__ = ["BoundaryMetrics", "Waits", "metrics_above", "metrics_further_up", "metrics_of"]


@dataclass(frozen=True, slots=True)
class BoundaryMetrics:
    """One boundary at one moment. Read without stopping it, so metrics may be a moment apart.

    ``create``, ``on_overflow``, ``multicast`` and what combines publishers count how long they wait
    from the first look on: it is a quarter of what an element costs them.
    """

    name: str
    """What it is, with its bounds, as ``describe()`` says it."""
    held: int
    """Elements in the ring; the one being delivered has left it."""
    max_held: int
    """The bound on ``held``."""
    held_bytes: int | None
    """Bytes of those and of the one being delivered, by the weigher; ``None`` without one."""
    demand: int
    """Elements requested from below and not delivered yet."""
    waited_for_upstream: float
    """Seconds there was demand, but nothing to deliver."""
    waited_for_demand: float
    """Seconds something was, or might have been, there to be delivered, but was not asked for."""
    dropped: int = 0
    """Elements that were not delivered, as an overflow strategy would have it."""


#: It waits, and nobody has looked yet.
_UNCOUNTED: Final = -1.0


class Waits:
    """Whom a drain waits for, and for how long: kept by its holder, readable by any thread.

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

    ``subscription`` is what ``on_subscribe`` was given, or a ``Run``; a foreign one has none. Any
    thread, any time. After the end those of boundaries further up are gone, and what is left of the
    nearest says what was, such as what it dropped: nothing is held or asked for any more.
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
