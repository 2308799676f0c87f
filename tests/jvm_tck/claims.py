"""What our classes do not claim, so that a kit may leave it out. Any other skip is a failure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.runner import KEPT, NOT_APPLICABLE, NOT_MET, UNTESTED
from tests.jvm_tck.subjects import Subject

__all__ = [
    "BY_DESIGN",
    "FAILED",
    "NOT_CLAIMED",
    "PASS",
    "UNCLAIMED",
    "objection",
    "verdict",
]

_BRIEF = 4  # lines of a message
#: The verdicts on one test; what is not claimed is counted so even where it is met by luck.
PASS, UNCLAIMED, BY_DESIGN, FAILED = "pass", "not claimed", "untested", "failed"


class Exemption(NamedTuple):
    """Optional rules that some classes do not claim."""

    subjects: str  #: patterns of names, apart by spaces
    tests: str  #: patterns of names, apart by spaces
    why: str
    but: str = ""  #: patterns of the names that do claim it


_SAME_TWICE = "beyond_optional_spec110_*"
_SAME_TO_ALL = "optional_spec111_multicast_*"
_ONE_SUBSCRIBER = Exemption(
    "publishers.Generator",
    f"optional_spec111_* {_SAME_TWICE}",
    "has one subscriber, and says so to every further one by `on_error`; "
    "a processor says it by `max_supported_subscribers = 1`",
)
NOT_CLAIMED: Final = (
    _ONE_SUBSCRIBER,
    Exemption(
        "*",
        _SAME_TWICE,
        "keeps no list of its subscribers: each subscription is a run of its own",
        but="multicast.* processors.Multicast processors.Serialized",
    ),
    Exemption(
        "publishers.MapAsyncUnordered combinations.Merge* combinations.FlatMap "
        "combinations.FlatMapOnThreads",
        _SAME_TO_ALL,
        "promises no order among what runs side by side",
    ),
)


def exemption(subject: Subject, test: str) -> Exemption | None:
    """The entry above that lets this test be left out for this class."""
    for entry in NOT_CLAIMED:
        named = _is_one_of(subject.name, entry.subjects) or (
            entry is _ONE_SUBSCRIBER and _has_limit(subject.verification)
        )
        if named and not _is_one_of(subject.name, entry.but) and _is_one_of(test, entry.tests):
            return entry
    return None


def _is_one_of(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def verdict(subject: Subject, result: dict[str, Any]) -> str:
    """What a result of either kit comes to: pass, not claimed, untested by design, or failed."""
    name, outcome = result["name"], result["outcome"]
    if outcome in (KEPT, NOT_MET) and exemption(subject, name):
        return UNCLAIMED
    if outcome == KEPT:
        return PASS
    if outcome == UNTESTED and name.startswith("untested_"):
        return BY_DESIGN
    if outcome == NOT_APPLICABLE and _is_unclaimed(subject.verification, result["message"]):
        return UNCLAIMED
    return FAILED


def objection(subject: Subject, result: dict[str, Any]) -> str:
    """Why a result is not acceptable; empty if it is."""
    if verdict(subject, result) != FAILED:
        return ""
    said = "\n  ".join(result["message"].splitlines()[:_BRIEF])
    return f"{subject.name}, {result['name']}: {result['outcome']}: {said}"


def _is_unclaimed(verification: Any, reason: str) -> bool:
    """Whether the reason for a skip is something that the class itself says."""
    hooks = ("create_failed_publisher", "create_failing_publisher", "create_failing_subscriber")
    absent = [f"there is no {hook}" for hook in hooks if not verification._has(hook)]
    few = getattr(verification, "max_elements", UNBOUNDED) < UNBOUNDED - 1
    if few and " elements, and max_elements is " in reason:
        return True
    said = {
        "Unable to run this test, as required elements nr": few,
        "Skipping because no error state Publisher provided": not verification._has(hooks[0]),
        "asyncio_bound: ": verification.asyncio_bound,
        "there is no trigger_cancel": not verification._has("trigger_cancel"),
        "The Publisher under test only supports ": _has_limit(verification),
        "needs 2 subscribers, and max_supported_subscribers is ": _has_limit(verification),
    }
    return reason in absent or any(
        claimed and reason.startswith(begin) for begin, claimed in said.items()
    )


def _has_limit(verification: Any) -> bool:
    return getattr(verification, "max_supported_subscribers", 2) < 2
