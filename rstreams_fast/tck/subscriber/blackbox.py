"""Verification of a subscriber from outside, by its calls of ``request`` and ``cancel``."""

from __future__ import annotations

from typing import Any, ClassVar

from rstreams_fast.tck.outcome import NotApplicable
from rstreams_fast.tck.subscriber.checks import SubscriberChecks
from rstreams_fast.tck.subscriber.controlled_upstream import ControlledUpstream
from rstreams_fast.tck.subscriber.races import SubscriberRaceChecks
from rstreams_fast.tck.verification import Verification

__all__ = ["SubscriberBlackboxVerification"]


class SubscriberBlackboxVerification(SubscriberChecks, SubscriberRaceChecks, Verification):
    """Verifies a subscriber: define ``create_subscriber()`` in a subclass.

    ``SubscriberWhiteboxVerification`` can check more rules. Prefer it if you can.
    """

    essential_hook = "create_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (
        *SubscriberChecks.hooks,
        "create_subscriber",
        "trigger_request",
        "trigger_cancel",
    )

    def create_subscriber(self) -> Any:
        """Return a new subscriber that requests by itself or when ``trigger_request`` is called."""
        raise NotImplementedError("create_subscriber() is the hook that makes a subscriber")

    def trigger_request(self, subscriber: Any) -> None:
        """Make the subscriber request elements. Not needed if the subscriber requests by itself.

        Args:
            subscriber: A result of ``create_subscriber``.
        """

    def trigger_cancel(self, subscriber: Any) -> None:
        """Make the subscriber stop, and so cancel. Without this hook §2.6 and §2.8 are not judged.

        Args:
            subscriber: A result of ``create_subscriber``.
        """

    def _make_upstream(self, waiting_calls: int) -> ControlledUpstream:
        return ControlledUpstream(self, self._make("create_subscriber"), waiting_calls)

    def _needs_cancel(self) -> None:
        if not self._defines("trigger_cancel"):
            raise NotApplicable("there is no trigger_cancel")
