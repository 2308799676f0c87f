"""What elements weigh: bytes, as a user's function counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import as_int, check_count, check_plain, describe_callable

__all__ = ["Weigher", "check_weigher", "weigh"]

Weigher = Callable[[Any], int]


def check_weigher(max_bytes: object, weigher: object) -> int | None:
    """Return ``max_bytes``, checked; both are given, or neither."""
    if (max_bytes is None) != (weigher is None):
        raise ValueError("max_bytes and weigher must be given together")
    if weigher is not None:
        check_plain("weigher", weigher)
    return None if max_bytes is None else check_count("max_bytes", max_bytes, 1)


def weigh(weigher: Weigher, element: Any) -> int:
    """Return the weight of ``element``; raises what ``weigher`` raises, or what a bad one
    deserves.
    """
    weight = as_int(weigher(element))
    if weight is None or weight < 0:
        raise TypeError(f"the weigher {describe_callable(weigher)} must return an int >= 0 (bytes)")
    return weight
