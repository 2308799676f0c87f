"""Errors of calls that the user's function did not raise, notes on errors, and warnings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import Final, TypeVar

from rstreams_fast._checks import add_note

__all__ = [
    "OUT_OF_TIME",
    "BudgetSpentError",
    "CircuitOpenError",
    "StageError",
    "as_timeout",
    "warn_once",
    "with_note",
]

Error = TypeVar("Error", bound=BaseException)

OUT_OF_TIME: Final = "out of time"
"""The message of a cancellation that a deadline causes."""


class BudgetSpentError(Exception):
    """A call was not made: its ``Budget`` is spent. ``on_failure`` decides about the call."""


class CircuitOpenError(Exception):
    """A call was not made: its ``Circuit`` is open. ``on_failure`` decides about the call."""


class StageError(RuntimeError):
    """The stage itself failed, not a call: the task fails, whatever ``on_failure`` says.

    The call is not retried, and does not count as a failure of its row.
    """


def with_note(error: Error, text: str) -> Error:
    """Return ``error`` with the note ``text``."""
    add_note(error, f"rstreams_fast: {text}")
    return error


def as_timeout(error: BaseException) -> BaseException:
    """Return ``error``, or a ``TimeoutError`` if a time-out of the policy cancelled the call."""
    cut_short = isinstance(error, asyncio.CancelledError) and error.args == (OUT_OF_TIME,)
    return TimeoutError(OUT_OF_TIME) if cut_short else error


_logged: Final[set[tuple[str, Hashable]]] = set()


def warn_once(about: Hashable, text: str, *words: object) -> None:
    """Log a warning, unless this process has logged the same ``text`` about the same thing.

    ``words`` fill in the ``text``.
    """
    if (text, about) not in _logged:
        _logged.add((text, about))
        logging.getLogger("rstreams_fast").warning(text, *words)
