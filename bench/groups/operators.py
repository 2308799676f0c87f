"""A row for each operator: ours, RxPY's of that name, and the same results by hand."""

from __future__ import annotations

import asyncio
import hashlib
import timeit
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple

import reactivex
from reactivex import operators as rx
from reactivex.disposable import Disposable

import rstreams_fast as rsf
from bench.groups.feeding import feeding, plain
from bench.measure import Group, Role
from bench.peers import rxpy
from bench.workloads import Sink

__all__ = ["OPERATORS"]

Model = Callable[[int], Iterable[int]]


#: For those that cost next to nothing: what a subscription takes must not be seen.
_MANY = 200_000


def _led(n: int) -> Iterable[int]:
    return chain((7,), range(n))


def _followed(n: int) -> Iterable[int]:
    return chain(range(n), (7,))


def _twice(n: int) -> Iterable[int]:
    return chain(range(n), range(n))


#: Models of all elements: a loop over them is the floor.
_ALL = (range, _led, _followed, _twice)


@dataclass(frozen=True)
class Row:
    """``ours`` and ``theirs`` make of ``0 .. n - 1`` what ``model(n)`` says."""

    name: str
    what: str
    ours: Callable[[rsf.Stream[int]], rsf.Stream[Any]]
    theirs: Any = None  # None: RxPY has no operator of that name
    model: Model = range
    n: int = 20_000
    floor: Callable[[rsf.Stream[int]], rsf.Stream[Any]] | None = None
    #: The same calls of the user's functions in a loop, where results alone do not make them.
    by_hand: Callable[[int], Iterable[int]] | None = None
    in_order: bool = True

    def group(self) -> Group:
        def by_hand(n: int, sink: Sink) -> None:
            for element in (self.by_hand or self.model)(n):
                sink.on_next(element)

        def of(make: Callable[[rsf.Stream[int]], rsf.Stream[Any]]) -> Callable[[int, Sink], None]:
            def run(n: int, sink: Sink) -> None:
                make(rsf.range_(n)).subscribe(sink)
                sink.wait()

            return run

        def rxpys(n: int, sink: Sink) -> None:
            rxpy.piped(n, self.theirs, sink)

        how: Any = {"expected": lambda n: list(self.model(n)), "in_order": self.in_order}
        contestants = [feeding("ours", "ours", self.n, of(self.ours), **how)]
        if self.model in _ALL or self.by_hand is not None:
            contestants.append(feeding("the results by hand", "floor", self.n, by_hand, **how))
        elif self.floor is not None:
            floor = feeding("without a hook", "floor", self.n, of(self.floor), **how)
            contestants.append(floor)
        if self.theirs is not None:
            contestants.append(feeding("RxPY 6.1", "peer", self.n, rxpys, **how))
        return Group(
            self.name, "use", f"range, {self.what}, on_next in one thread", contestants, rounds=3
        )


def _one(element: int) -> rsf.Stream[int]:
    return rsf.from_iterable((element,))


def _sum(part: rsf.Stream[int]) -> Any:
    return part.reduce(add)


def _sums(n: int) -> list[int]:
    return [sum(range(at, min(at + 10, n))) for at in range(0, n, 10)]


def _sums_by_hand(n: int) -> Iterable[int]:
    for at in range(0, n, 10):
        yield reduce(add, range(at, min(at + 10, n)))


def _sum_by_hand(n: int) -> Iterable[int]:
    yield reduce(add, range(n))


def _new_ones(n: int) -> Iterable[int]:
    seen = set()
    for element in range(n):
        key = _digit(element)
        if key not in seen:
            seen.add(key)
            yield element


def _even(element: int) -> bool:
    return element % 2 == 0


def _see(_element: object) -> None:
    pass


def _nothing() -> None:
    pass


def _rx_sum(part: Any) -> Any:
    return part.pipe(rx.reduce(add, 0))


def _digit(element: Any) -> int:
    return int(element % 10)


_SUMS: Any = (rx.flat_map(_rx_sum),)

