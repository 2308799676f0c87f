"""``Batching``: how many keys one call gets, and how long a key waits for other keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast.calls.functions import (
    MOST_CALLS,
    check_amount,
    check_positive_int,
    check_seconds,
)
from rstreams_fast.calls.memory.sizes import bytes_of

__all__ = ["Batching"]

DEFAULT_LINGER: Final = 0.01
"""The default of ``Batching(linger)``, in seconds."""


@dataclass(frozen=True)
class Batching:
    """One call for many keys: ``batch=rs.Batching(64, bytes=1_000_000, linger=0.05)``.

    Args:
        rows: The maximum number of keys in a call.
        bytes: About how many bytes the keys of a call may take, as Python objects. A larger key
            gets its own call. Default: no bound.
        linger: Seconds that a key waits for other keys, while the call has fewer than ``rows``
            keys and more keys may come. With 0 keys do not wait.
        weight: The maximum sum of the weights of a call's keys, such as the tokens that a service
            takes in one call. A heavier key gets its own call. Requires ``weigh``. Default: no
            bound.
        weigh: A function of a key's values that returns its weight, a finite number >= 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    rows: int
    bytes: int | None = None
    linger: float = DEFAULT_LINGER
    weight: float | None = None
    weigh: Callable[..., float] | None = field(default=None, repr=False)  # repr may show a secret

    def __post_init__(self) -> None:
        check_positive_int("Batching(rows)", self.rows, MOST_CALLS)
        if self.bytes is not None:
            check_positive_int("Batching(bytes)", self.bytes)
        if self.linger != 0:
            check_seconds("Batching(linger)", self.linger)
        if (self.weight is None) != (self.weigh is None):
            raise ValueError("Batching(weight) and Batching(weigh) need each other")
        if self.weight is not None and not check_amount("Batching(weight)", self.weight):
            raise ValueError("Batching(weight) must be > 0, got 0")
        if self.weigh is not None and not callable(self.weigh):
            raise TypeError(f"Batching(weigh) must be callable, got {type(self.weigh).__name__}")

    @property
    def most(self) -> float:
        """The maximum sum of ``size_of(key)`` over the keys of a call."""
        if self.weight is None:
            return math.inf if self.bytes is None else self.bytes
        return self.weight if self.bytes is None else 1.0

    def size_of(self, key: tuple[Any, ...]) -> float:
        """Return the size of a key: its bytes, or its weight if ``weight`` is given.

        If both ``bytes`` and ``weight`` are given, the size is a fraction: the key's bytes divided
        by ``bytes``, or the key's weight divided by ``weight``. The larger fraction counts.
        """
        if self.weight is None or self.weigh is None:
            return bytes_of(key if len(key) > 1 else key[0])
        weight = check_amount("Batching(weigh)", self.weigh(*key))
        if self.bytes is None:
            return weight
        return max(weight / self.weight, bytes_of(key if len(key) > 1 else key[0]) / self.bytes)

    def describe(self) -> str:
        """Return a readable text with the maximum keys, bytes and weight of a call."""
        size = "" if self.bytes is None else f" and {self.bytes} bytes"
        size += "" if self.weight is None else f" and a weight of {self.weight:.12g}"
        return f"of up to {self.rows} keys{size} each"
