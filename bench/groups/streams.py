"""Pipelines in one thread: what the protocol costs beside the calls of user code."""

from __future__ import annotations

import gc
import operator
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import rstreams_fast as rsf
from bench.drivers import Missing
from bench.floors import c_loop, python_loop, staged
from bench.groups.feeding import feeding, plain
from bench.measure import Contestant, Group, Outcome, Role, Work
from bench.peers import rxpy
from bench.workloads import C_CALLABLES, PYTHON_CALLABLES, Appending, Callables, Sink, Summing
from bench.workloads import add_one as add_one_to
from bench.workloads import is_even as is_even_number

__all__ = ["STREAMS"]


def _ours(n: int, sink: Sink, callables: Callables) -> None:
    rsf.range_(n).map(callables.map).filter(callables.predicate).subscribe(sink)
    sink.wait()


def _for_each(n: int, sink: Sink, callables: Callables) -> None:
    stream = rsf.range_(n).map(callables.map).filter(callables.predicate)
    stream.for_each(sink.on_next).result()


def _sync_subscriber(n: int, sink: Sink, callables: Callables) -> None:
    subscriber: rsf.SyncSubscriber[int] = rsf.SyncSubscriber(sink.on_next)
    rsf.range_(n).map(callables.map).filter(callables.predicate).subscribe(subscriber)
    subscriber.run.result()


def _loop(n: int, sink: Sink, callables: Callables) -> None:
    python_loop(n, callables.map, callables.predicate, sink.on_next)


def _c_loop(n: int, sink: Sink, callables: Callables) -> None:
    c_loop(n, callables.map, callables.predicate, sink.on_next)


def _rxpy(n: int, sink: Sink, callables: Callables) -> None:
    rxpy.fused(n, callables, sink)


def _fused(callables: Callables, new_sink: type[Summing | Appending]) -> list[Contestant]:
    def of(
        name: str, role: Role, n: int, run: Callable[[int, Sink, Callables], None]
    ) -> Contestant:
        return feeding(
            name,
            role,
            n,
            lambda n, sink: run(n, sink, callables),
            expected=callables.expected,
            new_sink=new_sink,
        )

    return [
        of("ours", "ours", 300_000, _ours),
        of("for_each", "ours", 300_000, _for_each),
        of("SyncSubscriber", "ours", 300_000, _sync_subscriber),
        of("hand-written loop", "floor", 300_000, _loop),
        of("bare C loop", "floor", 300_000, _c_loop),
        of("RxPY 6.1", "peer", 100_000, _rxpy),
    ]


class _OneByOne(Summing):
    """Asks for one element at first, and for one more after each."""

    _request: Callable[[int], object] = abs  # for the model, which has no subscription

    def on_subscribe(self, subscription: rsf.Subscription) -> None:
        self._request = subscription.request
        subscription.request(1)

    def on_next(self, element: int) -> None:
        self.total += element
        self._request(1)


def _mapped(n: int, sink: Sink) -> None:
    rsf.range_(n).map(int).subscribe(sink)
    sink.wait()


# -- one stage ------------------------------------------------------------------------------------


def _add(a: int, b: int) -> int:
    return a + b


def _see(_x: int) -> None:
    pass


def _is_small(x: int) -> bool:
    return x < 3


#: Of each stage its function, and what comes out.
_ONE_STAGE: dict[str, tuple[Callable[..., Any], Callable[[int], list[int]]]] = {
    "scan": (_add, lambda n: list(accumulate(range(n), initial=0))),
    "distinct_until_changed": (_see, lambda n: list(range(n))),
    "do_on_next": (_see, lambda n: list(range(n))),
    "skip_while": (_is_small, lambda n: list(range(3, n))),
}


def _ours_staged(stage: str, n: int, fn: Callable[..., Any], sink: Sink) -> None:
    arguments = {"scan": (fn, 0), "distinct_until_changed": ()}.get(stage, (fn,))
    getattr(rsf.range_(n), stage)(*arguments).subscribe(sink)
    sink.wait()


