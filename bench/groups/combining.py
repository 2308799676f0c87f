"""Several publishers to one subscriber: the operators that combine streams."""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any

import rstreams_fast as rsf
from bench.groups.feeding import feeding
from bench.measure import Contestant, Group, Role, Work, WrongResultError
from bench.peers import rxpy
from bench.workloads import CHECKED, Collecting, Sink, Summing

__all__ = ["COMBINING"]


class _Pairs(Summing):
    """The sum of what comes in pairs."""

    def on_next(self, element: Any) -> None:
        self.total += element[0]


def _halves(n: int) -> tuple[range, range]:
    return range(n // 2), range(n // 2, n)


# -- all elements, the order between publishers is free -------------------------------------------


def _unordered(
    name: str, role: Role, n: int, run: Callable[[int, Sink], None], note: str = ""
) -> Contestant:
    """``run(n, sink)`` feeds ``0 .. n - 1``, those of each half in order."""

    def check() -> None:
        sink = Collecting()
        run(CHECKED, sink)
        for half in _halves(CHECKED):
            if [element for element in sink.elements if element in half] != list(half):
                raise WrongResultError(f"{name}: a half is not complete and in order")

    def begin(n: int) -> tuple[Work, object]:
        sink = Summing()

        def work() -> object:
            run(n, sink)
            return sink.total

        return work, n * (n - 1) // 2

    return Contestant(name, role, n, begin, note, check)


def _merge(n: int, sink: Sink) -> None:
    rsf.merge(*map(rsf.from_iterable, _halves(n))).subscribe(sink)
    sink.wait()


def _merge_threads(n: int, sink: Sink) -> None:
    rsf.merge(*(rsf.from_iterable(half).subscribe_on() for half in _halves(n))).subscribe(sink)
    sink.wait()


def _merge_loop(n: int, sink: Sink) -> None:
    on_next = sink.on_next
    for low, high in zip(*_halves(n), strict=True):
        on_next(low)
        on_next(high)


# -- zip -------------------------------------------------------------------------------------------


def _pairs(n: int) -> list[Any]:
    return [(i, i) for i in range(n)]


def _zip(n: int, sink: Sink) -> None:
    rsf.zip_(rsf.range_(n), rsf.range_(n)).subscribe(sink)  # type: ignore[arg-type]  # it takes pairs
    sink.wait()


def _zip_loop(n: int, sink: Sink) -> None:
    on_next: Callable[[Any], None] = sink.on_next
    for pair in zip(range(n), range(n), strict=True):
        on_next(pair)


def _zipping(name: str, role: Role, n: int, run: Callable[[int, Sink], None]) -> Contestant:
    return feeding(name, role, n, run, expected=_pairs, new_sink=_Pairs)


# -- a stream of one for each element --------------------------------------------------------------


def _one(element: int) -> rsf.Stream[int]:
    return rsf.from_iterable((element,))


def _mapped(operator: str) -> Group:
    def ours(n: int, sink: Sink) -> None:
        getattr(rsf.range_(n), operator)(_one).subscribe(sink)
        sink.wait()

    def loop(n: int, sink: Sink) -> None:
        on_next = sink.on_next
        for i in range(n):
            _one(i)
            for element in (i,):
                on_next(element)

    return Group(
        operator,
        "use",
        f"range, {operator} to streams of one element, on_next in one thread",
        [
            feeding("ours", "ours", 20_000, ours),
            feeding("nested loops, the streams made", "floor", 50_000, loop),
            feeding(
                "RxPY 6.1", "peer", 5_000, lambda n, sink: rxpy.stream_of_one(operator, n, sink)
            ),
        ],
    )


# -- with one of one element, or beside one that is silent -----------------------------------------


class _Seconds(Summing):
    """The sum of what comes second."""

    def on_next(self, element: Any) -> None:
        self.total += element[1]


def _beside(operator: str, stream_of: Callable[[int], rsf.Stream[Any]], model: Any) -> Group:
    def ours(n: int, sink: Sink) -> None:
        stream_of(n).subscribe(sink)
        sink.wait()

    def loop(n: int, sink: Sink) -> None:
        on_next = sink.on_next
        for element in model(n):
            on_next(element)

    how: dict[str, Any] = {
        "expected": lambda n: list(model(n)),
        "new_sink": Summing if model is range else (_Seconds if operator[0] == "c" else _Pairs),
    }
    return Group(
        operator,
        "use",
        f"range, {operator}, on_next in one thread",
        [
            feeding("ours", "ours", 200_000, ours, **how),
            feeding("the same calls in a loop", "floor", 200_000, loop, **how),
            feeding(
                "RxPY 6.1", "peer", 200_000, lambda n, sink: rxpy.beside(operator, n, sink), **how
            ),
        ],
    )


# -- one publisher, divided ------------------------------------------------------------------------


def _lists(n: int) -> list[Any]:
    return [list(range(at, min(at + 4, n))) for at in range(0, n, 2)]


def _sums_of_groups(n: int) -> list[int]:
    return [sum(range(key, n, 10)) for key in range(10)]


def _sliding(n: int, sink: Sink) -> None:
    rsf.range_(n).batch(4, skip=2).subscribe(sink)  # type: ignore[arg-type]  # it takes lists
    sink.wait()


def _groups(n: int, sink: Sink) -> None:
    groups = rsf.range_(n).group_by(lambda i: i % 10)
    groups.flat_map(lambda group: group.reduce(add)).subscribe(sink)
    sink.wait()


def _divided(
    name: str,
    title: str,
    expected: Callable[[int], list[Any]],
    ours: Callable[[int, Sink], None],
    theirs: Callable[[int, Sink], None],
) -> Group:
    def loop(n: int, sink: Sink) -> None:
        on_next: Callable[[Any], None] = sink.on_next
        for element in expected(n):
            on_next(element)

    new_sink: type[Summing] = _Pairs if expected is _lists else Summing
    runs: list[tuple[str, Role, Callable[[int, Sink], None]]] = [
        ("ours", "ours", ours),
        ("the results by hand", "floor", loop),
        ("RxPY 6.1", "peer", theirs),
    ]
    return Group(
        name,
        "use",
        title,
        [
            feeding(who, role, 20_000, run, expected=expected, new_sink=new_sink)
            for who, role, run in runs
        ],
    )


COMBINING = [
    Group(
        "merge",
        "use",
        "two ranges, merge, on_next in one thread",
        [
            _unordered("ours", "ours", 100_000, _merge),
            _unordered("the same calls in a loop", "floor", 100_000, _merge_loop),
            _unordered("RxPY 6.1", "peer", 20_000, rxpy.merge, "no bound, no demand"),
        ],
    ),
    Group(
        "merge-threads",
        "use",
        "two ranges, each on a thread of its own, merge, on_next",
        [
            _unordered("ours", "ours", 100_000, _merge_threads),
            _unordered("the same calls in one thread", "floor", 100_000, _merge_loop),
        ],
    ),
    Group(
        "zip",
        "use",
        "two ranges, zip_, on_next in one thread",
        [
            _zipping("ours", "ours", 50_000, _zip),
            _zipping("the same calls in a loop", "floor", 100_000, _zip_loop),
            _zipping("RxPY 6.1", "peer", 50_000, rxpy.zipped),
        ],
    ),
    _divided("batch-sliding", "range, lists of 4 every 2, on_next", _lists, _sliding, rxpy.sliding),
    _divided(
        "group_by",
        "range, the sum of each of 10 groups, on_next",
        _sums_of_groups,
        _groups,
        rxpy.sums_of_groups,
    ),
    _mapped("flat_map"),
    _mapped("concat_map"),
    _beside(
        "combine_latest",
        lambda n: rsf.range_(1).combine_latest(rsf.range_(n)),
        lambda n: ((0, i) for i in range(n)),
    ),
    _beside(
        "with_latest_from",
        lambda n: rsf.range_(n).with_latest_from(rsf.range_(1)),
        lambda n: ((i, 0) for i in range(n)),
    ),
    _beside("race", lambda n: rsf.range_(n).race(rsf.never()), range),
    _beside("take_until", lambda n: rsf.range_(n).take_until(rsf.never()), range),
]