_ROWS = [
    Row(
        "windows",
        "the sum of each window(10)",
        lambda s: s.window(10).flat_map(_sum),
        (rx.window_with_count(10), *_SUMS, rx.filter(bool)),  # its last window is empty
        _sums,
        by_hand=_sums_by_hand,
        in_order=False,
    ),
    Row(
        "window_time",
        "the sum of all in window_time(60)",
        lambda s: s.window_time(60).flat_map(_sum),
        (rx.window_with_time(60), *_SUMS),
        lambda n: [n * (n - 1) // 2],
        by_hand=_sum_by_hand,
    ),
    Row(
        "flat_map_sequential",
        "flat_map_sequential to streams of one element",
        lambda s: s.flat_map_sequential(_one),
    ),
    Row(
        "switch_map",
        "switch_map of one element to a stream of them all",
        lambda s: rsf.from_iterable((s,)).switch_map(lambda one: one),
        (lambda xs: reactivex.just(xs).pipe(rx.switch_map(lambda one: one)),),
        n=_MANY,
    ),
    Row(
        "distinct",
        "distinct by a key, ten keys",
        lambda s: s.distinct(_digit, max_keys=10),
        (rx.distinct(_digit),),
        lambda n: range(min(n, 10)),
        by_hand=_new_ones,
    ),
    Row(
        "timestamp",
        "timestamp, without it again",
        lambda s: s.timestamp().map(itemgetter(1)),
        (rx.timestamp(), rx.map(attrgetter("value"))),
    ),
    Row(
        "throttle_first",
        "throttle_first(60): the first",
        lambda s: s.throttle_first(60),
        (rx.throttle_first(60),),
        lambda _n: [0],
        n=_MANY,
    ),
    Row(
        "debounce",
        "debounce(60): the last",
        lambda s: s.debounce(60),
        (rx.debounce(60),),  # it starts a thread for each element
        lambda n: [n - 1],
        n=1000,
    ),
    # RxPY's gives the last when the 60 s are over; so long takes delay_elements of either.
    Row("sample", "sample(60): the last", lambda s: s.sample(60), None, lambda n: [n - 1]),
    Row(
        "start_with",
        "start_with one element",
        lambda s: s.start_with(7),
        (rx.start_with(7),),
        _led,
        n=_MANY,
    ),
    Row(
        "default_if_empty",
        "default_if_empty, which it is not",
        lambda s: s.default_if_empty(7),
        (rx.default_if_empty(7),),
        n=_MANY,
    ),
    Row(
        "switch_if_empty",
        "switch_if_empty, which it is not",
        lambda s: s.switch_if_empty(s),
        n=_MANY,
    ),
    Row(
        "repeat",
        "repeat(1): all twice",
        lambda s: s.repeat(1),
        (rx.repeat(2),),
        _twice,
        n=_MANY,
    ),
    Row(
        "on_error_return",
        "an error, on_error_return",
        lambda s: s.concat(rsf.error(OSError())).on_error_return(7),
        (
            rx.concat(reactivex.throw(OSError())),
            rx.catch(lambda _error, _source: reactivex.just(7)),
        ),
        _followed,
        n=_MANY,
    ),
    Row(
        "do_finally",
        "do_finally",
        lambda s: s.do_finally(_nothing),
        (rx.finally_action(_nothing),),
        n=_MANY,
    ),
    Row(
        "defer",
        "as what defer makes",
        lambda s: rsf.defer(lambda: s),
        (lambda xs: reactivex.defer(lambda _scheduler: xs),),
        n=_MANY,
    ),
    Row(
        "using",
        "as what using makes",
        lambda s: rsf.using(list, lambda _resource: s, _see),
        (lambda xs: reactivex.using(Disposable, lambda _resource: xs),),
        n=_MANY,
    ),
    Row(
        "on_discard",
        "map and filter above on_discard",
        lambda s: s.map(lambda i: i).filter(_even).on_discard(_see),
        None,
        lambda n: range(0, n, 2),
        floor=lambda s: s.map(lambda i: i).filter(_even),
    ),
]


# -- a tree; RxPY's expand ends with a RecursionError ----------------------------------------------


def _children(n: int, element: int) -> range:
    return range(min(2 * element + 1, n), min(2 * element + 3, n))


def _expand(n: int, sink: Sink) -> None:
    root = rsf.range_(1)
    root.expand(lambda element: rsf.from_iterable(_children(n, element))).subscribe(sink)
    sink.wait()


def _expand_loop(n: int, sink: Sink) -> None:
    elements = deque([0])
    while elements:
        element = elements.popleft()
        sink.on_next(element)
        elements += _children(n, element)


# -- numbers from a state --------------------------------------------------------------------------


def _generate(n: int, sink: Sink) -> None:
    rsf.generate(0, lambda i: (i, i + 1) if i < n else None).subscribe(sink)
    sink.wait()


def _generate_loop(n: int, sink: Sink) -> None:
    def make(i: int) -> tuple[int, int] | None:
        return (i, i + 1) if i < n else None

    made = make(0)
    while made is not None:
        element, state = made
        sink.on_next(element)
        made = make(state)


# -- ends that give one value ----------------------------------------------------------------------


def _is_number(element: int) -> bool:
    return element >= 0


def _is_none(element: int) -> bool:
    return element < 0


def _last(numbers: range) -> int:
    (last,) = deque(numbers, 1)
    return last


def _counted(numbers: range) -> int:
    return sum(1 for _ in numbers)


class _End(NamedTuple):
    ours: Callable[[rsf.Stream[int]], object]
    theirs: Any
    by_hand: Callable[[range], object]
    result: Callable[[int], object]  #: of 0 .. n - 1


_ENDS = {
    "last": _End(lambda s: s.last(), rx.last, _last, lambda n: n - 1),
    "count": _End(lambda s: s.count(), rx.count, _counted, lambda n: n),
    "any": _End(
        lambda s: s.any(_is_none),
        partial(rx.some, _is_none),
        lambda numbers: any(map(_is_none, numbers)),
        lambda _n: False,
    ),
    "all": _End(
        lambda s: s.all(_is_number),
        partial(rx.all, _is_number),
        lambda numbers: all(map(_is_number, numbers)),
        lambda _n: True,
    ),
}


def _end(name: str) -> Group:
    ours, theirs, by_hand, expected = _ENDS[name]

    def rxpys(n: int) -> object:
        return reactivex.from_iterable(range(n)).pipe(theirs()).run()

    return Group(
        name,
        "use",
        f"range, {name}",
        [
            plain("ours", "ours", 50_000, lambda n: ours(rsf.range_(n)), expected),
            plain("by hand", "floor", 50_000, lambda n: by_hand(range(n)), expected),
            plain("RxPY 6.1", "peer", 20_000, rxpys, expected),
        ],
        rounds=3,
    )


# -- waiting ---------------------------------------------------------------------------------------


async def _call(element: int) -> int:
    """2 ms; every 50th takes 50 ms."""
    await asyncio.sleep(0.002 if element % 50 else 0.05)
    return element


def _calls(concurrency: int) -> Group:
    def ordered(n: int, sink: Sink) -> None:
        rsf.range_(n).map_async(_call, concurrency=concurrency).subscribe(sink)
        sink.wait()

    def unordered(n: int, sink: Sink) -> None:
        rsf.range_(n).map_async(_call, concurrency=concurrency, ordered=False).subscribe(sink)
        sink.wait()

    n = concurrency * 40
    return Group(
        f"map_async-{concurrency}",
        "use",
        f"map_async, {concurrency} calls at once, each 2 ms, 2 % of them 50 ms",
        [
            feeding("ours", "ours", n, ordered),
            # Of as many elements only their sum is checked: the order is free.
            replace(feeding("ours, unordered", "floor", n, unordered), check=None),
        ],
        rounds=3,
    )


_BLOCK = bytes(7 << 18)
_WORKERS = 2
#: So each worker finds its next call when it has made one.
_AT_ONCE = 2 * _WORKERS


def _hash(element: int) -> int:
    """About 1 ms, without the GIL."""
    hashlib.sha256(_BLOCK).digest()
    return element


def _count(element: int) -> int:
    """50 us of Python."""
    for _ in _STEPS:
        pass
    return element


def _steps(seconds: float) -> range:
    """As many steps of a loop as take so long on this interpreter and machine."""
    steps = 10_000
    took = min(timeit.repeat("for _ in steps: pass", globals={"steps": range(steps)}, number=1))
    return range(round(steps * seconds / took))


_STEPS = _steps(50e-6)


def _blocking(name: str, what: str, fn: Callable[[int], int], n: int) -> Group:
    def pool() -> ThreadPoolExecutor:
        """One for each run: threads that others have used keep their memory as those left it."""
        return ThreadPoolExecutor(_WORKERS)

    def ours(n: int, sink: Sink) -> None:
        with pool() as workers:
            rsf.range_(n).map_blocking(fn, workers, concurrency=_AT_ONCE).subscribe(sink)
            sink.wait()

    def futures(n: int, sink: Sink) -> None:
        running: deque[Future[int]] = deque()
        with pool() as workers:
            for i in range(n):
                if len(running) == _AT_ONCE:
                    sink.on_next(running.popleft().result())
                running.append(workers.submit(fn, i))
            while running:
                sink.on_next(running.popleft().result())

    def one_thread(n: int, sink: Sink) -> None:
        for i in range(n):
            sink.on_next(fn(i))

    def bare_threads(n: int, sink: Sink) -> None:
        """What two processors give, if nothing is handed over."""
        with pool() as workers:
            parts = (range(n // 2), range(n // 2, n))
            halves = [workers.submit(list, map(fn, part)) for part in parts]
            for half in halves:
                for result in half.result():
                    sink.on_next(result)

    contestants: list[tuple[str, Role, Callable[[int, Sink], None]]] = [
        ("ours", "ours", ours),
        ("one thread", "floor", one_thread),
        ("a half in each thread", "floor", bare_threads),
        ("concurrent.futures by hand", "peer", futures),
    ]
    return Group(
        name,
        "use",
        f"map_blocking, two workers, {what} for each element, in order",
        # Of as many elements only their sum is checked: so few take long enough.
        [replace(feeding(who, role, n, run), check=None) for who, role, run in contestants],
        rounds=5,
    )


OPERATORS = [
    *(row.group() for row in _ROWS),
    Group(
        "expand",
        "use",
        "expand a tree of n nodes, two children each, on_next in one thread",
        [
            feeding("ours", "ours", 10_000, _expand),
            feeding("a queue by hand", "floor", 10_000, _expand_loop),
        ],
        rounds=3,
    ),
    Group(
        "generate",
        "use",
        "generate the numbers below n, on_next in one thread",
        [
            feeding("ours", "ours", 20_000, _generate),
            feeding("a loop by hand", "floor", 20_000, _generate_loop),
            feeding("RxPY 6.1", "peer", 5_000, rxpy.generate),
        ],
        rounds=3,
    ),
    *map(_end, _ENDS),
    _calls(64),
    _calls(256),
    _blocking("map_blocking", "1 ms of sha256", _hash, 200),
    _blocking("map_blocking-python", "50 us of Python", _count, 20_000),
]
