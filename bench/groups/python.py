"""The primitives from Python, each beside the cheapest thing that does part of its work."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from bench.floors import nothing
from bench.groups.feeding import plain
from bench.measure import Contestant, Group, Role, Work
from bench.peers import in_threads
from bench.workloads import BOUND, BURST
from rstreams_fast.core import DemandCounter, SignalSerializer, SpscRing

__all__ = ["PYTHON"]

# -- demand ----------------------------------------------------------------------------------------


def _requests(n: int) -> int:
    counter = DemandCounter()
    request = counter.request
    for _ in range(n):
        request(1)
    return counter.pending


def _fulfils(n: int) -> int:
    counter = DemandCounter(2 * n)
    fulfil = counter.fulfil
    for _ in range(n):
        fulfil(1)
    return counter.pending


class _Locked:
    """What one writes by hand."""

    def __init__(self) -> None:
        self.pending = 0
        self._lock = threading.Lock()

    def request(self, n: int) -> int:
        with self._lock:
            before = self.pending
            self.pending = before + n
        return before


def _locked_requests(n: int) -> int:
    counter = _Locked()
    request = counter.request
    for _ in range(n):
        request(1)
    return counter.pending


def _calls(n: int) -> int:
    call = nothing
    for _ in range(n):
        call(1)
    return n


def _all(n: int) -> int:
    return n


# -- ring, one thread ------------------------------------------------------------------------------


def _one_by_one(put: Callable[[int], object], take: Callable[[], object], n: int) -> int:
    right = 0
    for i in range(n):
        put(i)
        right += take() == i
    return right


def _ring_one(n: int) -> int:
    ring = SpscRing(BOUND)
    return _one_by_one(ring.offer, ring.poll, n)


def _deque_one(n: int) -> int:
    waiting: deque[int] = deque()
    return _one_by_one(waiting.append, waiting.popleft, n)


def _simple_queue_one(n: int) -> int:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    return _one_by_one(waiting.put, waiting.get, n)


def _queue_one(n: int) -> int:
    waiting: queue.Queue[int] = queue.Queue(BOUND)
    return _one_by_one(waiting.put, waiting.get, n)


def _ring_bursts(n: int) -> int:
    ring, burst, right = SpscRing(BOUND), list(range(BURST)), 0
    for _ in range(n // BURST):
        ring.offer_many(burst)
        right += ring.poll_many(BURST) == burst
    return right


def _deque_bursts(n: int) -> int:
    waiting: deque[int] = deque()
    burst, right = list(range(BURST)), 0
    for _ in range(n // BURST):
        waiting.extend(burst)
        right += [waiting.popleft() for _ in range(BURST)] == burst
    return right


def _list_bursts(n: int) -> int:
    """A whole list as one element: the floor of moving elements together."""
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    burst, right = list(range(BURST)), 0
    for _ in range(n // BURST):
        waiting.put(burst[:])
        right += waiting.get() == burst
    return right


def _bursts(n: int) -> int:
    return n // BURST


# -- serializer ------------------------------------------------------------------------------------


class _Keeping:
    """A subscriber whose ``on_next`` is Python and does next to nothing."""

    def __init__(self) -> None:
        self.elements: list[int] = []
        self._append = self.elements.append

    def on_subscribe(self, subscription: Any) -> None: ...

    def on_next(self, element: int) -> None:
        self._append(element)

    def on_error(self, error: BaseException) -> None:
        raise error

    def on_complete(self) -> None: ...


def _signals(
    threads: int, signalling: Callable[[_Keeping], Callable[[int], object]]
) -> Callable[[int], tuple[Work, object]]:
    """Each thread signals its own numbers; all come, each thread's in its order (§1.3)."""

    def begin(n: int) -> tuple[Work, object]:
        subscriber = _Keeping()
        on_next = signalling(subscriber)
        share = n // threads

        def signal(first: int) -> Callable[[], None]:
            def body() -> None:
                for element in range(first, first + share):
                    on_next(element)

            return body

        def work() -> list[list[int]]:
            bodies = [signal(thread * share) for thread in range(threads)]
            if threads == 1:
                bodies[0]()
            else:
                in_threads(*bodies)
            return [subscriber.elements]

        return work, _InEachOrder(threads, share)

    return begin


class _InEachOrder:
    """Equal to a list of all numbers in which each thread's come in order."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, threads: int, share: int) -> None:
        self._threads, self._share = threads, share

    def __eq__(self, other: object) -> bool:
        (elements,) = cast("list[list[int]]", other)
        by_thread: list[list[int]] = [[] for _ in range(self._threads)]
        for element in elements:
            by_thread[element // self._share].append(element)
        return all(
            of_one == list(range(thread * self._share, (thread + 1) * self._share))
            for thread, of_one in enumerate(by_thread)
        )

    def __repr__(self) -> str:
        return "all elements, each thread's in its order"


def _serialized(subscriber: _Keeping) -> Callable[[int], object]:
    return SignalSerializer(subscriber, on_full="wait").on_next


def _locked(subscriber: _Keeping) -> Callable[[int], object]:
    lock, on_next = threading.Lock(), subscriber.on_next

    def locked(element: int) -> None:
        with lock:
            on_next(element)

    return locked


def _bare(subscriber: _Keeping) -> Callable[[int], object]:
    return subscriber.on_next


def _serializing(threads: int) -> Group:
    n = 100_000

    def of(
        name: str, role: Role, signalling: Callable[[_Keeping], Callable[[int], object]], note: str
    ) -> Contestant:
        return Contestant(name, role, n, _signals(threads, signalling), note)

    return Group(
        f"serializer-{threads}",
        "primitive",
        f"serializer from Python, {threads} thread{'s' if threads > 1 else ''}",
        [
            of("ours", "ours", _serialized, ""),
            of("bare call of on_next", "floor", _bare, "" if threads == 1 else "not serial"),
            of("threading.Lock around on_next", "peer", _locked, ""),
        ],
        unit="ns per signal",
    )


PYTHON = [
    Group(
        "demand",
        "primitive",
        "demand from Python",
        [
            plain("ours, request", "ours", 200_000, _requests, _all),
            plain("ours, fulfil", "ours", 200_000, _fulfils, _all),
            plain("a call into C that does nothing", "floor", 200_000, _calls, _all),
            plain("an int and a threading.Lock", "peer", 100_000, _locked_requests, _all),
        ],
        unit="ns per call",
    ),
    Group(
        "ring",
        "primitive",
        "ring in one thread from Python, an element in and out at a time",
        [
            plain("ours", "ours", 200_000, _ring_one, _all),
            plain("deque", "peer", 200_000, _deque_one, _all, "unbounded"),
            plain("SimpleQueue", "peer", 200_000, _simple_queue_one, _all, "unbounded"),
            plain("queue.Queue(1024)", "peer", 50_000, _queue_one, _all),
        ],
    ),
    Group(
        "ring-bursts",
        "primitive",
        "ring in one thread from Python, 256 elements in and out at a time",
        [
            plain("ours", "ours", 1_024_000, _ring_bursts, _bursts),
            plain(
                "SimpleQueue of copied lists",
                "floor",
                1_024_000,
                _list_bursts,
                _bursts,
                "unbounded",
            ),
            plain("deque", "peer", 256_000, _deque_bursts, _bursts, "unbounded"),
        ],
    ),
    _serializing(1),
    _serializing(4),
]
