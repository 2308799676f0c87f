"""``Outcome``: the value or the error of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Outcome"]


class Outcome(NamedTuple):
    """The value or the error of a call, its number of attempts, and its seconds."""

    value: Any
    error: BaseException | None
    attempts: int
    seconds: float
