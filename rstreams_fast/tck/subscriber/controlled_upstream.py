"""``ControlledUpstream``: the kit's publisher above a subscriber under test."""

from __future__ import annotations

from typing import Any

from rstreams_fast.tck.upstream import TestError, Upstream

__all__ = ["ControlledUpstream"]


class ControlledUpstream(Upstream):
    """The kit's publisher above a subscriber. It can also make the subscriber request and cancel.

    For that, it calls the hooks ``trigger_request`` and ``trigger_cancel`` of the verification.
    """

    def __init__(self, verification: Any, subscriber: Any, waiting_calls: int) -> None:
        super().__init__(verification.environment, subscriber, waiting_calls=waiting_calls)
        self.verification = verification
        self.sent = 0  # how many elements of _answers were sent
        self.end_sent = False  # whether on_complete was sent after these elements
        self._answers: list[Any] = []
        self._sending = False

    def start(self, answers: list[Any]) -> None:
        """Call ``on_subscribe``. From now on, ``request`` sends the elements ``answers``."""
        self.answer_by(answers)
        self.send_subscription()
        self.environment.verify()

    def answer_by(self, answers: list[Any]) -> None:
        """From now on, ``request`` sends the elements ``answers`` before it returns."""
        if answers:
            self._answers = answers
            self.answer = self.send_answers

    def trigger_request(self, n: int) -> None:  # noqa: ARG002
        """Make the subscriber request elements, if it does not request by itself."""
        self.verification._hook("trigger_request", self.subscriber)

    def trigger_cancel(self) -> None:
        """Make the subscriber cancel."""
        self.verification._hook("trigger_cancel", self.subscriber)

    def drop_references(self) -> None:
        """Drop the kit's own references to the subscription. This class has none."""

    def expect_processed(self, elements: list[Any], rule: str) -> None:
        """Expect that ``elements`` were processed. Does nothing: only a whitebox reports this."""

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        """Expect that ``signal`` was processed. Does nothing: only a whitebox reports this."""

    def end(self, terminal: str, rule: str = "2.13") -> None:
        """Signal ``on_complete`` or ``on_error``, and expect that it is processed."""
        error = (TestError("from the kit's publisher"),) if terminal == "on_error" else ()
        self.send(terminal, *error)
        self.expect_terminal(rule, terminal, *error)

    # -- sending elements within request -----------------------------------------------------------

    def send_answers(self) -> None:
        """Send requested elements before ``request`` returns (§3.10), then ``on_complete`` (§3.11).

        If another call of this method is sending, that call sends all requested elements (§3.3).
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
            if self.end_sent or self.cancels or not wanted:
                self._sending = False
                return False
            self.end_sent = at_end
            self.sent += not at_end
        if at_end:
            self.send("on_complete")
        else:
            self.send_next(self._answers[index])
        return True
