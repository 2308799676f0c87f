"""From threads to threads, one by one, through a queue with a bound, as many on either side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import aiologic
import culsans

from bench.measure import Contestant, Group, Role, Work, WrongResultError
from bench.peers import in_threads
from bench.workloads import BOUND, CHECKED
from rstreams_fast import queues

__all__ = ["QUEUES"]


class Ends(NamedTuple):
    put: Callable[[int], object]
    get: Callable[[], int]


def _of(waiting: Any) -> Ends:
    return Ends(waiting.put, waiting.get)


def _ours(bound: int) -> Ends:
    return _of(queues.Queue(bound))


def _standard(bound: int) -> Ends:
    return _of(queue.Queue(bound))


def _simple(_bound: int) -> Ends:
    return _of(queue.SimpleQueue())


def _culsans(bound: int) -> Ends:
    return _of(culsans.Queue[int](bound).sync_q)


def _aiologic(bound: int) -> Ends:
    waiting = aiologic.Queue[int](bound)
    return Ends(waiting.green_put, waiting.green_get)


def _two_locks(_bound: int) -> Ends:
    """One place, and a lock for either thread to wait on: a hand-over and nothing else."""
    room, element = threading.Lock(), threading.Lock()
    element.acquire()
    place = 0

    def put(value: int) -> None:
        nonlocal place
        room.acquire()
        place = value
        element.release()

    def get() -> int:
        element.acquire()
        value = place
        room.release()
        return value

    return Ends(put, get)


def _hand_over(
    ends: Ends, sides: int, n: int, take: Callable[[Callable[[], int], int], None]
) -> None:
    """So many threads put ``0 .. n - 1`` in; as many ``take(get, count)``."""
    each = n // sides

    def produce(first: int) -> None:
        put = ends.put
        for i in range(first, first + each):
            put(i)

    producers = [partial(produce, number * each) for number in range(sides)]
    in_threads(*producers, *[partial(take, ends.get, each)] * sides)


def _contestant(
    name: str, role: Role, n: int, sides: int, make: Callable[[], Ends], note: str = ""
) -> Contestant:
    def check() -> None:
        taken: list[list[int]] = []

        def take(get: Callable[[], int], count: int) -> None:
            taken.append([get() for _ in range(count)])

        _hand_over(make(), sides, CHECKED, take)
        whole = sorted(i for part in taken for i in part)
        each = CHECKED // sides
        in_order = all(
            mine == sorted(mine)
            for part in taken
            for number in range(sides)
            if (mine := [i for i in part if i // each == number])
        )
        if whole != list(range(each * sides)) or not in_order:
            raise WrongResultError(f"{name}: the elements are not those expected, in order")

    def begin(n: int) -> tuple[Work, object]:
        n -= n % sides

        def work() -> object:
            totals: list[int] = []

            def take(get: Callable[[], int], count: int) -> None:
                total = 0
                for _ in range(count):
                    total += get()
                totals.append(total)

            _hand_over(make(), sides, n, take)
            return len(totals), sum(totals)

        return work, (sides, n * (n - 1) // 2)

    return Contestant(name, role, n, begin, note, check)


def _group(sides: int) -> Group:
    def of(
        name: str, role: Role, n: int, make: Callable[[int], Ends], note: str = ""
    ) -> Contestant:
        return _contestant(name, role, n, sides, partial(make, BOUND), note)

    return Group(
        f"queue-{sides}",
        "primitive",
        f"one by one through a queue of {BOUND}, {sides} thread{'s' * (sides > 1)} a side",
        [
            of("ours", "ours", 200_000, _ours),
            of("SimpleQueue", "floor", 200_000, _simple, "in C, unbounded"),
            of("queue.Queue", "peer", 30_000, _standard, "SPDL's, too, between threads"),
            of("culsans", "peer", 10_000, _culsans),
            of("aiologic", "peer", 2000, _aiologic),
        ],
    )


QUEUES = [
    *map(_group, (1, 2, 4, 8)),
    Group(
        "queue-of-one",
        "primitive",
        "one by one through a queue of 1: two changes of threads for each element",
        [
            _contestant("ours", "ours", 1000, 1, partial(_ours, 1)),
            _contestant("two locks", "floor", 1000, 1, partial(_two_locks, 1), "no queue"),
            _contestant("queue.Queue", "peer", 1000, 1, partial(_standard, 1)),
            _contestant("culsans", "peer", 1000, 1, partial(_culsans, 1)),
            _contestant("aiologic", "peer", 1000, 1, partial(_aiologic, 1)),
        ],
    ),
]
