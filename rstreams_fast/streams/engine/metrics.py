"""Metrics of the operators of a running stream: elements held, demand and waiting times."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

__all__ = ["BoundaryMetrics", "Waits", "metrics_above", "metrics_further_up", "metrics_of"]


@dataclass(frozen=True, slots=True)
class BoundaryMetrics:
    """The metrics of one boundary.

    A boundary is an operator that may hold elements, such as ``publish_on``. The other operators,
    such as ``map``, have no metrics. The values are read while the boundary works, so they can
    belong to slightly different times. ``create``, ``on_overflow``, ``multicast`` and the operators
    that combine publishers count their waiting times only after the metrics were read for the first
    time, because counting takes a quarter of the time that the operator takes for an element.

    Attributes:
        name: The boundary's name and limits, as in the text of ``Stream.describe()``.
        held: The number of elements that wait in the boundary. An element that is being delivered
            does not count.
        max_held: The upper limit of ``held``.
        held_bytes: The bytes of the waiting elements and of the element that is being delivered.
            The user's function ``weigher`` counts them. ``None`` if there is no ``weigher``.
        demand: The number of elements that downstream has requested and not yet received.
        waited_for_upstream: Seconds during which there was demand, but no element to deliver.
        waited_for_demand: Seconds during which there was no demand, with or without an element.
        dropped: The number of elements that an overflow strategy has dropped.
    """

    name: str
    held: int
    max_held: int
    held_bytes: int | None
    demand: int
    waited_for_upstream: float
    waited_for_demand: float
    dropped: int = 0


#: ``_UNCOUNTED``: the value of ``Waits._since`` during a wait whose time is not counted.
_UNCOUNTED: Final = -1.0


class Waits:
    """Measures how long an operator waits for elements, and how long for demand.

    The thread that delivers the operator's elements writes the times, and any thread may read them.
    If ``from_first_reading`` is true, times are counted only after ``metrics`` was called for the
    first time, because counting makes the operator slower. The attribute ``counts`` says whether
    times are counted now. See ``BoundaryMetrics`` for ``name`` and ``max_held``.
    """

    __slots__ = ("_demand", "_for_demand", "_max_held", "_name", "_since", "_upstream", "counts")

    def __init__(self, name: str, max_held: int, *, from_first_reading: bool = False) -> None:
        self._name = name
        self._max_held = max_held
        self.counts = not from_first_reading
        self._since = 0.0  # the time at which the current wait began; 0 if there is no wait
        self._for_demand = True
        self._upstream = self._demand = 0.0

    def begin(self, *, for_demand: bool) -> None:
        """Begin to measure a wait: for demand if ``for_demand`` is true, else for an element."""
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
        """Return the metrics of the operator: the arguments, and how long the operator has waited.

        ``held`` is the number of elements that wait for delivery in the operator. A negative
        ``demand`` means that the stream has ended. Until then, the times include a wait that is not
        over yet.
        """
        # If begin() began a wait for demand, and demand has come since, the wait is for an element.
        if self._since == _UNCOUNTED:
            self._for_demand = demand == 0
        if not self.counts:
            self.counts = True
            if self._since == _UNCOUNTED:
                # No lock, as metrics may be slightly wrong: if another thread ends the wait just
                # before this assignment, the time until the next call of begin() is counted, too.
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
    """Stands for all metrics upstream of ``subscription``, until ``metrics_of`` inserts them."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Any) -> None:
        self.subscription = subscription


def metrics_of(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """Return the metrics of the boundaries above ``subscription``, the nearest first.

    A boundary is an operator that may hold elements, such as ``publish_on``. The other operators,
    such as ``map``, have no metrics. Any thread may call this at any time. After the end of the
    stream, the result contains only the metrics of the nearest boundary. Then ``held`` (the waiting
    elements) and ``demand`` are 0, and totals, such as ``dropped``, keep their last values.

    Args:
        subscription: The argument of ``on_subscribe``, or a ``Run`` (as ``for_each`` returns it). A
            subscription of another library has no metrics.
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
    """Return the metrics of the operators upstream of ``subscription``, for ``metrics`` methods.

    The tuple can end with a ``_Placeholder``, which stands for the metrics of the operators further
    upstream. ``metrics_of`` replaces the placeholder by these metrics.
    """
    own = getattr(subscription, "metrics", None)
    return tuple(own()) if callable(own) else ()


def metrics_further_up(subscription: Any) -> tuple[BoundaryMetrics, ...]:
    """Return a tuple with a placeholder for the metrics upstream of ``subscription``.

    ``metrics_of`` replaces placeholders in a loop. So the calls in a long chain do not nest.
    """
    return (cast("BoundaryMetrics", _Placeholder(subscription)),)
