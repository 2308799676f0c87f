"""Who runs which workload, and with how many elements."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from bench import ours, peers
from bench.floors import c_loop, direct, python_loop
from bench.workloads import (
    C_CALLABLES,
    CHECKED,
    PYTHON_CALLABLES,
    Appending,
    Callables,
    Collecting,
    Sink,
    Summing,
)

FusedRunner = Callable[[int, Callables, Sink], None]
BoundaryRunner = Callable[[int, Sink], None]


class WrongResultError(Exception):
    """A contestant lost, doubled or reordered elements: its time means nothing."""


@dataclass(frozen=True)
class Contestant:
    """One way of doing a workload. ``n`` makes a timed run last some tens of milliseconds."""

    name: str
    n: int
    run: BoundaryRunner
    expected: Callable[[int], list[int]]
    new_sink: Callable[[], Summing | Appending]
    crosses_threads: bool = False

    def check(self) -> None:
        """Run it once with a sink that keeps everything (§1.1, §1.3: all, once, in order)."""
        sink = Collecting()
        self.run(CHECKED, sink)
        if sink.elements != self.expected(CHECKED):
            raise WrongResultError(f"{self.name}: the elements are not those expected, in order")
        if self.crosses_threads and threading.get_ident() in sink.threads:
            raise WrongResultError(f"{self.name}: some elements came in on the caller's thread")

    def expected_total(self) -> int:
        """What a timed run's sink must have added up."""
        sink = self.new_sink()
        for element in self.expected(self.n):
            sink.on_next(element)
        return sink.total


def _floor_python(n: int, callables: Callables, sink: Sink) -> None:
    python_loop(n, callables.map, callables.predicate, sink.on_next)


def _floor_c(n: int, callables: Callables, sink: Sink) -> None:
    c_loop(n, callables.map, callables.predicate, sink.on_next)


def _fused(
    name: str,
    n: int,
    run: FusedRunner,
    callables: Callables,
    new_sink: Callable[[], Summing | Appending],
) -> Contestant:
    return Contestant(
        name, n, lambda n, sink: run(n, callables, sink), callables.expected, new_sink
    )


def _boundary(name: str, n: int, run: BoundaryRunner, *, crosses: bool = True) -> Contestant:
    return Contestant(name, n, run, lambda n: list(range(n)), Summing, crosses)


FUSED_PYTHON = [
    _fused("ours", 400_000, ours.fused, PYTHON_CALLABLES, Summing),
    _fused("hand-written Python loop", 400_000, _floor_python, PYTHON_CALLABLES, Summing),
    _fused("C loop", 400_000, _floor_c, PYTHON_CALLABLES, Summing),
    _fused("RxPY 6.1", 100_000, peers.rxpy_fused, PYTHON_CALLABLES, Summing),
]

FUSED_C = [
    _fused("ours", 800_000, ours.fused, C_CALLABLES, Appending),
    _fused("hand-written Python loop", 800_000, _floor_python, C_CALLABLES, Appending),
    _fused("C loop", 800_000, _floor_c, C_CALLABLES, Appending),
    _fused("RxPY 6.1", 100_000, peers.rxpy_fused, C_CALLABLES, Appending),
]

BOUNDARY = [
    _boundary("ours", 400_000, ours.boundary),
    _boundary("queue.Queue(1024)", 50_000, peers.bounded_queue),
    _boundary("SimpleQueue, unbounded", 400_000, peers.simple_queue),
    _boundary("RxPY 6.1 observe_on", 8_000, peers.rxpy_observe_on),
    _boundary(
        "direct loop, one thread",
        400_000,
        lambda n, sink: direct(n, sink.on_next),
        crosses=False,
    ),
]
