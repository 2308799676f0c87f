"""Verification of a publisher: the checks of the official kit by their names, and others.

Each file has those of one part of the specification.
"""

from __future__ import annotations

from rstreams_fast.tck.publisher.cancels import CancelChecks
from rstreams_fast.tck.publisher.races import RaceChecks
from rstreams_fast.tck.publisher.requests import RequestChecks
from rstreams_fast.tck.publisher.signals import SignalChecks
from rstreams_fast.tck.publisher.subscribers import SubscribersChecks

__all__ = ["PublisherVerification"]


class PublisherVerification(
    SignalChecks, SubscribersChecks, RequestChecks, CancelChecks, RaceChecks
):
    """Verifies a publisher: define ``create_publisher(elements)`` in a subclass."""
