"""Checks of signals and stops that come while a subscriber goes idle.

A subscriber goes idle when it has processed all elements and its working thread stops. A *stop* is
a call that makes the subscriber cancel. Each check repeats the signal or stop in many *rounds*, in
each round at another moment.
"""

# ruff: noqa: N802

from __future__ import annotations

from typing import TYPE_CHECKING

from rstreams_fast.tck.subscriber.controlled_upstream import ControlledUpstream
from rstreams_fast.tck.sweep import SecondThread, pause, sweep
from rstreams_fast.tck.verification import STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.subscriber.checks import Kit

__all__ = ["SubscriberRaceChecks"]

#: A subscriber with its own thread usually goes idle within this many seconds after an element.
_WINDOW = 0.001
#: The largest number of rounds in a check that uses a new subscriber in each round.
_SUBSCRIBERS = 30


class SubscriberRaceChecks:
    """Checks of §2.1, §2.6 and §2.11 at the moment when the subscriber has no more work."""

    @check("2.11", STRICT, needs="further requests")
    def beyond_spec211_anElementShouldWakeAnIdleSubscriber(self: Kit) -> None:
        """Hundreds of elements come, each at another time after the previous element was processed.
        All are processed.
        Look at how the working thread stops: it must see that the queue is empty, and mark itself
        as stopped, in one step."""
        self._needs_threads()
        upstream = self._upstream()
        for sent, part in enumerate(sweep(self.environment)):
            if not self._wait_for_demand(upstream, sent):
                return
            element = self._element(sent)
            pause(_WINDOW * part**3)
            upstream.send_next(element)
            upstream.expect_processed([element], "2.11")
        pause(_WINDOW / 10)
        upstream.end("on_complete", "2.11")

    @check("2.11", STRICT, needs="a request")
    def beyond_spec211_theEndShouldWakeAnIdleSubscriber(self: Kit) -> None:
        """on_complete is processed, no matter how soon after the last element it comes.
        Look at how the working thread stops: it must see that the stream has not ended, and mark
        itself as stopped, in one step."""
        self._needs_threads()
        for part in sweep(self.environment, most=_SUBSCRIBERS):
            upstream = self._upstream_after_request()
            element = self._element(0)
            upstream.send_next(element)
            upstream.expect_processed([element], "2.11")
            pause(_WINDOW * part**3)
            upstream.end("on_complete", "2.11")

    @check("2.6", STRICT, needs="cancel on demand")
    def beyond_spec206_aStopWhileAnElementIsDealtWithShouldCancel(self: Kit) -> None:
        """A thread stops the subscriber while the subscriber processes an element. The subscriber
        still cancels.
        Look at the state that on_next writes at its end: it must not overwrite the state that says
        that the subscriber was stopped."""
        self._needs_threads()
        self._needs_cancel()
        with SecondThread.running(self.environment, "2.6") as second:
            for part in sweep(self.environment, most=_SUBSCRIBERS):
                upstream: ControlledUpstream = self._upstream_after_request()
                second.fire(second.arm(upstream.trigger_cancel, _WINDOW * part**3))
                upstream.send_next(self._element(0))
                second.join("the subscriber is stopped")
                upstream.expect_cancel("2.6", "cancel() of a subscription no longer wanted")
