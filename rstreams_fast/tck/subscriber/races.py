"""Checks of what meets a subscriber while it goes idle: signals and stops at swept moments."""

# ruff: noqa: N802

from __future__ import annotations

from typing import TYPE_CHECKING

from rstreams_fast.tck.subscriber.stage import Stage
from rstreams_fast.tck.sweep import SecondThread, pause, sweep
from rstreams_fast.tck.verification import STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.subscriber.checks import Kit

__all__ = ["SubscriberRaceChecks"]

#: How long after its last act a subscriber with a thread of its own may take to go idle (seconds).
_WINDOW = 0.001
#: Subscribers of a sweep in which each is used once.
_SUBSCRIBERS = 30


class SubscriberRaceChecks:
    """§2.1, §2.6, §2.11: at the moment when the subscriber has nothing left to do."""

    @check("2.11", STRICT, needs="further requests")
    def beyond_spec211_anElementShouldWakeAnIdleSubscriber(self: Kit) -> None:
        """Of hundreds of elements each comes at another moment after the last was dealt with.
        Look at how the thread that works stops: its last look at the queue, and its mark that it
        has stopped, must be one step."""
        self._needs_threads()
        stage = self._stage()
        for sent, part in enumerate(sweep(self.environment)):
            if not self._is_wanted(stage, sent):
                return
            element = self._element(sent)
            pause(_WINDOW * part**3)
            stage.send_next(element)
            stage.expect_processed([element], "2.11")
        pause(_WINDOW / 10)
        stage.end("on_complete", "2.11")

    @check("2.11", STRICT, needs="a request")
    def beyond_spec211_theEndShouldWakeAnIdleSubscriber(self: Kit) -> None:
        """on_complete comes at another moment after the last element was dealt with, many times.
        Look at how the thread that works stops, and at who looks whether the stream is over: the
        last look and the mark that it has stopped must be one step."""
        self._needs_threads()
        for part in sweep(self.environment, most=_SUBSCRIBERS):
            stage = self._asked()
            element = self._element(0)
            stage.send_next(element)
            stage.expect_processed([element], "2.11")
            pause(_WINDOW * part**3)
            stage.end("on_complete", "2.11")

    @check("2.6", STRICT, needs="cancel on demand")
    def beyond_spec206_aStopWhileAnElementIsDealtWithShouldCancel(self: Kit) -> None:
        """A thread stops the subscriber while it deals with an element: it cancels all the same.
        Look at the state that on_next writes when it is done: it must not overwrite that the
        subscriber was stopped."""
        self._needs_threads()
        self._needs_cancel()
        with SecondThread.beside(self.environment, "2.6") as second:
            for part in sweep(self.environment, most=_SUBSCRIBERS):
                stage: Stage = self._asked()
                second.fire(second.arm(stage.trigger_cancel, _WINDOW * part**3))
                stage.send_next(self._element(0))
                second.join("the subscriber is stopped")
                stage.expect_cancel("2.6", "cancel() of a subscription no longer wanted")
