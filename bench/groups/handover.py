"""From one thread to another, to a loop, and through calls that may wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import rstreams_fast as rsf
from bench.drivers import Missing, java
from bench.floors import awaits, direct
from bench.groups.feeding import feeding, plain
from bench.measure import Contestant, Group, Outcome, Role, Work
from bench.peers import END, in_threads, loops, processes, queues, rxpy
from bench.workloads import BOUND, DEADLINE, Sink, Summing

__all__ = ["HANDOVER"]

WIDE = 65_536


def _ours(n: int, sink: Sink, prefetch: int = BOUND, **options: Any) -> None:
    """``subscribe_on`` gives the source a thread of its own, so two threads take part."""
    rsf.range_(n).subscribe_on().publish_on(prefetch=prefetch, **options).subscribe(sink)
    sink.wait()


def _on_the_caller(n: int, sink: Sink) -> None:
    """Through the same ring, and nothing is handed over: all runs in the thread that asks."""
    rsf.range_(n).publish_on("caller", prefetch=BOUND).subscribe(sink)
    sink.wait()


def _direct(n: int, sink: Sink) -> None:
    direct(n, sink.on_next)


def _boundary(
    name: str, role: Role, n: int, run: Callable[[int, Sink], None], note: str = ""
) -> Contestant:
    crosses = role != "floor" and run is not _on_the_caller
    return feeding(name, role, n, run, crosses=crosses, note=note)


# -- beside busy processes -------------------------------------------------------------------------


@contextlib.contextmanager
def _busy(processes: int = 2) -> Iterator[None]:
    """So many others that want a processor all the time."""
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()  # it runs
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def _beside_busy(contestant: Contestant) -> Contestant:
    def begin(n: int) -> tuple[Work, object]:
        work, expected = contestant.begin(n)

        def run() -> Outcome:
            with _busy():
                begun = time.perf_counter_ns()
                result = work()
                took = time.perf_counter_ns() - begun
            return Outcome(result, value=took / n)

        return run, expected

    return Contestant(contestant.name, contestant.role, contestant.n, begin)


# -- memory ----------------------------------------------------------------------------------------


def _peak(contestant: Contestant) -> Contestant:
    """By how much memory grew at most while all passed, in MiB (Linux counts it)."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def resident(which: str) -> int:
        (line,) = (line for line in status.read_text().splitlines() if line.startswith(which))
        return int(line.split()[1])

    def begin(n: int) -> tuple[Work, object]:
        if not os.access(clear, os.W_OK):
            raise Missing("the peak of resident memory is read from Linux's /proc")
        work, expected = contestant.begin(n)

        def run() -> Outcome:
            clear.write_text("5")  # the peak begins anew
            before = resident("VmRSS:")
            result = work()
            return Outcome(result, value=max(0, resident("VmHWM:") - before) / 1024)

        return run, expected

    return Contestant(contestant.name, contestant.role, contestant.n, begin, contestant.note)


class _Slow(Summing):
    """Takes its time: what is unbounded then grows."""

    def on_next(self, element: int) -> None:
        self.total += element
        for _ in range(20):
            pass


def _slow(
    name: str, role: Role, n: int, run: Callable[[int, Sink], None], note: str = ""
) -> Contestant:
    return _peak(feeding(name, role, n, run, new_sink=_Slow, note=note))


# -- to a loop -------------------------------------------------------------------------------------

ToLoop = Callable[[int], Coroutine[Any, Any, int]]


async def _stop_and_wait(n: int) -> int:
    return await _async_for(n, prefetch=1)


async def _async_for(n: int, prefetch: int = BOUND) -> int:
    total = 0
    async with rsf.range_(n).subscribe_on().iterate(prefetch=prefetch) as elements:
        async for element in elements:
            total += element
    return total


async def _bare_loop(n: int) -> int:
    """A generator in the loop itself: no other thread, nothing handed over."""

    async def numbers() -> Any:
        for i in range(n):
            yield i

    total = 0
    async for element in numbers():
        total += element
    return total


def _in_loop(name: str, role: Role, n: int, body: ToLoop, note: str = "") -> Contestant:
    return plain(name, role, n, lambda n: asyncio.run(body(n)), _sum, note)


def _sum(n: int) -> int:
    return n * (n - 1) // 2


_TICK = 0.001  # seconds


