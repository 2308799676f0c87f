"""RxPY 6.1, given ``from_iterable(range(n))``: its own ``range`` schedules every element and takes
twenty times as long, which would flatter us.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import Any

import reactivex
from reactivex import operators
from reactivex.scheduler import EventLoopScheduler

from bench.workloads import Callables, Sink


def fused(n: int, callables: Callables, sink: Sink) -> None:
    reactivex.from_iterable(range(n)).pipe(
        operators.map(callables.map),
        operators.filter(callables.predicate),  # type: ignore[arg-type]  # it wants bool only
    ).subscribe(sink.on_next, sink.on_error, sink.on_complete)
    sink.wait()


def staged(stage: str, n: int, fn: Callable[..., Any], sink: Sink) -> None:
    """One of its operators by the name of ours."""
    stages: dict[str, Callable[[], Any]] = {
        "scan": lambda: operators.scan(fn, 0),
        "distinct_until_changed": operators.distinct_until_changed,
        "do_on_next": lambda: operators.do_action(fn),
        "skip_while": lambda: operators.skip_while(fn),
    }
    reactivex.from_iterable(range(n)).pipe(stages[stage]()).subscribe(
        sink.on_next, sink.on_error, sink.on_complete
    )
    sink.wait()


def to_list(n: int, callables: Callables) -> Any:
    return (
        reactivex.from_iterable(range(n))
        .pipe(
            operators.map(callables.map),
            operators.filter(callables.predicate),  # type: ignore[arg-type]
            operators.to_list(),
        )
        .run()
    )


def strings(rows: list[tuple[int, str]], get: Callable[[Any], Any], sink: Sink) -> None:
    reactivex.from_iterable(rows).pipe(operators.map(get), operators.map(str.upper)).subscribe(
        sink.on_next,  # type: ignore[arg-type]
        sink.on_error,
        sink.on_complete,
    )
    sink.wait()


def observe_on(n: int, sink: Sink) -> None:
    """Its hand-over to another thread; it has no bound."""
    scheduler = EventLoopScheduler()
    try:
        reactivex.from_iterable(range(n)).pipe(operators.observe_on(scheduler)).subscribe(
            sink.on_next, sink.on_error, sink.on_complete
        )
        sink.wait()
    finally:
        scheduler.dispose()


def publish(n: int, one: Sink, other: Sink) -> None:
    """Its sharing among subscribers; they know no demand, so it has no bound."""
    _share(reactivex.from_iterable(range(n)).pipe(operators.publish()), one, other)


def replay(n: int, count: int, one: Sink, other: Sink) -> None:
    """The same, with the last ``count`` elements kept."""
    _share(reactivex.from_iterable(range(n)).pipe(operators.replay(count)), one, other)


def _share(shared: Any, one: Sink, other: Sink) -> None:
    for sink in (one, other):
        shared.subscribe(sink.on_next, sink.on_error, sink.on_complete)
    shared.connect()
    one.wait()
    other.wait()


def merge(n: int, sink: Sink) -> None:
    _subscribe(
        reactivex.merge(*map(reactivex.from_iterable, (range(n // 2), range(n // 2, n)))), sink
    )


def zipped(n: int, sink: Sink) -> None:
    _subscribe(reactivex.zip(*(reactivex.from_iterable(range(n)) for _ in range(2))), sink)


def beside(operator: str, n: int, sink: Sink) -> None:
    """``operator`` with one of one element, or with one that is silent."""
    numbers, one = reactivex.from_iterable(range(n)), reactivex.just(0)
    if operator == "combine_latest":
        observable: Any = reactivex.combine_latest(one, numbers)
    elif operator == "with_latest_from":
        observable = numbers.pipe(operators.with_latest_from(one))
    elif operator == "race":
        observable = reactivex.amb(numbers, reactivex.never())
    else:
        observable = numbers.pipe(operators.take_until(reactivex.never()))
    _subscribe(observable, sink)


def stream_of_one(operator: str, n: int, sink: Sink) -> None:
    """``flat_map`` or ``concat_map``."""
    mapping: Any = getattr(operators, operator)
    _subscribe(reactivex.from_iterable(range(n)).pipe(mapping(reactivex.just)), sink)


def sliding(n: int, sink: Sink) -> None:
    """Lists of four, one every two elements."""
    _subscribe(reactivex.from_iterable(range(n)).pipe(operators.buffer_with_count(4, 2)), sink)


def sums_of_groups(n: int, sink: Sink) -> None:
    """The sum for each of ten keys."""
    groups: Any = operators.group_by(lambda i: i % 10)
    each: Any = operators.flat_map(lambda part: part.pipe(operators.reduce(add)))
    _subscribe(reactivex.from_iterable(range(n)).pipe(groups, each), sink)


def generate(n: int, sink: Sink) -> None:
    _subscribe(reactivex.generate(0, lambda i: i < n, lambda i: i + 1), sink)


def piped(n: int, stages: Any, sink: Sink) -> None:
    """Any of its operators."""
    _subscribe(reactivex.from_iterable(range(n)).pipe(*stages), sink)


def _subscribe(observable: Any, sink: Sink) -> None:
    observable.subscribe(sink.on_next, sink.on_error, sink.on_complete)
    sink.wait()


def five_stages(
    source: reactivex.Observable[int], map_: Callable[[int], int], keep: Callable[[int], bool]
) -> reactivex.Observable[int]:
    return source.pipe(
        operators.map(map_),
        operators.filter(keep),
        operators.map(map_),
        operators.take(5),
        operators.map(map_),
    )
