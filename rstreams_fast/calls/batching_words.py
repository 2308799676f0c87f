"""``Batching``: how many keys one call gets, and how long a key waits for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rstreams_fast.calls.functions import MOST_CALLS, check_positive_int, check_seconds

__all__ = ["Batching"]

DEFAULT_LINGER: Final = 0.01
"""Seconds that a key waits for others to be called with."""


@dataclass(frozen=True)
class Batching:
    """One call for many keys: ``batch=rs.Batching(64, bytes=1_000_000, linger=0.05)``.

    Args:
        rows: The most keys of a call.
        bytes: About how many bytes the keys of a call may take, as Python objects; a larger key
            goes alone. Default: no bound.
        linger: Seconds for which a key waits for others, if fewer than ``rows`` are there; 0 waits
            for none.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    rows: int
    bytes: int | None = None
    linger: float = DEFAULT_LINGER

    def __post_init__(self) -> None:
        check_positive_int("Batching(rows)", self.rows, MOST_CALLS)
        if self.bytes is not None:
            check_positive_int("Batching(bytes)", self.bytes)
        if self.linger != 0:
            check_seconds("Batching(linger)", self.linger)

    def describe(self) -> str:
        """Return a text for people."""
        size = "" if self.bytes is None else f" and {self.bytes} bytes"
        return f"of up to {self.rows} keys{size} each"
