"""The peers: RxPY 6.1 and the standard library's queues, used as their documentation does.

RxPY gets ``from_iterable(range(n))``: its own ``range`` schedules every element and takes twenty
times as long, which would flatter us.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import reactivex
from reactivex import operators
from reactivex.scheduler import EventLoopScheduler

from bench.workloads import BOUND, DEADLINE, Callables, Sink

_END = None  # what ends a queue; no element of the workload


def rxpy_fused(n: int, callables: Callables, sink: Sink) -> None:
    reactivex.from_iterable(range(n)).pipe(
        operators.map(callables.map),
        operators.filter(callables.predicate),  # type: ignore[arg-type]  # it wants bool only
    ).subscribe(sink.on_next, sink.on_error, sink.on_complete)
    sink.wait()


def rxpy_observe_on(n: int, sink: Sink) -> None:
    """RxPY's hand-over to another thread; it has no bound."""
    scheduler = EventLoopScheduler()
    try:
        reactivex.from_iterable(range(n)).pipe(operators.observe_on(scheduler)).subscribe(
            sink.on_next, sink.on_error, sink.on_complete
        )
        sink.wait()
    finally:
        scheduler.dispose()


def bounded_queue(n: int, sink: Sink) -> None:
    """``queue.Queue(1024)``: bounded, as ours is."""
    handed_over: queue.Queue[int | None] = queue.Queue(BOUND)
    _through_queue(n, sink, handed_over.put, handed_over.get)


def simple_queue(n: int, sink: Sink) -> None:
    """``queue.SimpleQueue``: C code and unbounded, so the fastest there is and no substitute."""
    handed_over: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    _through_queue(n, sink, handed_over.put, handed_over.get)


def _through_queue(
    n: int, sink: Sink, put: Callable[[int | None], None], get: Callable[[], int | None]
) -> None:
    def produce() -> None:
        for i in range(n):
            put(i)
        put(_END)

    def consume() -> None:
        on_next = sink.on_next
        while (element := get()) is not _END:
            on_next(element)
        sink.on_complete()

    threads = [
        threading.Thread(target=produce, name="producer", daemon=True),
        threading.Thread(target=consume, name="consumer", daemon=True),
    ]
    for thread in threads:
        thread.start()
    sink.wait()
    for thread in threads:
        thread.join(DEADLINE)