async def _with_lag(body: ToLoop, n: int) -> Outcome:
    """How late a timer of 1 ms comes while all passes: its 99th percentile, in ms."""
    late: list[float] = []
    loop = asyncio.get_running_loop()

    async def tick() -> None:
        while True:
            due = loop.time() + _TICK
            await asyncio.sleep(_TICK)
            late.append((loop.time() - due) * 1e3)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(2 * _TICK)
    late.clear()
    total = await body(n)
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking
    # Who holds the loop all the time lets no tick come at all: then that is the lag.
    value = statistics.quantiles(late, n=100)[98] if len(late) > 1 else float("inf")
    return Outcome(total, value=value)


def _lag(name: str, role: Role, n: int, body: ToLoop, note: str = "") -> Contestant:
    return plain(name, role, n, lambda n: asyncio.run(_with_lag(body, n)), _sum, note)


# -- calls that need not wait ----------------------------------------------------------------------


def _plus_one(x: int) -> int:
    return x + 1


async def _plus_one_async(x: int) -> int:
    return x + 1


def _one_more(n: int) -> list[int]:
    return list(range(1, n + 1))


async def _map_async(n: int) -> list[int]:
    return await rsf.range_(n).map_async(_plus_one_async).to_list_async()


_KEYS = 50


async def _plus_one_later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


def _key(x: int) -> int:
    return x % _KEYS


async def _map_async_in_turn(n: int) -> list[int]:
    return await rsf.range_(n).map_async(_plus_one_later, key=_key).to_list_async()


async def _worker_for_each_key(n: int) -> list[int]:
    results = [0] * n
    queues: list[asyncio.Queue[int | None]] = [asyncio.Queue(64) for _ in range(_KEYS)]

    async def work(queue: asyncio.Queue[int | None]) -> None:
        while (x := await queue.get()) is not None:
            results[x] = await _plus_one_later(x)

    async with asyncio.TaskGroup() as group:
        for queue in queues:
            group.create_task(work(queue))
        for x in range(n):
            await queues[_key(x)].put(x)
        for queue in queues:
            await queue.put(None)
    return results


def _calls(n: int) -> list[int]:
    plus_one = _plus_one
    return [plus_one(i) for i in range(n)]


async def _awaits(n: int) -> list[int]:
    return [await _plus_one_async(i) for i in range(n)]


async def _gather(n: int) -> list[int]:
    """In groups of 1000: all of them at once would only be slower."""
    results: list[int] = []
    for start in range(0, n, 1000):
        calls = (_plus_one_async(i) for i in range(start, min(n, start + 1000)))
        results += await asyncio.gather(*calls)
    return results


async def _tasks_and_semaphore(n: int) -> list[int]:
    """Bounded by hand, as it is mostly done."""
    free = asyncio.Semaphore(64)

    async def call(i: int) -> int:
        try:
            return await _plus_one_async(i)
        finally:
            free.release()

    tasks = []
    async with asyncio.TaskGroup() as group:
        for i in range(n):
            await free.acquire()
            tasks.append(group.create_task(call(i)))
    return [task.result() for task in tasks]


def _awaits_in_c(n: int) -> list[int]:
    return awaits(n, _plus_one_async)


def _in_loop_list(
    name: str,
    role: Role,
    n: int,
    body: Callable[[int], Coroutine[Any, Any, list[int]]],
    note: str = "",
) -> Contestant:
    return plain(name, role, n, lambda n: asyncio.run(body(n)), _one_more, note)


async def _window(n: int) -> list[int]:
    """The window of calls by itself."""
    from rstreams_fast.core import CallWindow

    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    results: list[int] = []
    elements = list(range(n))
    position = 0

    def pump() -> None:
        nonlocal position
        while True:
            taken = window.take(128)
            results.extend(taken)
            submitted = window.submit_many(elements, position)
            position += submitted
            if not taken and not submitted:
                break
        if len(results) == n and not done.done():
            done.set_result(None)

    window = CallWindow(_plus_one_async, loop=loop, on_ready=pump, concurrency=64, capacity=128)
    loop.call_soon(pump)
    async with asyncio.timeout(DEADLINE):
        await done
    return results


# -- batches ---------------------------------------------------------------------------------------

ROWS = 4096


def _batches_total(n: int) -> int:
    return n * (n + 1) // 2 * ROWS


def _batches_ours(n: int) -> int:
    import numpy as np

    total = 0

    def add(batch: Any) -> None:
        nonlocal total
        total += int(batch.sum())

    stream = rsf.range_(n).map(lambda i: np.full(ROWS, i)).map(lambda batch: batch + 1)
    stream.publish_on().for_each(add).result(DEADLINE)
    return total


