"""``take_last``: delivers the last elements of upstream, after upstream has completed."""

from __future__ import annotations

from rstreams_fast._checks import check_capacity
from rstreams_fast.streams.operators.on_overflow import Overflow, OverflowBoundary

__all__ = ["TakeLast"]


class TakeLast(OverflowBoundary):
    """Keeps the last ``n`` elements: a further element replaces the oldest element."""

    def __init__(self, n: int) -> None:
        capacity = check_capacity("take_last(n): n", n)
        super().__init__(Overflow.DROP_OLDEST, capacity, at_end=True)

    def describe(self) -> str:
        return f"take_last({self.capacity}): holds at most {self.capacity}"