def _floor_staged(stage: str, n: int, fn: Callable[..., Any], sink: Sink) -> None:
    staged(stage, n, fn, sink.on_next)


def _rxpy_staged(stage: str, n: int, fn: Callable[..., Any], sink: Sink) -> None:
    rxpy.staged(stage, n, fn, sink)


def _one_stage(stage: str) -> Group:
    fn, expected = _ONE_STAGE[stage]

    def of(name: str, role: Role, call: Callable[..., None], skipped: int = 0) -> Contestant:
        return feeding(
            name,
            role,
            100_000,
            lambda n, sink: call(stage, n, fn, sink),
            expected=lambda n: expected(n)[skipped:],
        )

    return Group(
        f"fused-{stage}",
        "use",
        f"range, {stage}, on_next in one thread; Python callables",
        [
            of("ours", "ours", _ours_staged),
            of("hand-written loop", "floor", _floor_staged),
            # It does not emit the seed.
            of("RxPY 6.1", "peer", _rxpy_staged, skipped=int(stage == "scan")),
        ],
    )


# -- rows of strings: operator.itemgetter and str.upper --------------------------------------------

_ROWS = [(i, f"name {i % 100}") for i in range(200_000)]
_name = operator.itemgetter(1)


def _names(n: int) -> list[Any]:
    return [name.upper() for _, name in _ROWS[:n]]


class _Names(Appending):
    """The last four names, as one text."""

    @property
    def total(self) -> Any:
        return " ".join(map(str, self._last))


def _ours_names(n: int, sink: Sink) -> None:
    rsf.from_iterable(_ROWS[:n]).map(_name).map(str.upper).subscribe(sink)  # type: ignore[arg-type]
    sink.wait()


def _loop_names(n: int, sink: Sink) -> None:
    get, upper, on_next = _name, str.upper, sink.on_next
    for row in _ROWS[:n]:
        on_next(upper(get(row)))  # type: ignore[arg-type]


def _names_contestant(
    name: str, role: Role, n: int, run: Callable[[int, Sink], None]
) -> Contestant:
    return feeding(name, role, n, run, expected=_names, new_sink=_Names)


# -- native ends -----------------------------------------------------------------------------------


def _expected_list(n: int) -> list[int]:
    return PYTHON_CALLABLES.expected(n)


def _comprehension(n: int) -> list[int]:
    add_one, is_even = add_one_to, is_even_number
    return [mapped for i in range(n) if is_even(mapped := add_one(i))]


def _ours_list(n: int) -> list[int]:
    return rsf.range_(n).map(add_one_to).filter(is_even_number).to_list()


def _ours_for(n: int) -> int:
    total = 0
    for element in rsf.range_(n):
        total += element
    return total


def _generator_for(n: int) -> int:
    def numbers() -> Iterator[int]:
        for i in range(n):  # noqa: UP028 - a loop is what a generator has in it
            yield i

    total = 0
    for element in numbers():
        total += element
    return total


def _sum_of(n: int) -> int:
    return n * (n - 1) // 2


def _ours_reduce(n: int) -> object:
    return rsf.range_(n).map(add_one_to).reduce(_add, 0).first()


def _loop_reduce(n: int) -> int:
    add, add_one, total = _add, add_one_to, 0
    for i in range(n):
        total = add(total, add_one(i))
    return total


def _sum_of_ones_more(n: int) -> int:
    return n * (n + 1) // 2


_BATCH_ROWS = 64


class _Checked:
    """Record batches of one schema, as one who gathers them by hand has to look at them."""

    def __init__(self, record_batch: type[Any]) -> None:
        self._record_batch = record_batch
        self._schema: Any = None

    def add(self, batch: Any) -> Any:
        if not isinstance(batch, self._record_batch):
            raise TypeError(type(batch))
        if self._schema is None:
            self._schema = batch.schema
        elif not batch.schema.equals(self._schema):
            raise ValueError(batch.schema)
        return batch


