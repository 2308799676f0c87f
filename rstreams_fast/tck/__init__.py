"""The test kit: does an implementation keep the rules of Reactive Streams 1.0?

Subclass one of the four verifications, define the hook that makes what you want to verify, and run
pytest; or point ``rstreams-fast tck package.module:Factory`` at anything that has the hooks. The
kit imports nothing of this package but ``api`` and ``errors``: it judges any implementation.
"""

from __future__ import annotations

from rstreams_fast.tck.blackbox import SubscriberBlackboxVerification
from rstreams_fast.tck.outcome import (
    HookFailed,
    NotApplicable,
    OptionalNotMet,
    RuleBroken,
    Untested,
)
from rstreams_fast.tck.processor import IdentityProcessorVerification
from rstreams_fast.tck.publisher_beyond import PublisherVerification
from rstreams_fast.tck.verification import Test, Verification, list_tests, rule
from rstreams_fast.tck.whitebox import Puppet, SubscriberWhiteboxVerification, WhiteboxProbe

__all__ = [
    "HookFailed",
    "IdentityProcessorVerification",
    "NotApplicable",
    "OptionalNotMet",
    "PublisherVerification",
    "Puppet",
    "RuleBroken",
    "SubscriberBlackboxVerification",
    "SubscriberWhiteboxVerification",
    "Test",
    "Untested",
    "Verification",
    "WhiteboxProbe",
    "list_tests",
    "rule",
]
