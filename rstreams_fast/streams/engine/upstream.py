"""The subscription that a subscriber of the package holds."""

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
    """One subscription only, which is cancelled at most once.

    ``attach`` and ``cancel`` are for any thread, ``request`` for one at a time (§2.7). A cancel
    while another thread is in ``request`` of a foreign subscription is left to that
    thread: when it comes back, or when it brings an element that nobody wants (``unwanted``).
    """

    __slots__ = (
        "__weakref__",
        "_asker",
        "_attached",
        "_calls",
        "_met",
        "_part",
        "_subscription",
        "attached",
        "due",
        "in_custody",
        "latch",
    )

    __reduce__ = not_picklable

    def __init__(self) -> None:
        self._attached = Latch()  # won by the first subscription
        self.attached = False  # whether a subscription has come, or may not any more; a plain copy
        # Won by our cancel or by the terminal signal from upstream, whichever is first.
        self.latch = Latch()
        self._met = Wip()  # attach and cancel enter; the second of them cancels
        # Entered by calls on a foreign subscription, which may not bear two at once.
        self._calls: Wip | None = None
        self._asker = 0  # the thread that is in its request
        self._subscription: Subscription | None = None
        self.due = 0  # elements that are to be asked for in later turns
        self._part = 0  # how many are asked for at once, as long as others are due; 0: all
        self.in_custody = False  # whether elements have entered the scope of an on_discard

    def attach(self, subscription: Subscription) -> bool:
        """Keep the first subscription, unless this is over already; cancel any other (§2.5).

        Whether it was the first.
        """
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        first = self._attached.win()
        self.attached = True
        if first:
            if not is_internal(subscription):
                self._calls = Wip()
            elif getattr(subscription, "works_when_asked", True):
                self._part = 1
            self._subscription = subscription
            self.in_custody = getattr(subscription, "custody", None) is not None
            if self._met.enter():
                return True
            self._subscription = None
        cancel_silently(subscription)
        return first

    def request(self, n: int) -> None:
        """Ask for more (§2.1), unless it is over."""
        subscription = self._subscription
        if subscription is None or self.latch.won:
            return
        calls = self._calls
        if calls is None or self._asker == get_ident():
            subscription.request(n)
        elif calls.enter():  # else it is being cancelled
            self._asker = get_ident()
            try:
                subscription.request(n)
            finally:
                self._asker = 0
                if not calls.leave():
                    self._cancel_attached()

    def request_for_a_turn(self, n: int = 0) -> bool:
        """Ask for ``n`` more, and for what is due, for a turn. Only for an owner that buffers the
        elements until the call returns.

        A publisher that works on this thread may take long for each element.
        So an internal publisher is asked for one element, and then for as many as it sends in a
        turn. Whether any were asked for; ``due`` is what is left.
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
        """Cancel, unless that was done or upstream ended by itself (§2.4): then it is false."""
        first = self.latch.win()
        if first and not self._met.enter():
            calls = self._calls
            if calls is None or calls.enter() or self._asker == get_ident():
                self._cancel_attached()
        return first

    def unwanted(self) -> None:
        """Note an element that came after the end: its thread may be the one left to cancel."""
        if self._asker == get_ident() and self.latch.won:
            self._cancel_attached()

    def _cancel_attached(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            cancel_silently(subscription)

    def ended(self) -> bool:
        """Note a terminal signal, and call nothing (§2.3); ``False`` if it was over (§1.7)."""
        first = self.latch.win()
        self._subscription = None
        return first

    def never_attached(self) -> bool:
        """Whether no subscription has come, nor may any more: true once at most."""
        self.attached = True
        return self._attached.win()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """The metrics of the boundaries above; of a foreign publisher there are none."""
        return metrics_above(self._subscription)

    def metrics_further_up(self) -> tuple[BoundaryMetrics, ...]:
        """The same, where a long chain is to be looked through piece by piece."""
        return metrics_further_up(self._subscription)

    @property
    def works_when_asked(self) -> bool:
        """Whether a request may take as long as what it asks for; not known of a foreign one."""
        return self._part > 0

    @property
    def over(self) -> bool:
        """Whether nothing more will, or may, come."""
        return self.latch.won
