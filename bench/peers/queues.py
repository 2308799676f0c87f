"""Handing elements from one thread to another's ``on_next`` through a queue."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import aiologic
import culsans
import janus

from bench.peers import END, in_threads
from bench.workloads import BOUND, BURST, Sink
from rstreams_fast import RingClosed
from rstreams_fast.core import SpscRing


def bounded_queue(n: int, sink: Sink, bound: int = BOUND) -> None:
    """``queue.Queue``: bounded, as ours is."""
    waiting: queue.Queue[int | None] = queue.Queue(bound)
    _one_by_one(n, sink, waiting.put, waiting.get)


def simple_queue(n: int, sink: Sink) -> None:
    """``queue.SimpleQueue``: C code and unbounded, so the fastest there is and no substitute."""
    waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    _one_by_one(n, sink, waiting.put, waiting.get)


def bounded_deque(n: int, sink: Sink) -> None:
    """A ``collections.deque`` with a condition around it, as one writes it by hand."""
    waiting: deque[int | None] = deque()
    changed = threading.Condition()

    def put(element: int | None) -> None:
        with changed:
            while len(waiting) >= BOUND:
                changed.wait()
            waiting.append(element)
            changed.notify()

    def get() -> int | None:
        with changed:
            while not waiting:
                changed.wait()
            changed.notify()
            return waiting.popleft()

    _one_by_one(n, sink, put, get)


def queue_of_lists(n: int, sink: Sink) -> None:
    """Lists of 256 through a ``queue.Queue``: bursts, made by hand, with the same bound."""
    waiting: queue.Queue[list[int]] = queue.Queue(BOUND // BURST)

    def produce() -> None:
        for start in range(0, n, BURST):
            waiting.put(list(range(start, min(n, start + BURST))))
        waiting.put([])

    def consume() -> None:
        on_next = sink.on_next
        while burst := waiting.get():
            for element in burst:
                on_next(element)
        sink.on_complete()

    in_threads(produce, consume)
    sink.wait()


def janus_queue(n: int, sink: Sink) -> None:
    """janus wants a loop to exist; both of its ends are synchronous here."""
    import asyncio

    async def main() -> None:
        waiting: janus.Queue[int | None] = janus.Queue(BOUND)
        ends = waiting.sync_q
        await asyncio.to_thread(_one_by_one, n, sink, ends.put, ends.get)
        await waiting.aclose()

    asyncio.run(main())


def culsans_queue(n: int, sink: Sink) -> None:
    waiting: culsans.Queue[int | None] = culsans.Queue(BOUND)
    _one_by_one(n, sink, waiting.sync_q.put, waiting.sync_q.get)


def aiologic_queue(n: int, sink: Sink) -> None:
    waiting: aiologic.Queue[int | None] = aiologic.Queue(BOUND)
    _one_by_one(n, sink, waiting.green_put, waiting.green_get)


def ring_one_by_one(n: int, sink: Sink) -> None:
    """Our own ring, an element at a time: what a boundary would be without bursts."""
    ring = SpscRing(BOUND)

    def produce() -> None:
        for i in range(n):
            ring.put(i)
        ring.close()

    def consume() -> None:
        on_next, get = sink.on_next, ring.get
        try:
            while True:
                on_next(get())
        except RingClosed:
            sink.on_complete()

    in_threads(produce, consume)
    sink.wait()


def ring_bursts(n: int, sink: Sink) -> None:
    """Our own ring by hand, in bursts of up to 256: no demand, no cancel, no errors."""
    ring = SpscRing(BOUND)

    def produce() -> None:
        for start in range(0, n, BURST):
            burst = list(range(start, min(n, start + BURST)))
            while (sent := ring.offer_many(burst)) < len(burst):
                ring.put(burst[sent])  # waits for room
                del burst[: sent + 1]
        ring.close()

    def consume() -> None:
        on_next = sink.on_next
        try:
            while True:
                on_next(ring.get())
                for element in ring.poll_many(BURST):
                    on_next(element)
        except RingClosed:
            sink.on_complete()

    in_threads(produce, consume)
    sink.wait()


def _one_by_one(
    n: int, sink: Sink, put: Callable[[int | None], Any], get: Callable[[], int | None]
) -> None:
    def produce() -> None:
        for i in range(n):
            put(i)
        put(END)

    def consume() -> None:
        on_next = sink.on_next
        while (element := get()) is not END:
            on_next(element)
        sink.on_complete()

    in_threads(produce, consume)
    sink.wait()
