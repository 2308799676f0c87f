"""The part of a subscriber that holds the subscription to the publisher above."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter

from rstreams_fast.api import Subscription
from rstreams_fast.core import Latch, Wip
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.runtime.turns import TURN_SECONDS
from rstreams_fast.streams.engine.defaults import PART_GROWS
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_above, metrics_further_up
from rstreams_fast.streams.engine.not_picklable import is_internal, not_picklable
from rstreams_fast.streams.engine.signals import cancel_silently

__all__ = ["Upstream"]


class Upstream:
    """Holds the subscription of upstream, and cancels it at most once.

    Any thread may call ``attach`` and ``cancel``; only one thread at a time may call ``request``
    (§2.7). A subscription from outside this package need not tolerate two calls at once. Suppose
    thread A is in the ``request`` of such a subscription, and thread B calls ``cancel`` here. Then
    thread A cancels the subscription: when ``request`` returns, or earlier, when an element comes
    on thread A (``on_late_element``).

    Attributes:
        attached: Whether a subscription has come, or all subscriptions are refused from now on.
        latch: Set by the first of two events: a call of ``cancel``, or upstream's terminal signal.
        due: How many elements are to be requested in later turns (milliseconds) on the event loop.
        in_custody: Whether upstream registers its elements for ``on_discard``.
    """

    __slots__ = (
        "__weakref__",
        "_attach_cancel_race",
        "_attached",
        "_calls",
        "_part",
        "_requesting_thread",
        "_subscription",
        "attached",
        "due",
        "in_custody",
        "latch",
    )

    __reduce__ = not_picklable

    def __init__(self) -> None:
        self._attached = Latch()
        self.attached = False
        self.latch = Latch()
        # attach() and cancel() can run at the same time. Each calls ``enter()`` of this Wip, and
        # the second to do so cancels the subscription.
        self._attach_cancel_race = Wip()
        # Lets one thread at a time call a subscription from outside this package.
        self._calls: Wip | None = None
        self._requesting_thread = 0  # id of the thread in ``request`` of an outside subscription
        self._subscription: Subscription | None = None
        self.due = 0
        self._part = 0  # the most elements that are requested at once; 0: no limit
        self.in_custody = False

    def attach(self, subscription: Subscription) -> bool:
        """Keep the first subscription, and cancel any other (§2.5).

        Also cancel the first subscription, if ``cancel`` was called before. Return whether
        ``subscription`` is the first.
        """
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        first = self._attached.win()
        self.attached = True
        if first:
            if not is_internal(subscription):
                self._calls = Wip()
            elif getattr(subscription, "works_in_request", True):
                self._part = 1
            self._subscription = subscription
            self.in_custody = getattr(subscription, "custody", None) is not None
            if self._attach_cancel_race.enter():
                return True
            self._subscription = None
        cancel_silently(subscription)
        return first

    def request(self, n: int) -> None:
        """Request ``n`` elements (§2.1), unless upstream is over."""
        subscription = self._subscription
        if subscription is None or self.latch.won:
            return
        calls = self._calls
        if calls is None or self._requesting_thread == get_ident():
            subscription.request(n)
        elif calls.enter():  # enter() is false if another thread is cancelling the subscription
            self._requesting_thread = get_ident()
            try:
                subscription.request(n)
            finally:
                self._requesting_thread = 0
                if not calls.leave():
                    self._cancel_attached()

    def request_for_a_turn(self, n: int = 0) -> bool:
        """Request ``n`` more elements in small parts. Stop after one turn (a millisecond).

        ``due`` counts the elements that are not requested by then. The next call requests them,
        too. A publisher of this package may make its elements on this thread, which can take long.
        So the first request is for one element. Later requests grow to the number of elements that
        the publisher sends in a turn. Other publishers get one request for all elements.

        The caller must buffer the elements until this call returns. Return whether any elements
        were requested.
        """
        due, self.due = self.due + n, 0
        if due == 0 or self.latch.won:
            return False
        if not self._part:
            self.request(due)
            return True
        started = perf_counter()
        until = started + TURN_SECONDS
        while due > 0 and not self.latch.won:
            part = min(due, self._part)
            self.due = due = due - part
            self.request(part)
            now = perf_counter()
            took, started = now - started, now
            if now >= until:
                self._part = max(1, int(part * TURN_SECONDS / took))
                break
            if took * PART_GROWS < TURN_SECONDS and due:
                self._part *= PART_GROWS
        return True

    def cancel(self) -> bool:
        """Cancel upstream. Return false if upstream was cancelled before, or has ended (§2.4)."""
        first = self.latch.win()
        if first and not self._attach_cancel_race.enter():
            calls = self._calls
            if calls is None or calls.enter() or self._requesting_thread == get_ident():
                self._cancel_attached()
        return first

    def on_late_element(self) -> None:
        """Handle an element that came after the end: cancel upstream, if that is not done yet.

        If another thread called ``cancel`` while this thread was in ``request``, upstream is not
        cancelled yet.
        """
        if self._requesting_thread == get_ident() and self.latch.won:
            self._cancel_attached()

    def _cancel_attached(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            cancel_silently(subscription)

    def ended(self) -> bool:
        """Record a terminal signal, without a call to upstream (§2.3).

        Return false if upstream was over before (§1.7).
        """
        first = self.latch.win()
        self._subscription = None
        return first

    def never_attached(self) -> bool:
        """Refuse all subscriptions from now on.

        The first call returns true if no subscription has come. Other calls return false.
        """
        self.attached = True
        return self._attached.win()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the boundaries above. Publishers of other libraries have none."""
        return metrics_above(self._subscription)

    def metrics_further_up(self) -> tuple[BoundaryMetrics, ...]:
        """Return a placeholder, which ``metrics_of`` replaces by the result of ``metrics()``."""
        return metrics_further_up(self._subscription)

    @property
    def works_in_request(self) -> bool:
        """Whether upstream is internal, and can send elements before ``request`` returns."""
        return self._part > 0

    @property
    def over(self) -> bool:
        """Whether upstream has ended or was cancelled."""
        return self.latch.won
