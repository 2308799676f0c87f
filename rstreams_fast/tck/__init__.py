"""The test kit: does an implementation keep the rules of Reactive Streams 1.0?

Subclass one of the four verifications, define the hook that makes what you want to verify, and run
pytest; or point ``rstreams-fast tck package.module:Factory`` at anything that has the hooks. The
kit imports nothing of this package but ``api`` and ``errors``: it judges any implementation.
"""

from __future__ import annotations

from rstreams_fast.tck.outcome import HookFailed, NotApplicable, NotJudged, RuleBroken
from rstreams_fast.tck.processor import IdentityProcessorVerification
from rstreams_fast.tck.publisher import PublisherVerification
from rstreams_fast.tck.subscriber import (
    Puppet,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from rstreams_fast.tck.verification import GRADES, Check, Verification, check, list_checks

__all__ = [
    "GRADES",
    "Check",
    "HookFailed",
    "IdentityProcessorVerification",
    "NotApplicable",
    "NotJudged",
    "PublisherVerification",
    "Puppet",
    "RuleBroken",
    "SubscriberBlackboxVerification",
    "SubscriberWhiteboxVerification",
    "Verification",
    "WhiteboxProbe",
    "check",
    "list_checks",
]