def _batches_records(n: int) -> int:
    """Through a ring of numpy records: the arrays are copied into memory allocated once."""
    import numpy as np

    total = 0

    def add(rows: Any) -> None:
        nonlocal total
        total += int(rows.sum())

    stream = rsf.range_(n).map(lambda i: np.full(ROWS, i)).map(lambda batch: batch + 1)
    stream.publish_records_on("i8", capacity=16 * ROWS).for_each(add).result(DEADLINE)
    return total


def _batches_loop(n: int) -> int:
    import numpy as np

    total = 0
    for i in range(n):
        batch = np.full(ROWS, i)
        total += int((batch + 1).sum())
    return total


def _batches_queue(n: int) -> int:
    import queue

    import numpy as np

    waiting: queue.Queue[Any] = queue.Queue(BOUND)
    total = 0

    def produce() -> None:
        for i in range(n):
            waiting.put(np.full(ROWS, i) + 1)
        waiting.put(END)

    def consume() -> None:
        nonlocal total
        while (batch := waiting.get()) is not END:
            total += int(batch.sum())

    in_threads(produce, consume)
    return total


def _batches_rxpy(n: int) -> int:
    import numpy as np
    import reactivex
    from reactivex import operators
    from reactivex.scheduler import EventLoopScheduler

    total = 0
    done = threading.Event()
    scheduler = EventLoopScheduler()

    def add(batch: Any) -> None:
        nonlocal total
        total += int(batch.sum())

    def make(i: int) -> Any:
        return np.full(ROWS, i)

    def add_one(batch: Any) -> Any:
        return batch + 1

    stream = reactivex.from_iterable(range(n)).pipe(
        operators.map(make),
        operators.map(add_one),
        operators.observe_on(scheduler),
    )
    try:
        stream.subscribe(add, on_completed=done.set)
        done.wait(DEADLINE)
    finally:
        scheduler.dispose()
    return total


def _batches_reactor(n: int) -> tuple[Work, object]:
    reactor = java()

    def work() -> Outcome:
        before = reactor.cpu_ns()
        total = reactor.ask("batches", n, ROWS)
        return Outcome(total, cpu=reactor.cpu_ns() - before)

    return work, _batches_total(n)


_BOUNDARY = [
    _boundary("ours", "ours", 300_000, _ours),
    _boundary("the same calls in one thread", "floor", 300_000, _direct),
    _boundary("queue.Queue(1024)", "peer", 30_000, queues.bounded_queue),
    _boundary("SimpleQueue", "peer", 300_000, queues.simple_queue, "unbounded"),
    _boundary("queue.Queue(4) of lists of 256", "peer", 300_000, queues.queue_of_lists),
    _boundary("deque and Condition", "peer", 20_000, queues.bounded_deque),
    _boundary("janus", "peer", 8_000, queues.janus_queue),
    _boundary("culsans", "peer", 15_000, queues.culsans_queue),
    _boundary("aiologic.Queue", "peer", 15_000, queues.aiologic_queue),
    _boundary("RxPY 6.1 observe_on", "peer", 6_000, rxpy.observe_on, "unbounded"),
    Contestant(
        "multiprocessing.Queue", "peer", 20_000, processes.queue, "to another process, pickled"
    ),
    Contestant(
        "multiprocessing.Pipe", "peer", 20_000, processes.pipe, "to another process, pickled"
    ),
    Contestant("faster-fifo", "peer", 20_000, processes.fifo, "to another process, pickled"),
    _boundary("ours, in one thread", "ours", 300_000, _on_the_caller, "the ring alone"),
    _boundary("ours, prefetch=64", "ours", 50_000, partial(_ours, prefetch=64)),
    _boundary("ours, prefetch=1", "ours", 5_000, partial(_ours, prefetch=1), "stop and wait"),
    _boundary("SpscRing, by hand, in bursts", "ours", 300_000, queues.ring_bursts),
    _boundary(
        "SpscRing, one by one", "lost", 100_000, queues.ring_one_by_one, "a boundary without bursts"
    ),
]

