"""Contestants that feed elements to a sink, and how they are checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bench.measure import Contestant, Role, Work, WrongResultError
from bench.workloads import CHECKED, Appending, Collecting, Sink, Summing

__all__ = ["feeding", "plain"]


def feeding(
    name: str,
    role: Role,
    n: int,
    run: Callable[[int, Sink], None],
    *,
    expected: Callable[[int], list[Any]] = lambda n: list(range(n)),
    new_sink: type[Summing | Appending] = Summing,
    crosses: bool = False,
    in_order: bool = True,
    note: str = "",
) -> Contestant:
    """``run(n, sink)`` feeds ``expected(n)`` to the sink, on another thread if it ``crosses``.

    ``in_order`` is false for results of ``flat_map``: their order is that of their arrival.
    """

    def check() -> None:
        """All of it, once (§1.1, §1.3)."""
        sink = Collecting()
        run(CHECKED, sink)
        elements, wanted = sink.elements, expected(CHECKED)
        if not in_order:
            elements, wanted = sorted(elements), sorted(wanted)
        if elements != wanted:
            raise WrongResultError(f"{name}: the elements are not those expected, in order")
        if crosses and threading.get_ident() in sink.threads:
            raise WrongResultError(f"{name}: some elements came in on the caller's thread")

    totals: dict[int, object] = {}

    def begin(n: int) -> tuple[Work, object]:
        if n not in totals:
            model = new_sink()
            for element in expected(n):
                model.on_next(element)
            totals[n] = model.total
        sink = new_sink()

        def work() -> object:
            run(n, sink)
            return sink.total

        return work, totals[n]

    return Contestant(name, role, n, begin, note, check)


def plain(
    name: str,
    role: Role,
    n: int,
    run: Callable[[int], object],
    expected: Callable[[int], object],
    note: str = "",
) -> Contestant:
    """``run(n)`` answers ``expected(n)``; nothing has to be prepared."""
    return Contestant(name, role, n, lambda n: (lambda: run(n), expected(n)), note)
