"""The test kit: checks whether an implementation keeps the rules of Reactive Streams 1.0.

Subclass one of the four verifications (classes whose methods are checks), define its hook (the
method that makes the object to verify), and run pytest. Or run the command ``rstreams-fast tck
package.module:Factory`` on any object that has such a hook. The kit can judge any implementation:
it uses no streams of this package.
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
