"""One stream after another, for the same subscriber, who notices nothing but the elements.

What was asked for and has not come when one upstream ends is asked of the next: nothing twice
(§1.1), and nothing forgotten. Asking and changing over are one kind of work, done by one thread at
a time (``_asking``), so a request may race with the change, and a thousand changes in a row do not
nest (§3.3).
"""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber, Subscription
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import DemandExceeded, report_dropped
from rstreams_fast.streams.drain import Live, Upstream
from rstreams_fast.streams.inlets import subscribe
from rstreams_fast.streams.program import Program
from rstreams_fast.streams.push import PushSubscription

__all__ = ["Switching"]


class Switching(PushSubscription):
    """A subscription that has one upstream after another.

    ``start(publisher)`` introduces it and subscribes to the first. Subclasses fill in ``_next``,
    which says what to go on with when an upstream has ended. The publishers must be ours, or
    guarded by ``from_publisher``.
    """

    __slots__ = ("_attached", "_error", "_outstanding", "_over", "_publisher")

    def __init__(self, subscriber: Subscriber[Any]) -> None:
        super().__init__(subscriber, Program())
        self._publisher: Publisher[Any] | None = None  # to go on with
        self._attached = False  # whether the current upstream can be asked
        self._outstanding = DemandCounter()  # asked of it, and not come yet
        self._over = False  # it has ended, which is to be acted on,
        self._error: BaseException | None = None  # with this

    def start(self, publisher: Publisher[Any]) -> None:
        """Introduce ourselves, and subscribe to the first."""
        self._publisher = publisher
        if self._introduce():
            self._go()
            self._ask_now()

    # -- for subclasses --------------------------------------------------------------------------

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        """Say what to go on with: upstream has failed with ``error``, or, if ``None``, completed.

        ``None`` is for nothing, after ``_finish()`` or ``_fail(error)``, or for nothing yet:
        ``_go_on`` is to be called later. One call at a time, outside of any signal to downstream.
        An ``Exception`` it raises ends the stream.
        """
        raise NotImplementedError

    def _go_on(self, publisher: Publisher[Any]) -> None:
        """Subscribe to ``publisher``: from any thread, once after ``_next`` returned ``None``."""
        self._publisher = publisher
        self._enter_asking()

    def _finish(self) -> None:
        """Complete, after what has come before."""
        self._open = False
        self._completed = True
        self._enter()

    # -- signals from the current upstream -------------------------------------------------------

    def on_next(self, element: Any, /) -> None:
        """Pass on an element that was asked for."""
        try:
            self._outstanding.fulfil(1)
        except DemandExceeded as exceeded:
            self._fail(exceeded)
            return
        super().on_next(element)

    def _introduce_late(self) -> None:
        """There is nobody to be introduced to: ``start`` did that."""

    def _upstream_met(self) -> None:
        self._attached = True
        self._enter_asking()

    def _upstream_ended(self, error: BaseException | None) -> None:
        self._error = error
        self._over = True
        self._enter_asking()

    # -- asking and changing over ----------------------------------------------------------------

    def _ask_now(self) -> None:
        asking = self._asking
        try:
            while True:
                missed = asking.value
                self._change_over()
                self._ask_current()
                if asking.fulfil(missed) == 0:
                    return
        except BaseException as leaving:
            if self._demand.value >= 0:
                self._fail(leaving)  # it may leave through upstream, so downstream is told as well
            raise

    def _change_over(self) -> None:
        if self._over:
            error, self._error = self._error, None
            self._over = self._attached = False
            # All that came of it has come. Nobody else gives back; others may add.
            if (left := self._outstanding.value) > 0:
                self._pending.request(left)
                self._outstanding = DemandCounter()
            try:
                following = self._next(error) if self._demand.value >= 0 else None
            except Exception as raised:
                if error is not None and raised is not error and raised.__context__ is None:
                    raised.__context__ = error
                self._fail(raised)
                return
            finally:
                error = None  # a traceback keeps this frame
            if following is not None:
                self._publisher = following
        publisher = self._publisher
        if publisher is None:  # and nothing is written: one may come at this very moment
            return
        self._publisher = None
        if self._demand.value >= 0:
            self._upstream = Upstream()
            if self._demand.value < 0:  # cancelled before it could see which one to cancel
                self._upstream.cancel()
                return
            subscribe(publisher, _Link(self, self._upstream))

    def _ask_current(self) -> None:
        n = self._pending.value
        if n <= 0 or not self._attached or self._over:
            return
        if n == UNBOUNDED:
            if self._outstanding.value == UNBOUNDED:
                return
        else:
            self._pending.fulfil(n)
        self._outstanding.request(n)
        self._request(n)

    def _let_go(self) -> None:
        super()._let_go()
        self._publisher = None


class _Link(Live):
    """Our subscriber to one of the publishers: each has one of its own (§2.5, §2.12)."""

    __slots__ = ("_owner", "_upstream", "on_next")

    def __init__(self, owner: Switching, upstream: Upstream) -> None:
        self._owner = owner
        self._upstream = upstream
        self.on_next = owner.on_next

    def on_subscribe(self, subscription: Subscription, /) -> None:
        if self._upstream.attach(subscription):
            self._owner._upstream_met()

    def on_error(self, error: BaseException, /) -> None:
        if self._upstream.ended():
            self._owner._upstream_ended(error)
        else:
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        if self._upstream.ended():
            self._owner._upstream_ended(None)
