"""What can become of a test of the kit, other than that the rule was kept."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from rstreams_fast.tck.rules import RULES

__all__ = [
    "HookFailed",
    "NotApplicable",
    "OptionalNotMet",
    "RuleBroken",
    "Untested",
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
    """A rule is broken. Its text names the rule, what was expected, what was seen, and where."""

    def __init__(self, rule: str, expected: str, seen: str) -> None:
        super().__init__(rule, expected, seen)
        self.rule = rule
        self.expected = expected
        self.seen = seen
        self.test = ""
        self.look = ""
        self.history = ""

    def __str__(self) -> str:
        lines = [
            f"§{self.rule} broken: {RULES[self.rule]}" if self.rule else "the kit was not served",
            f"  expected: {self.expected}",
            f"  seen:     {self.seen}",
        ]
        if self.look:
            lines.append(f"  look:     {self.look}")
        if self.test:
            lines.append(f"  test:     {self.test}")
        if self.history:
            lines.append(self.history)
        return "\n".join(lines)


class OptionalNotMet(Exception):
    """The rule says MAY or SHOULD, and this implementation does not."""

    def __init__(self, broken: RuleBroken) -> None:
        super().__init__(broken)
        self.broken = broken

    def __str__(self) -> str:
        return f"optional: not met: {self.broken}"


class Untested(Exception):
    """The rule cannot be judged from outside. The text says why, and what comes closest."""


class NotApplicable(Exception):
    """The test needs something that the implementation does not claim to have."""


class HookFailed(Exception):
    """A hook of the verification raised, or returned nothing usable: no rule was judged."""
