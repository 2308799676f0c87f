"""``FusedRun``: programs of any stages, asked for by one thread and drained by another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast.core import MISSING, DemandCounter, FusedRun, RunStatus, SpscRing
from tests.helpers import DEADLINE
from tests.soak.chance import Chance
from tests.soak.place import Place
from tests.soak.scenarios.registry import scenario

Model = Callable[[Iterator[int]], Iterator[Any]]


def _batched(n: int, values: Iterator[Any]) -> Iterator[Any]:
    batch: list[Any] = []
    for value in values:
        batch.append(value)
        if len(batch) == n:
            yield sum(batch)
            batch = []
    if batch:
        yield sum(batch)


def stage(chance: Chance) -> tuple[list[tuple[Any, ...]], Model]:
    """A stage, from numbers to numbers, and what it means."""
    import itertools

    n = chance.size(30)
    kinds: list[tuple[list[tuple[Any, ...]], Model]] = [
        ([("map", lambda x: x + n)], lambda xs: (x + n for x in xs)),
        ([("map", abs)], lambda xs: map(abs, xs)),
        ([("map_not_none", lambda x: x if x % 3 else None)], lambda xs: (x for x in xs if x % 3)),
        ([("filter", lambda x: x % n)], lambda xs: (x for x in xs if x % n)),
        ([("skip", n)], lambda xs: itertools.islice(xs, n, None)),
        ([("take", n * 50)], lambda xs: itertools.islice(xs, n * 50)),
        ([("scan", lambda a, b: (a + b) % 997, MISSING)], _scanned),
        ([("batch", n), ("map", sum)], lambda xs: _batched(n, xs)),
        ([("do_on_next", lambda _: None)], lambda xs: xs),
        ([("take_while", lambda x: x < 10**6)], lambda xs: xs),
    ]
    return chance.choice(kinds)


def _scanned(values: Iterator[Any]) -> Iterator[Any]:
    import itertools

    return itertools.accumulate(values, lambda a, b: (a + b) % 997)


@scenario
def demand_from_elsewhere(chance: Chance, place: Place) -> None:
    """Exactly what the model says, never more than asked for; a cancel leaves a beginning of it."""
    n = chance.size(5000)
    program: list[tuple[Any, ...]] = []
    expected: Iterator[Any] = iter(range(n))
    for _ in range(chance.randint(0, 5)):
        ops, model = stage(chance)
        program += ops
        expected = model(expected)
    from_ring = chance.one_in(3)
    source: Any = iter(range(n))
    if from_ring:
        source = SpscRing(n)
        source.offer_many(list(range(n)))
    demand = DemandCounter()
    out: list[Any] = []
    run = FusedRun(source, tuple(program), out.append, demand)
    cancels = chance.one_in(4)
    over = threading.Event()

    def ask(chance: Chance) -> int:
        asked = 0
        until = chance.size(60)
        for turn in range(10**9):
            if over.is_set() or demand.pending > 2**40 or (cancels and turn > until):
                break
            amount = chance.size(300)
            asked += amount
            demand.request(amount)
        if cancels:
            demand.cancel()
        return asked

    asking = [place.thread(ask, chance.fork()) for _ in range(chance.randint(1, 2))]
    patience = threading.Event()
    status = RunStatus.IDLE
    try:
        while status in (RunStatus.IDLE, RunStatus.MORE):
            if status is RunStatus.IDLE:
                patience.wait(0.0001)
            status = run.drain(chance.size(400))
        if status in (RunStatus.EXHAUSTED, RunStatus.ENDED):
            while (status := run.finish()) is RunStatus.IDLE:
                patience.wait(0.0001)
    finally:
        over.set()
    asked = sum(thread.result(DEADLINE) for thread in asking)
    whole = list(expected)
    if status is RunStatus.CANCELLED:
        assert cancels
        assert out == whole[: len(out)]
    else:
        assert status is RunStatus.DONE, status
        assert out == whole, (len(out), len(whole))
    assert len(out) <= asked
    run.clear()
