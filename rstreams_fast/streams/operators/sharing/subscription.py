"""The subscription of one subscriber to a multicast publisher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Subscriber
from rstreams_fast.streams.engine.boundary import burst_slot
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.operators.sharing.buffer import Cursor, MulticastBuffer

__all__ = ["MulticastSubscription"]


class _Publisher(Protocol):
    """Interface: the attributes of a ``MulticastPublisher`` that its subscriptions use."""

    buffer: MulticastBuffer[Any]

    def defer(self, call: Callable[..., object], *args: Any) -> bool: ...

    def take(self, cursor: Cursor) -> list[Any] | None: ...

    def request_elements(self) -> None: ...

    def leave(self, subscription: MulticastSubscription) -> None: ...

    def waits(self) -> Waits: ...

    def metrics_for(self, demand: int, waits: Waits) -> tuple[BoundaryMetrics, ...]: ...


class MulticastSubscription(Drain):
    """Takes one subscriber's next elements from the buffer, and delivers them."""

    __slots__ = (
        "_hand_over",
        "_on_next",
        "_publisher",
        "_waits",
        "cursor",
        "gets_upstream_error",
        "identity",
    )

    _only_downstream_calls = False

    def __init__(self, publisher: _Publisher, subscriber: Subscriber[Any]) -> None:
        super().__init__(subscriber, None)
        self._publisher: _Publisher | None = publisher
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self._hand_over = burst_slot(subscriber)
        self.identity = id(subscriber)
        self.cursor = Cursor(self._demand, by_bursts=self._hand_over is not None)
        self._waits = publisher.waits()
        # Whether this subscription ends with the publisher's error. False after a cancel, and if it
        # ends with an error of its own, such as that of an invalid request.
        self.gets_upstream_error = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the subscriber has cancelled. Then it gets no more signals."""
        return self._demand.cancelled

    # -- the methods of the subscription -----------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8).

        Elements that are not in the buffer are requested from upstream.
        """
        if self._add_demand(n) < 0:
            return
        publisher = self._publisher
        if publisher is not None and self.cursor.limit > publisher.buffer.requested:
            publisher.request_elements()
        self._enter()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        publisher, cursor = self._publisher, self.cursor
        if publisher is None:
            return ()
        demand = min(max(0, cursor.limit - cursor.at), UNBOUNDED)
        return publisher.metrics_for(demand, self._waits)

    def enter(self) -> bool:
        """Return true if this thread must now deliver elements to the subscriber.

        Return false if another thread is delivering. That thread also delivers new elements.
        """
        return self._wip.enter()

    # -- delivering elements -----------------------------------------------------------------------

    def pass_on(self, element: Any) -> None:
        """Deliver ``element``, which is not in the publisher's buffer.

        Call this method only if ``enter`` has returned true, so that no other thread delivers.
        """
        hand_over, on_next = self._hand_over, self._on_next
        try:
            if self._demand.value >= 0 and on_next is not None:
                self._waits.end()
                try:
                    if hand_over is not None:
                        hand_over([element])
                    else:
                        on_next(element)
                except Exception as raised:
                    self._on_next_raised(raised)
                self._waits.begin(for_demand=self.cursor.stop >= self.cursor.limit)
        except BaseException as leaving:
            self._interrupted(leaving)
            raise
        if not self._wip.leave():
            self._drain()

    def _start_drain(self) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.defer(self._start_drain):
            self._drain()

    def _work(self) -> bool:
        publisher, cursor = self._publisher, self.cursor
        if publisher is None or self._demand.value < 0:
            return self._act_on_end()
        self._waits.end()
        # ``handed_out``: whether the publisher has put elements in the list ``in_hand``. If so, the
        # publisher, not this method, makes the next request, and drops the elements nobody needs.
        handed_out = bool(cursor.in_hand)
        burst = cursor.in_hand if handed_out else publisher.take(cursor)
        if burst is None:
            buffer = publisher.buffer
            if buffer.error is not None:
                self.end_with(buffer.error.with_traceback(buffer.traceback))
                return self._act_on_end()
            return self._complete()
        if burst:
            try:
                if self._hand_over is not None:
                    cursor.pass_all()
                    self._hand_over(burst)
                elif self._on_next is not None:
                    self._deliver(self._on_next, publisher)
            except Exception as raised:
                self._on_next_raised(raised)
                return False
            burst.clear()  # otherwise the list would keep the delivered elements alive
            buffer, stop = publisher.buffer, cursor.stop
            if not handed_out:
                if cursor.taken_at < buffer.request_at <= stop or stop >= buffer.requested:
                    publisher.request_elements()
                return True
            if stop < buffer.end or buffer.ended:
                return True
        if self._demand.value < 0:
            return self._act_on_end()
        self._waits.begin(for_demand=cursor.stop >= cursor.limit)
        return False

    def _deliver(self, on_next: Callable[[Any], object], publisher: _Publisher) -> None:
        """Deliver the elements of ``cursor.in_hand``, a list.

        If the subscriber cancels, ``publisher.leave`` empties the list, so that the loop ends.
        """
        buffer = publisher.buffer
        for element in self.cursor.left:
            on_next(element)
            if buffer.starving:
                # Upstream may send elements within ``request_elements``. ``_work`` delivers them
                # after this loop.
                publisher.request_elements()

    def _stop_with(self, error: BaseException) -> None:
        publisher = self._publisher
        # Set this first: ``_stop`` calls ``publisher.leave``, which reads it.
        self.gets_upstream_error = publisher is not None and error is publisher.buffer.error
        super()._stop_with(error)

    def _stop(self) -> None:
        publisher = self._publisher
        if publisher is not None:
            publisher.leave(self)

    def _drop_references(self) -> None:
        self._stop()
        self._publisher = None
        self._on_next = None
        self._hand_over = None
