"""The numbers that streams are tuned by, in one home."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BURST",
    "ITERATE_PREFETCH",
    "PREFETCH",
    "TURN_SECONDS",
    "replenish_at",
]

PREFETCH: Final = 1024
"""Elements that ``publish_on`` asks for ahead: bursts of that size make a hand-over cheap."""

ITERATE_PREFETCH: Final = 256
"""Elements that ``for`` and ``async for`` ask for ahead."""

BURST: Final = 256
"""The most source elements that a drain processes before it looks up."""

TURN_SECONDS: Final = 0.001
"""How long a drain keeps a resource before it goes to the back of the queue, bursts permitting."""


def replenish_at(prefetch: int) -> int:
    """How many elements are consumed before as many are asked for again: three quarters."""
    return max(1, prefetch - (prefetch >> 2))
