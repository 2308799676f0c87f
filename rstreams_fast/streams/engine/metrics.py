"""Metrics of the boundaries of a running stream: elements held, demand and waiting times."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

__all__ = ["BoundaryMetrics", "Waits", "metrics_above", "metrics_further_up", "metrics_of"]


@dataclass(frozen=True, slots=True)
class BoundaryMetrics:
    """The metrics of one boundary.

    Reading does not stop the boundary, so the values can belong to slightly different times.
    ``create``, ``on_overflow``, ``multicast`` and the operators that combine publishers count their
    waiting time only from the first reading on. The reason: this counting takes a quarter of the
    time that the operator takes for an element.

    Attributes:
        name: The boundary with its bounds, as ``describe()`` names it.
        held: Elements that wait in the boundary, without the element that is being delivered.
        max_held: The bound on ``held``.
        held_bytes: The bytes of the waiting elements and of the element being delivered, as the
            weigher gives them; ``None`` without a weigher.
        demand: Elements that downstream has requested and that are not delivered yet.
        waited_for_upstream: Seconds with demand, but without an element to deliver.
        waited_for_demand: Seconds without demand, whether or not an element was ready.
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


#: The value of ``Waits._since`` during a wait that began when times were not counted yet.
_UNCOUNTED: Final = -1.0


class Waits:
    """Counts how long a drain, which delivers elements, has waited for upstream and for demand.

    The thread that runs the drain writes the times. Any thread may read them. If
    ``from_first_reading`` is true, the times are counted only from the first reading on, because
    counting takes time. ``counts`` is true when the times are counted. ``BoundaryMetrics`` explains
    ``name`` and ``max_held``.
    """

    __slots__ = ("_demand", "_for_demand", "_max_held", "_name", "_since", "_upstream", "counts")

    def __init__(self, name: str, max_held: int, *, from_first_reading: bool = False) -> None:
        self._name = name
        self._max_held = max_held
        self.counts = not from_first_reading
        self._since = 0.0  # the time at which the wait began; 0: there is no wait now
        self._for_demand = True
        self._upstream = self._demand = 0.0

    def begin(self, *, for_demand: bool) -> None:
        """Begin to count a wait: for demand if ``for_demand`` is true, otherwise for an element."""
        self._for_demand = for_demand
        self._since = perf_counter() if self.counts else _UNCOUNTED

    def end(self) -> None:
        since, self._since = self._since, 0.0
        if since > 0:
            if self._for_demand:
                self._demand += perf_counter() - since
            else:
                self._upstream += perf_counter() - since

    def metrics(
        self, demand: int, held: int, held_bytes: int | None = None, dropped: int = 0
    ) -> BoundaryMetrics:
        """Return the metrics of the boundary, made from the arguments and the waiting times.

        A negative ``demand`` means that the stream has ended. Before the end, the times include the
        current wait.
        """
        if self._since == _UNCOUNTED:  # the demand may have changed since begin(): test it again
            self._for_demand = demand == 0
        if not self.counts:
            self.counts = True
            if self._since == _UNCOUNTED:
                # The wait may have just ended on another thread. Then ``_since`` is wrong until the
                # next begin() replaces ``_since``.
                self._since = perf_counter()
        since, for_demand = self._since, self._for_demand
        waiting = perf_counter() - since if since > 0 and demand >= 0 else 0.0
        return BoundaryMetrics(
            name=self._name,
            held=held,
            max_held=self._max_held,
            held_bytes=held_bytes,
            demand=max(demand, 0),
            waited_for_upstream=self._upstream + (0.0 if for_demand else waiting),
            waited_for_demand=self._demand + (waiting if for_demand else 0.0),
            dropped=dropped,
        )


class _Placeholder:
    """A placeholder that ``metrics_of`` replaces by the metrics above ``subscription``."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Any) -> None:
        self.subscription = subscription


def metrics_of(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """Return the metrics of the boundaries above ``subscription``, the nearest first.

    Any thread may call this at any time. After the end of the stream only the nearest boundary has
    metrics: ``held`` and ``demand`` are 0, and totals, such as ``dropped``, are kept.

    Args:
        subscription: The argument of ``on_subscribe``, or a ``Run``. A subscription of another
            library has no metrics.
    """
    found: list[BoundaryMetrics] = []
    left: list[Any] = [_Placeholder(subscription)]
    while left:
        one = left.pop()
        if isinstance(one, _Placeholder):
            left.extend(reversed(metrics_above(one.subscription)))
        else:
            found.append(one)
    return tuple(found)


def metrics_above(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """Return the metrics of the boundaries above ``subscription``, for use in a ``metrics`` method.

    The tuple can contain placeholders. ``metrics_of`` replaces them by metrics.
    """
    own = getattr(subscription, "metrics", None)
    return tuple(own()) if callable(own) else ()


def metrics_further_up(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """Return a placeholder for the metrics above ``subscription``.

    ``metrics_of`` replaces placeholders in a loop, so that calls do not nest in a long chain.
    """
    return (cast("BoundaryMetrics", _Placeholder(subscription)),)
