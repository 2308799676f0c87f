"""From one process to another: ``multiprocessing`` and faster-fifo.

The other process is started before the clock runs, and answers what it got when it has got all.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from bench.drivers import Missing
from bench.measure import Outcome, Work
from bench.workloads import BOUND, DEADLINE

_spawning = multiprocessing.get_context("spawn")
#: Bytes: room for about as many pickled numbers as the other bounds let in.
_FIFO_BYTES = BOUND * 32


def queue(n: int) -> tuple[Work, object]:
    waiting: Any = _spawning.Queue(BOUND)
    return _to_a_process(n, waiting, waiting.put)


def pipe(n: int) -> tuple[Work, object]:
    receiving, sending = _spawning.Pipe(duplex=False)
    return _to_a_process(n, receiving, sending.send)


def fifo(n: int) -> tuple[Work, object]:
    try:
        import faster_fifo
    except ImportError as error:  # it has no Windows, and no wheel for every Python
        raise Missing(f"faster-fifo cannot be imported: {error}") from None
    waiting = faster_fifo.Queue(max_size_bytes=_FIFO_BYTES)

    def put(element: int | None) -> None:
        waiting.put(element, timeout=DEADLINE)

    return _to_a_process(n, waiting, put)


def _to_a_process(
    n: int, handed_over: Any, put: Callable[[int | None], None]
) -> tuple[Work, object]:
    answers, answer = _spawning.Pipe(duplex=False)
    process = _spawning.Process(target=_consume, args=(handed_over, answer), daemon=True)
    process.start()
    answers.recv()  # it is there

    def work() -> Outcome:
        for i in range(n):
            put(i)
        put(None)
        total, cpu = answers.recv()
        process.join(DEADLINE)
        return Outcome(total, cpu=cpu)

    return work, n * (n - 1) // 2


def _consume(handed_over: Any, answer: Any) -> None:
    get = getattr(handed_over, "recv", None) or (lambda: handed_over.get(timeout=DEADLINE))
    answer.send("ready")
    cpu = time.process_time_ns()
    total = 0
    while (element := get()) is not None:
        total += element
    answer.send((total, time.process_time_ns() - cpu))
