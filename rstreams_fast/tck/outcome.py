"""What can become of a check, other than that the rule was kept."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from rstreams_fast.tck.rules import RULES

__all__ = [
    "CheckLeft",
    "HookFailed",
    "NotApplicable",
    "NotJudged",
    "RuleBroken",
    "place_of",
    "raised_by",
]

_KIT = str(Path(__file__).parent)
_IMPORTS = ("<frozen importlib", str(Path(importlib.__file__)))


def raised_by(raised: BaseException) -> str:
    """``raised ...``, and where."""
    return f"raised {raised!r}{place_of(raised)}"


def place_of(raised: BaseException) -> str:
    """Where it was raised, in brackets; nothing if the kit itself raised it, or an import."""
    for frame in reversed(traceback.extract_tb(raised.__traceback__)):
        if frame.filename.startswith(_KIT):
            break
        if not frame.filename.startswith(_IMPORTS):
            return f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    return ""


class RuleBroken(AssertionError):
    """A rule is broken. The text says what was done, what was expected and what came instead.

    Args:
        rule: The number of the rule.
        expected: The sentence that says what the rule demands.
        came: The sentence that says what was.
    """

    def __init__(self, rule: str, expected: str, came: str) -> None:
        super().__init__(rule, expected, came)
        self.rule = rule
        self.expected = expected
        self.came = came
        # What the check adds that has met this.
        self.grade = self.check = self.title = self.look = self.done = self.history = ""

    def __str__(self) -> str:
        return f"{self.brief()}\n{self.history}" if self.history else self.brief()

    def brief(self) -> str:
        """The text without the signals."""
        told = {
            "checked": self.title,
            "done": self.done,
            "expected": self.expected,
            "came": self.came,
            "look at": self.look,
            "check": f"{self.check} (grade {self.grade})" if self.check else "",
        }
        lines = [f"  {what + ':':<10}{text}" for what, text in told.items() if text]
        return "\n".join([f"§{self.rule} is broken: {RULES[self.rule]}", *lines])


class CheckLeft(BaseException):
    """Raised by the kit's subscriber, once its check was left, to end the thread that signals.

    Not an ``Exception``, so that it also ends a loop which forgives what ``on_next`` raises.
    """


class NotJudged(Exception):
    """The check was not run, since it needs what another check has found missing."""


class NotApplicable(Exception):
    """The check needs something that the implementation does not claim to have."""


class HookFailed(Exception):
    """A hook of the verification raised, or returned nothing usable: no rule was judged."""
