"""The loops a person writes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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


def staged(stage: str, n: int, fn: Callable[..., Any], on_next: Callable[[int], object]) -> None:
    """``range``, one stage, ``on_next``."""
    match stage:
        case "scan":
            total = 0
            on_next(total)
            for i in range(n):
                total = fn(total, i)
                on_next(total)
        case "distinct_until_changed":
            last = None
            for i in range(n):
                if i != last:
                    last = i
                    on_next(i)
        case "do_on_next":
            for i in range(n):
                fn(i)
                on_next(i)
        case _:
            numbers = iter(range(n))
            for i in numbers:
                if not fn(i):
                    on_next(i)
                    break
            for i in numbers:
                on_next(i)


def direct(n: int, on_next: Callable[[int], object]) -> None:
    """``range -> on_next`` in one thread: what any hand-over between threads comes on top of."""
    for i in range(n):
        on_next(i)
