"""The loops a person writes by hand."""

from __future__ import annotations

from collections.abc import Callable


def python_loop(
    n: int,
    map_: Callable[[int], int],
    predicate: Callable[[int], object],
    on_next: Callable[[int], object],
) -> None:
    """``range -> map -> filter -> on_next``."""
    for i in range(n):
        mapped = map_(i)
        if predicate(mapped):
            on_next(mapped)


def direct(n: int, on_next: Callable[[int], object]) -> None:
    """``range -> on_next`` in one thread: what any hand-over between threads comes on top of."""
    for i in range(n):
        on_next(i)