def _arrow(n: int, *, how: str, doubles: bool) -> tuple[Work, object]:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        raise Missing("pyarrow is not installed") from None
    batch = pa.record_batch({"number": range(_BATCH_ROWS)})

    def same(batch: Any) -> Any:
        return batch

    def doubled(batch: Any) -> Any:
        return pa.record_batch([pc.multiply(batch.column(0), 2)], ["number"])

    fn = doubled if doubles else same

    def work() -> Any:
        if how == "ours":
            return rsf.from_iterable([batch] * n).map(fn).to_arrow()
        if how == "checked":
            add = _Checked(pa.RecordBatch).add
            return pa.Table.from_batches([add(fn(each)) for each in [batch] * n])
        return pa.Table.from_batches([fn(each) for each in [batch] * n])

    return work, pa.Table.from_batches([fn(batch)] * n)


# -- ten more stages -------------------------------------------------------------------------------


def _ours_maps(maps: int) -> Callable[[int, Sink], None]:
    def run(n: int, sink: Sink) -> None:
        stream = rsf.range_(n)
        for _ in range(maps):
            stream = stream.map(add_one_to)
        stream.subscribe(sink)
        sink.wait()

    return run


def _loop_maps(maps: int) -> Callable[[int, Sink], None]:
    """The loop that a person writes, with so many calls in a row."""
    calls = "\n".join(["        x = f(x)"] * maps)
    scope: dict[str, Any] = {}
    exec(f"def loop(n, f, on_next):\n    for x in range(n):\n{calls}\n        on_next(x)", scope)
    return lambda n, sink: scope["loop"](n, add_one_to, sink.on_next)


def _maps(maps: int, title: str) -> Group:
    def of(name: str, role: Role, run: Callable[[int, Sink], None]) -> Contestant:
        n = 300_000 // (maps + 2)
        return feeding(name, role, n, run, expected=lambda n: list(range(maps, n + maps)))

    return Group(
        f"maps-{maps}",
        "use",
        title,
        [of("ours", "ours", _ours_maps(maps)), of("hand-written loop", "floor", _loop_maps(maps))],
    )


# -- subscribing -----------------------------------------------------------------------------------


class Idle:
    """A subscriber that asks for nothing, and keeps its subscription."""

    __slots__ = ("subscription",)

    def __init__(self) -> None:
        self.subscription: object = None

    def on_subscribe(self, subscription: rsf.Subscription) -> None:
        self.subscription = subscription

    def on_next(self, element: int) -> None:
        raise AssertionError(element)

    def on_error(self, error: BaseException) -> None:
        raise AssertionError(error)

    def on_complete(self) -> None:
        raise AssertionError


def five_stages() -> rsf.Stream[int]:
    stream = rsf.range_(1000).map(add_one_to).filter(is_even_number)
    return stream.map(add_one_to).take(5).map(add_one_to)


def _subscribe_ours(n: int) -> tuple[Work, object]:
    stream, subscribers = five_stages(), [Idle() for _ in range(n)]

    def work() -> int:
        for subscriber in subscribers:
            stream.subscribe(subscriber)
        return sum(subscriber.subscription is not None for subscriber in subscribers)

    return work, n


def _subscribe_rxpy(n: int) -> tuple[Work, object]:
    """To a subject that says nothing, as its own sources know no demand and would begin."""
    from reactivex import Subject

    subject: Subject[int] = Subject()
    stream = rxpy.five_stages(subject, add_one_to, is_even_number)
    kept: list[Any] = []

    def work() -> int:
        for _ in range(n):
            kept.append(stream.subscribe(print))
        return len(kept)

    return work, n


def _kept(begin: Callable[[int], tuple[Work, object]]) -> Callable[[int], tuple[Work, object]]:
    """The bytes that each subscription keeps, by tracemalloc."""

    def measured(n: int) -> tuple[Work, object]:
        work, expected = begin(n)

        def run() -> Outcome:
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                result = work()
                after = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            return Outcome(result, value=(after - before) / n)

        return run, expected

    return measured


