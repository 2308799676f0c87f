"""Verification of a subscriber: seen from outside (blackbox), and from within (whitebox)."""

from __future__ import annotations

from rstreams_fast.tck.subscriber.blackbox import SubscriberBlackboxVerification
from rstreams_fast.tck.subscriber.whitebox import (
    Puppet,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)

__all__ = [
    "Puppet",
    "SubscriberBlackboxVerification",
    "SubscriberWhiteboxVerification",
    "WhiteboxProbe",
]
