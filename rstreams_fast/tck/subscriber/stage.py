"""Where a subscriber under test stands: below a publisher that the check moves by hand."""

from __future__ import annotations

import functools
from typing import Any

from rstreams_fast.tck.upstream import TestError, Upstream

__all__ = ["Answers", "Stage"]


class Stage(Upstream):
    """What is above the subscriber, and the means to move it: seen from outside, two hooks."""

    def __init__(self, verification: Any, subscriber: Any, linger: int) -> None:
        super().__init__(verification.environment, subscriber, linger=linger)
        self.verification = verification

    def start(self, answers: Answers | None) -> None:
        """Send the subscription."""
        self.answer_by(answers)
        self.send_subscription()
        self.environment.verify()

    def answer_by(self, answers: Answers | None) -> None:
        if answers is not None:
            self.answer = functools.partial(answers.send, self)

    def trigger_request(self, n: int) -> None:  # noqa: ARG002
        """Make the subscriber ask for more, if it needs to be made to."""
        self.verification._hook("trigger_request", self.subscriber)

    def trigger_cancel(self) -> None:
        """Make the subscriber cancel."""
        self.verification._hook("trigger_cancel", self.subscriber)

    def forget(self) -> None:
        """Drop what the kit itself knows of the subscription."""

    def expect_processed(self, elements: list[Any], rule: str) -> None:
        """Expect that the subscriber has processed these, as far as the kit can see that."""

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        """Expect that the subscriber has processed the end, as far as the kit can see that."""

    def end(self, terminal: str, rule: str = "2.13") -> None:
        """Signal ``on_complete`` or ``on_error``, and expect that it is processed."""
        error = (TestError("from the kit's publisher"),) if terminal == "on_error" else ()
        self.send(terminal, *error)
        self.expect_terminal(rule, terminal, *error)


class Answers:
    """Elements that are sent before ``request`` returns (§3.10), and then the end (§3.11).

    A request from within on_next is left to the call that sends already (§3.3).
    """

    def __init__(self, elements: list[Any]) -> None:
        self.sent = 0
        self.over = False
        self._elements = elements
        self._sending = False

    def send(self, stage: Stage) -> None:
        with stage.environment.changed:
            if self._sending:
                return
            self._sending = True
        while self._send_one(stage):
            stage.environment.notify()

    def _send_one(self, stage: Stage) -> bool:
        with stage.environment.changed:
            index, at_end = self.sent, self.sent == len(self._elements)
            wanted = at_end or stage.demand > self.sent
            if self.over or stage.cancels or not wanted:
                self._sending = False
                return False
            self.over = at_end
            self.sent += not at_end
        if at_end:
            stage.send("on_complete")
        else:
            stage.send_next(self._elements[index])
        return True