def _million(n: int) -> tuple[Work, object]:
    """In a process of its own: what so many take of the machine, subscribers included."""

    def work() -> Outcome:
        command = [sys.executable, "-m", "bench.groups.idle", str(n)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        subscribed, took = answer.stdout.split()
        return Outcome(int(subscribed), value=int(took) / 1e9)

    return work, n


STREAMS = [
    Group(
        "fused",
        "use",
        "range, map, filter, on_next in one thread; Python callables",
        _fused(PYTHON_CALLABLES, Summing),
    ),
    Group(
        "fused-c",
        "use",
        "the same with C callables (operator.neg, operator.truth, deque.append)",
        _fused(C_CALLABLES, Appending),
    ),
    Group(
        "request",
        "use",
        "range, map, on_next in one thread, which asks for one element after each",
        [
            feeding("one by one", "ours", 200_000, _mapped, new_sink=_OneByOne),
            feeding("all at once", "floor", 200_000, _mapped),
        ],
    ),
    *[_one_stage(stage) for stage in _ONE_STAGE],
    Group(
        "fused-names",
        "use",
        "rows, itemgetter, str.upper, on_next in one thread; all of it C",
        [
            _names_contestant("ours", "ours", 200_000, _ours_names),
            _names_contestant("hand-written loop", "floor", 200_000, _loop_names),
            _names_contestant(
                "RxPY 6.1", "peer", 50_000, lambda n, sink: rxpy.strings(_ROWS[:n], _name, sink)
            ),
        ],
    ),
    Group(
        "to_list",
        "use",
        "range, map, filter, to_list; Python callables",
        [
            plain("ours", "ours", 200_000, _ours_list, _expected_list),
            plain("comprehension", "floor", 200_000, _comprehension, _expected_list),
            plain(
                "RxPY 6.1",
                "peer",
                50_000,
                lambda n: rxpy.to_list(n, PYTHON_CALLABLES),
                _expected_list,
            ),
        ],
    ),
    Group(
        "for",
        "use",
        "range, consumed by a for loop",
        [
            plain("ours", "ours", 200_000, _ours_for, _sum_of),
            plain("generator", "floor", 200_000, _generator_for, _sum_of),
        ],
    ),
    Group(
        "reduce",
        "use",
        "range, map, reduce; Python callables",
        [
            plain("ours", "ours", 200_000, _ours_reduce, _sum_of_ones_more),
            plain("hand-written loop", "floor", 200_000, _loop_reduce, _sum_of_ones_more),
        ],
    ),
    *[
        Group(
            f"to_arrow{suffix}",
            "use",
            f"record batches of {_BATCH_ROWS} rows, map, to_arrow; a Python callable that {does}",
            [
                Contestant("ours", "ours", n, partial(_arrow, how="ours", doubles=doubles)),
                Contestant(
                    "comprehension", "floor", n, partial(_arrow, how="unchecked", doubles=doubles)
                ),
                Contestant(
                    "comprehension, each batch checked",
                    "floor",
                    n,
                    partial(_arrow, how="checked", doubles=doubles),
                    "its type and schema, before the next one comes",
                ),
            ],
            unit="ns per batch",
        )
        for suffix, does, n, doubles in (
            ("", "doubles a column", 5_000, True),
            ("-nothing", "does nothing", 20_000, False),
        )
    ],
    _maps(1, "range, one map, on_next; a Python callable"),
    _maps(11, "the same with eleven maps; the difference is ten times the cost of one more"),
    Group(
        "subscribe",
        "use",
        "subscribing to a stream of five stages",
        [
            Contestant("ours", "ours", 5_000, _subscribe_ours),
            Contestant("RxPY 6.1", "peer", 2_000, _subscribe_rxpy),
        ],
        unit="ns per subscription",
    ),
    Group(
        "idle",
        "use",
        "bytes kept by an idle subscription to five stages",
        [
            Contestant("ours", "ours", 2_000, _kept(_subscribe_ours)),
            Contestant("RxPY 6.1", "peer", 2_000, _kept(_subscribe_rxpy)),
        ],
        unit="bytes each",
        rounds=1,
    ),
    Group(
        "million-idle",
        "use",
        "a million idle subscriptions to five stages, their subscribers included",
        [Contestant("ours", "ours", 1_000_000, _million)],
        unit="GB resident",
        rounds=0,
    ),
]