HANDOVER = [
    Group(
        "boundary",
        "use",
        "one thread to another's Python on_next, at most 1024 elements between",
        _BOUNDARY,
    ),
    Group(
        "boundary-65536",
        "use",
        "the same with at most 65 536 elements between",
        [
            _boundary("ours", "ours", 300_000, partial(_ours, prefetch=WIDE)),
            _boundary("the same calls in one thread", "floor", 300_000, _direct),
            _boundary(
                "queue.Queue(65536)", "peer", 30_000, partial(queues.bounded_queue, bound=WIDE)
            ),
            _boundary("SimpleQueue", "peer", 300_000, queues.simple_queue, "unbounded"),
        ],
    ),
    Group(
        "boundary-busy",
        "use",
        "the same, at 1024, beside two processes that never rest",
        [
            _beside_busy(_boundary("ours", "ours", 300_000, _ours)),
            _beside_busy(_boundary("the same calls in one thread", "floor", 300_000, _direct)),
            _beside_busy(_boundary("queue.Queue(1024)", "peer", 30_000, queues.bounded_queue)),
            _beside_busy(_boundary("SimpleQueue", "peer", 300_000, queues.simple_queue)),
        ],
        unit="ns, by the clock",
        rounds=3,
    ),
    Group(
        "boundary-memory",
        "use",
        "how much memory grows while a million elements pass to a slow on_next",
        [
            _slow("ours", "ours", 1_000_000, _ours),
            _slow("ours, a tenth of them", "ours", 100_000, _ours),
            _slow("SimpleQueue", "peer", 1_000_000, queues.simple_queue, "unbounded"),
        ],
        unit="MiB",
        rounds=1,
    ),
    Group(
        "async-for",
        "use",
        "one thread to an asyncio loop's async for, at most 1024 elements between",
        [
            _in_loop("ours", "ours", 200_000, _async_for),
            _in_loop("ours, prefetch=1", "ours", 5_000, _stop_and_wait, "stop and wait"),
            _in_loop("an async generator in the loop", "floor", 200_000, _bare_loop),
            _in_loop("janus", "peer", 8_000, loops.janus_queue),
            _in_loop("culsans", "peer", 10_000, loops.culsans_queue),
            _in_loop("aiologic.Queue", "peer", 10_000, loops.aiologic_queue),
            _in_loop("call_soon_threadsafe", "peer", 15_000, loops.call_soon, "unbounded"),
            _in_loop(
                "RSocket's stream", "peer", 5_000, loops.rsocket_stream, "one thread; unbounded"
            ),
        ],
    ),
    Group(
        "loop-lag",
        "use",
        "how late a loop's timer is while elements come in by async for, 99th percentile",
        [
            _lag("ours, 1 000 000 elements", "ours", 1_000_000, _async_for),
            _lag("culsans, 20 000 elements", "peer", 20_000, loops.culsans_queue),
            _lag("janus, 20 000 elements", "peer", 20_000, loops.janus_queue),
            _lag("call_soon_threadsafe, 50 000", "peer", 50_000, loops.call_soon, "unbounded"),
        ],
        unit="ms",
        rounds=3,
    ),
    Group(
        "map_async",
        "use",
        "map_async of a coroutine function that does not suspend, to a list",
        [
            _in_loop_list("ours", "ours", 100_000, _map_async),
            plain("calls of a plain function", "floor", 100_000, _calls, _one_more),
            _in_loop_list("awaited one after the other", "floor", 100_000, _awaits),
            plain(
                "awaited in a bare C loop",
                "floor",
                100_000,
                _awaits_in_c,
                _one_more,
                "no task, no context, no bound",
            ),
            _in_loop_list("asyncio.gather of 1000", "peer", 20_000, _gather),
            _in_loop_list("tasks and a semaphore", "peer", 20_000, _tasks_and_semaphore),
        ],
    ),
    Group(
        "map_async-key",
        "use",
        f"map_async(key=), {_KEYS} keys, calls of one turn of the loop, to a list",
        [
            _in_loop_list("ours", "ours", 20_000, _map_async_in_turn),
            _in_loop_list(
                "a worker for each key",
                "peer",
                20_000,
                _worker_for_each_key,
                "all keys known, and no bound on the calls at once",
            ),
        ],
    ),
    Group(
        "window",
        "primitive",
        "CallWindow by itself, coroutines that do not suspend",
        [
            _in_loop_list("ours", "ours", 100_000, _window),
            plain("calls of a plain function", "floor", 100_000, _calls, _one_more),
            _in_loop_list("asyncio.gather of 1000", "peer", 20_000, _gather),
        ],
    ),
    Group(
        "batches",
        "use",
        f"a pipeline whose elements are arrays of {ROWS} numbers, handed over to another thread",
        [
            plain("ours", "ours", 2_000, _batches_ours, _batches_total),
            plain("ours, publish_records_on", "ours", 2_000, _batches_records, _batches_total),
            plain("the same in one thread", "floor", 2_000, _batches_loop, _batches_total),
            plain("queue.Queue(1024)", "peer", 2_000, _batches_queue, _batches_total),
            plain("RxPY 6.1 observe_on", "peer", 2_000, _batches_rxpy, _batches_total, "unbounded"),
            Contestant("Reactor 3.7 publishOn", "peer", 2_000, _batches_reactor, "Java"),
        ],
        unit="ns per batch",
    ),
]
