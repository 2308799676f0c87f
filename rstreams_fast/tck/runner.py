"""Runs verifications without pytest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rstreams_fast.tck.outcome import (
    HookFailed,
    NotApplicable,
    OptionalNotMet,
    RuleBroken,
    Untested,
)
from rstreams_fast.tck.verification import Test, Verification, list_tests

__all__ = ["BROKEN", "ERROR", "KEPT", "NOT_APPLICABLE", "NOT_MET", "UNTESTED", "Result", "run"]

KEPT = "kept"
BROKEN = "broken"
NOT_MET = "optional: not met"
NOT_APPLICABLE = "not applicable"
UNTESTED = "untested"
ERROR = "could not run"


@dataclass(frozen=True)
class Result:
    """What became of one test."""

    test: Test
    outcome: str  #: one of the words above
    message: str  #: why, if not kept
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.test),
            "outcome": self.outcome,
            "message": self.message,
            "seconds": round(self.seconds, 4),
        }


def run(make: Callable[[], Verification], tests: list[Test] | None = None) -> Iterator[Result]:
    """Run every test, or ``tests``, each on a verification of its own made by ``make``."""
    for test in list_tests(type(make())) if tests is None else tests:
        start = time.perf_counter()
        outcome, message = _run_one(make(), test)
        yield Result(test, outcome, message, time.perf_counter() - start)


def _run_one(verification: Verification, test: Test) -> tuple[str, str]:
    try:
        getattr(verification, test.name)()
    except RuleBroken as broken:
        return BROKEN, str(broken)
    except OptionalNotMet as not_met:
        return NOT_MET, str(not_met.broken)
    except NotApplicable as reason:
        return NOT_APPLICABLE, str(reason)
    except Untested as reason:
        return UNTESTED, str(reason)
    except HookFailed as failed:
        return ERROR, str(failed)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # what a hook skips its test by, say
        return ERROR, f"{type(raised).__name__}: {raised}"
    return KEPT, ""
