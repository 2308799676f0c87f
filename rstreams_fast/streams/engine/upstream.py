"""The part of a subscriber that holds the subscription to the publisher above (upstream)."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter

from rstreams_fast.api import Subscription
from rstreams_fast.core import Latch, Wip
from rstreams_fast.errors import NoneSignalError
from rstreams_fast.runtime.turns import TURN_SECONDS
from rstreams_fast.streams.engine.defaults import PART_GROWS
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_above, metrics_further_up
from rstreams_fast.streams.engine.not_picklable import is_internal, not_picklable
from rstreams_fast.streams.engine.signals import cancel_silently, propagates

__all__ = ["Upstream"]


class Upstream:
    """Holds the subscription of upstream, and cancels it at most once.

    Any thread may call ``attach`` and ``cancel``. Only one thread at a time may call ``request``
    (§2.7). A subscription from outside this package may not tolerate two calls at the same time.
    Suppose that thread A is in ``request`` of such a subscription, and thread B calls ``cancel`` of
    this object. Then thread B leaves the cancellation to thread A. Thread A makes the cancellation
    when ``request`` returns, or earlier, when an element comes on thread A (``on_late_element``).

    Attributes:
        attached: True after a subscription has come. Also true if upstream has ended without one:
            then a subscription that comes later is refused.
        latch: Set by a call of ``cancel`` or by upstream's terminal signal, whichever comes first.
        due: How many elements must still be requested in later turns (time slices of 1 ms).
        in_custody: Whether upstream itself registers its elements for the hook of ``on_discard``,
            which gets the elements that are not delivered.
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
        # attach() and cancel() can run at the same time. Both call enter() of
        # ``_attach_cancel_race``. Whichever calls enter() second cancels the subscription.
        self._attach_cancel_race = Wip()
        # ``_calls`` is set only for a subscription from outside this package. It lets one thread at
        # a time call the subscription.
        self._calls: Wip | None = None
        self._requesting_thread = 0  # the id of the thread that is in request(); 0: no thread
        self._subscription: Subscription | None = None
        self.due = 0
        self._part = 0  # the maximum number of elements in one request; 0: no maximum
        self.in_custody = False

    def attach(self, subscription: Subscription) -> bool:
        """Keep ``subscription`` if it is the first one. Otherwise cancel it (§2.5).

        Also cancel the first subscription, if ``cancel`` was called before. Return whether
        ``subscription`` is the first one.
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
        """Request ``n`` elements (§2.1), unless upstream has ended or was cancelled."""
        subscription = self._subscription
        if subscription is None or self.latch.won:
            return
        calls = self._calls
        if calls is None or self._requesting_thread == get_ident():
            subscription.request(n)
        elif calls.enter():  # false if cancel() has called enter() first: then request nothing
            self._requesting_thread = get_ident()
            try:
                subscription.request(n)
            finally:
                self._requesting_thread = 0
                if not calls.leave():
                    self._cancel_attached()

    def request_for_a_turn(self, n: int = 0) -> bool:
        """Request ``n`` more elements in small parts. Stop when one turn is over.

        A turn is a time slice of 1 ms. If it ends before all elements are requested, ``due`` is the
        number of the remaining elements, and the next call requests them, too. The reason for small
        parts: a publisher of this package may make its elements within ``request``, which can take
        long. From such a publisher, request one element first, and then larger parts, up to the
        number of elements that it sends in a turn. Request all elements at once from all others.

        Return whether any elements were requested. The caller must buffer the elements that come
        until this call returns.
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
        """Cancel upstream. Return false if upstream was already cancelled or has ended (§2.4)."""
        first = self.latch.win()
        if first and not self._attach_cancel_race.enter():
            calls = self._calls
            if calls is None or calls.enter() or self._requesting_thread == get_ident():
                self._cancel_attached()
        return first

    def on_late_element(self) -> None:
        """Handle an element that came after the end of the stream: cancel upstream if necessary.

        This is necessary if another thread has called ``cancel`` while this thread is in
        ``request``. The other thread has then left the cancellation to this thread.
        """
        if self._requesting_thread == get_ident() and self.latch.won:
            self._cancel_attached()

    def _cancel_attached(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            cancel_silently(subscription)

    def ended(self) -> bool:
        """Record a terminal signal of upstream. Upstream is not called (§2.3).

        Return false if upstream had already ended or was cancelled (§1.7).
        """
        first = self.latch.win()
        self._subscription = None
        return first

    def never_attached(self) -> bool:
        """Refuse subscriptions from now on. Return whether no subscription has come until now.

        A second call always returns false.
        """
        self.attached = True
        return self._attached.win()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the operators upstream, or ``()`` if upstream has no metrics."""
        return metrics_above(self._subscription)

    def metrics_further_up(self) -> tuple[BoundaryMetrics, ...]:
        """Return a placeholder, in a tuple, for the metrics of the operators upstream.

        ``metrics_of`` replaces placeholders in a loop. So the calls in a long chain do not nest.
        """
        return metrics_further_up(self._subscription)

    @property
    def works_in_request(self) -> bool:
        """Whether upstream belongs to this package and may make its elements within ``request``."""
        return self._part > 0

    def request_raised(self, raised: Exception, fail: Callable[[BaseException], object], /) -> None:
        """Call ``fail(raised)``, because ``request`` has raised, which breaks §3.16.

        But raise ``raised`` again if it must propagate (see ``interrupted_by``).
        """
        if self.interrupted_by(raised):
            raise raised
        fail(raised)

    def interrupted_by(self, raised: BaseException) -> bool:
        """Return whether ``raised``, which has come out of ``request``, must propagate.

        The subscriptions of this package raise nothing of their own. See ``signals.interrupts``.
        """
        return self._calls is None or propagates(raised)

    @property
    def over(self) -> bool:
        """Whether upstream has ended or was cancelled."""
        return self.latch.won
