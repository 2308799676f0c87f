"""What a result of either kit comes to. What a class does not claim, it says in its settings."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from rstreams_fast.tck.runner import KEPT, NOT_APPLICABLE
from tests.jvm_tck.subjects import Subject

__all__ = ["FAILED", "NOT_MET", "PASS", "UNCLAIMED", "UNTESTED", "objection", "verdict"]

#: What the official kit has beside the outcomes of ours.
NOT_MET, UNTESTED = "optional: not met", "untested"
#: The verdicts on one test.
PASS, UNCLAIMED, FAILED = "pass", "not claimed", "failed"
_BRIEF = 5  # lines of a message


def verdict(subject: Subject, result: dict[str, Any]) -> str:
    """Pass, not claimed, untested by design, or failed."""
    outcome = result["outcome"]
    if outcome == UNTESTED and result["name"].startswith("untested_"):
        return UNTESTED
    if outcome == NOT_APPLICABLE or (outcome == NOT_MET and _is_unclaimed(subject, result["name"])):
        return UNCLAIMED
    if outcome == KEPT and _is_of_several(subject, result["name"]):
        return UNCLAIMED  # it is a matter of time which of two subscribers is refused
    return PASS if outcome == KEPT else FAILED


def _is_unclaimed(subject: Subject, test: str) -> bool:
    patterns: Any = subject.verification.not_claimed
    return _is_of_several(subject, test) or any(fnmatchcase(test, each) for each in patterns)


def _is_of_several(subject: Subject, test: str) -> bool:
    """Whether the test has several subscribers, and the subject is meant for one."""
    most = getattr(subject.verification, "max_supported_subscribers", 2)
    return most == 1 and test.startswith("optional_spec111_")


def objection(subject: Subject, result: dict[str, Any]) -> str:
    """Why a result is not acceptable; empty if it is."""
    if verdict(subject, result) != FAILED:
        return ""
    said = "\n  ".join(result["message"].splitlines()[:_BRIEF])
    return f"{subject.name}, {result['name']}: {result['outcome']}: {said}"
