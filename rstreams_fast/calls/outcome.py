"""``Outcome``: the value or the error of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Outcome"]


class Outcome(NamedTuple):
    """The value or the error of a call, its number of attempts, its seconds and its spent units."""

    value: Any
    error: BaseException | None
    attempts: int
    seconds: float
    usage: dict[str, float] | None = None
    """The units that all attempts spent. Rows that share one call share this dict."""
