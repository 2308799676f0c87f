"""Where a subscriber under test stands: below a publisher that the check moves by hand."""

from __future__ import annotations

from typing import Any

from rstreams_fast.tck.upstream import TestError, Upstream

__all__ = ["Stage"]


class Stage(Upstream):
    """What is above the subscriber, and the means to move it: seen from outside, two hooks."""

    def __init__(self, verification: Any, subscriber: Any, linger: int) -> None:
        super().__init__(verification.environment, subscriber, linger=linger)
        self.verification = verification
        self.sent = 0  # of the answers
        self.over = False  # whether the end was sent after them
        self._answers: list[Any] = []
        self._sending = False

    def start(self, answers: list[Any]) -> None:
        """Send the subscription."""
        self.answer_by(answers)
        self.send_subscription()
        self.environment.verify()

    def answer_by(self, answers: list[Any]) -> None:
        """Send these from within request, from now on."""
        if answers:
            self._answers = answers
            self.answer = self.send_answers

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

    # -- elements from within request --------------------------------------------------------------

    def send_answers(self) -> None:
        """Send what is asked for before ``request`` returns (§3.10), and then the end (§3.11).

        A request from within on_next is left to the call that sends already (§3.3).
        """
        with self.environment.changed:
            if self._sending:
                return
            self._sending = True
        while self._send_one():
            self.environment.notify()

    def _send_one(self) -> bool:
        with self.environment.changed:
            index, at_end = self.sent, self.sent == len(self._answers)
            wanted = at_end or self.demand > self.sent
            if self.over or self.cancels or not wanted:
                self._sending = False
                return False
            self.over = at_end
            self.sent += not at_end
        if at_end:
            self.send("on_complete")
        else:
            self.send_next(self._answers[index])
        return True
