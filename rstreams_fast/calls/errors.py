"""Errors that this package raises instead of the user's function; notes on errors; warnings."""

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
"""The message of the ``CancelledError`` with which a time-out cancels a call."""


class BudgetSpentError(Exception):
    """A call was not made, because its ``Budget`` is spent.

    In a Spark stage ``on_failure`` applies to this call.
    """


class CircuitOpenError(Exception):
    """A call was not made, because its ``Circuit`` is open.

    In a Spark stage ``on_failure`` applies to this call.
    """


class StageError(RuntimeError):
    """The stage itself has failed, not the call of one row. The Spark task fails.

    A stage is a step of a Spark job that calls a user's function, such as ``rs.lookup``.
    ``on_failure`` has no effect. The call in which the error was raised is not retried, and its row
    is not counted as a failed row.
    """


def with_note(error: Error, text: str) -> Error:
    """Add the note ``text`` to ``error``, and return ``error``."""
    add_note(error, f"rstreams_fast: {text}")
    return error


def as_timeout(error: BaseException) -> BaseException:
    """Return ``TimeoutError`` if ``error`` is a cancellation by a time-out, otherwise ``error``."""
    cut_short = isinstance(error, asyncio.CancelledError) and error.args == (OUT_OF_TIME,)
    return TimeoutError(OUT_OF_TIME) if cut_short else error


_logged: Final[set[tuple[str, Hashable]]] = set()


def warn_once(about: Hashable, text: str, *words: object) -> None:
    """Log a warning, unless this process has already logged the same ``text`` and ``about``.

    ``about`` is the subject of the warning, such as the name of a function. ``words`` are the
    values for the placeholders in ``text``.
    """
    if (text, about) not in _logged:
        _logged.add((text, about))
        logging.getLogger("rstreams_fast").warning(text, *words)
