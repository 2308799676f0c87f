"""The exceptions that a check raises if it does not pass."""

from __future__ import annotations

import asyncio
import importlib
import traceback
from pathlib import Path
from typing import Final

from rstreams_fast.tck.rules import RULES

__all__ = [
    "RAISED",
    "CheckAbandoned",
    "HookFailed",
    "NotApplicable",
    "NotJudged",
    "RuleBroken",
    "describe_raised",
    "place_of",
]

#: The exceptions that an implementation or a hook may raise. Exceptions of test frameworks, such as
#: ``pytest.skip``, and ``CheckAbandoned`` are not among them. A ``KeyboardInterrupt`` in a check
#: comes from the implementation: Ctrl-C raises it in the main thread, which waits for the check.
RAISED: Final = (
    Exception,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
)

_KIT = str(Path(__file__).parent)
_IMPORTS = ("<frozen importlib", str(Path(importlib.__file__)))


def describe_raised(raised: BaseException) -> str:
    """Return a text such as ``raised ValueError('x') (file.py:3, in f)``."""
    return f"raised {raised!r}{place_of(raised)}"


def place_of(raised: BaseException) -> str:
    """Return the place where ``raised`` was raised, such as ``" (file.py:3, in f)"``.

    The text is empty if the kit itself, or a failed import, raised the exception.
    """
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
        came: The sentence that says what happened instead.
    """

    def __init__(self, rule: str, expected: str, came: str) -> None:
        super().__init__(rule, expected, came)
        self.rule = rule
        self.expected = expected
        self.came = came
        # These attributes describe the check that failed. ``Verification._run_check`` sets them.
        self.grade = self.check = self.title = self.look = self.done = self.history = ""

    def __str__(self) -> str:
        return f"{self.brief()}\n{self.history}" if self.history else self.brief()

    def brief(self) -> str:
        """Return the text without the history of calls and signals."""
        fields = {
            "checked": self.title,
            "done": self.done,
            "expected": self.expected,
            "came": self.came,
            "look at": self.look,
            "check": f"{self.check} (grade {self.grade})" if self.check else "",
        }
        lines = [f"  {what + ':':<10}{text}" for what, text in fields.items() if text]
        return "\n".join([f"§{self.rule} is broken: {RULES[self.rule]}", *lines])


class CheckAbandoned(BaseException):
    """Raised by the kit's subscriber after its check was abandoned, to end the calling thread.

    This class is no ``Exception``, so it also ends a loop that catches exceptions of ``on_next``.
    """


class NotJudged(Exception):
    """The check was not run, because it needs a property that another check found missing."""


class NotApplicable(Exception):
    """The check needs something that the implementation does not claim to have."""


class HookFailed(Exception):
    """A hook of the verification raised, or returned nothing usable: no rule was judged."""
