"""The entries of operators that divide a stream, or watch the time."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

from hypothesis import strategies as st

import rstreams_fast as rsf
from tests.operators.entry import (
    INFINITE,
    LONG,
    POSITIVE,
    PREFETCHES,
    Function,
    Items,
    Op,
    Use,
    digest,
    equal,
    first,
    one,
    same,
    weigh,
)
from tests.operators.stages import Map
from tests.rules.probes import HandTimer


class Windows(Op, engine="Divider", accounted=False):
    """Lists that overlap, or leave elements out; or streams, which become such lists."""

    methods = ("batch", "window")
    n: int = 2
    skip: int = 1
    streams: bool = False
    draws = {"n": POSITIVE, "skip": POSITIVE, "streams": st.booleans()}
    uses = {
        "SlidingBatch": Use(lambda s: s.batch(1, skip=1), lambda s: s.unbatch()),
        "OverlappingBatch": Use(lambda s: s.batch(3, skip=1), lambda s: s.map(first)),
        "Window": Use(
            lambda s: s.window(1).map(same),
            lambda s: s.concat_map(same, prefetch=1),
            of=lambda n: rsf.range_(n).window(2, skip=1).map(equal),
        ),
        "OneWindow": Use(lambda s: s.window(10**9).concat_map(same)),
    }

    def model(self, items: Items, call: Function) -> Items:
        kept: list[list[Any]] = []
        for number, item in enumerate(items):
            kept += [[]] if number % self.skip == 0 else []
            for window in kept:
                window.append(item)
            if kept and len(kept[0]) == self.n:
                yield kept.pop(0)
        yield from kept

    def asks(self, wanted: float, items: list[Any]) -> float:
        return max(0.0, (wanted + self.streams * 2 - 1) * self.skip + self.n)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        if not self.streams:
            return stream.batch(self.n, skip=self.skip)
        windows = stream.window(self.n, skip=self.skip)
        return windows.concat_map(lambda window: window.batch(self.n), prefetch=1)


class Timed(Op, engine="OverflowSubscription", asks_for_all=True):
    """By a clock that stands still: nothing but one element, the first or the last."""

    methods = ("debounce", "throttle_first", "sample")
    operator: str = "sample"
    draws = {"operator": st.sampled_from(["debounce", "throttle_first", "sample"])}
    # Asks for all at once: over one element, within each other stream.
    uses = {
        name: Use(lambda s, name=name: s.concat_map(partial(_timed, name)), threads=True)
        for name in methods
    }

    def model(self, items: Items, call: Function) -> Items:
        if self.operator == "throttle_first":
            yield from itertools.islice(items, 1)
            for _ in items:
                pass
        else:
            yield from list(items)[-1:]

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return getattr(stream, self.operator)(3600.0, timer=HandTimer())


def _timed(operator: str, x: Any) -> Any:
    return getattr(one(x), operator)(LONG)


class GroupBy(Op, engine="Divider", asks_for_all=True, keeps_order=False, accounted=False):
    """A list for each key, all of them at the end."""

    prefetch: int = 4
    draws = {"prefetch": PREFETCHES}
    use = Use(lambda s: s.group_by(equal).flat_map(_in_group))

    fn = staticmethod(lambda x: digest(x) % 3)

    def model(self, items: Items, call: Function) -> Items:
        key, groups = call(self.fn), {}
        for item in items:
            groups.setdefault(key(item), []).append(item)
        yield from groups.values()

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        key = bench.function(index, self.fn)
        timer = HandTimer()
        groups = stream.group_by(lambda x: key(x).value, prefetch=self.prefetch, timer=timer)
        return groups.flat_map(lambda group: group.batch(10**9))


def _in_group(group: Any) -> Any:
    return group


class Unbatch(Op, engine="OperatorSubscriber", needs_order=False):
    use = Use(lambda s: s.map(_boxed).unbatch(), of=lambda n: rsf.range_(n).batch(4).unbatch())

    def model(self, items: Items, call: Function) -> Items:
        return itertools.chain.from_iterable(map(_iterable, items))

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(isinstance(x, (list, tuple)) and not x for x in items) + 1

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.map(_iterable).unbatch()


def _iterable(x: Any) -> Any:
    return x if isinstance(x, (list, tuple)) else [x]


def _boxed(x: Any) -> list[Any]:
    return [x]


class WindowTime(Op, engine="Divider", asks_for_all=True, accounted=False):
    """By a clock that stands still: one window."""

    prefetch: int = 4
    draws = {"prefetch": PREFETCHES}
    use = Use(lambda s: s.window_time(LONG).concat_map(same))

    def model(self, items: Items, call: Function) -> Items:
        window = list(items)
        yield from [window] if window else []

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        windows = stream.window_time(3600.0, prefetch=self.prefetch, timer=HandTimer())
        return windows.concat_map(lambda window: window.batch(10**9), prefetch=1)


class DelayElements(Op, engine="Prefetch", needs_order=False):
    """Each a moment later, on another thread."""

    # A loop's timer takes a millisecond at least, and there is one for each element.
    use = Use(lambda s: s.delay_elements(1e-6), threads=True, slow=True)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + 1

    def on_the_caller(self) -> Op:
        return Map()

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.delay_elements(1e-6)


class TimedBatch(Op, engine="OperatorSubscriber"):
    """Batches by number, weight, and a time that never comes."""

    methods = ("batch",)
    n: int = 3
    max_bytes: int | None = 6
    timed: bool = False
    draws = {
        "n": POSITIVE, "max_bytes": st.none() | st.sampled_from([1, 6]), "timed": st.booleans(),
    }  # fmt: skip
    uses = {
        "TimedBatch": Use(
            lambda s: s.batch(1, seconds=LONG),
            lambda s: s.unbatch(),
            of=lambda n: rsf.range_(3 * n).batch(3, seconds=LONG),
        ),
        "TimedBatchOfAThread": Use(
            lambda s: s.subscribe_on().batch(1, seconds=LONG),
            lambda s: s.unbatch(),
            of=lambda n: rsf.range_(3 * n).subscribe_on().batch(3, seconds=LONG),
            threads=True,
        ),
        "WeighedBatch": Use(
            lambda s: s.batch(100, max_bytes=1, weigher=weigh),
            lambda s: s.unbatch(),
            of=lambda n: rsf.range_(3 * n).batch(100, max_bytes=3, weigher=weigh),
        ),
    }

    weigh = staticmethod(lambda x: digest(x) % 5)

    def model(self, items: Items, call: Function) -> Items:
        batch: list[Any] = []
        room = INFINITE if self.max_bytes is None else self.max_bytes
        for x in items:
            if batch and sum(map(self.weigh, batch)) + self.weigh(x) > room:
                yield batch
                batch = []
            batch.append(x)
            if len(batch) == self.n or sum(map(self.weigh, batch)) >= room:
                yield batch
                batch = []
        if batch:
            yield batch

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted * self.n + 1

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        how: dict[str, Any] = {}
        if self.max_bytes is not None:
            how["max_bytes"] = self.max_bytes
            how["weigher"] = bench.functions.add(lambda x: self.weigh(bench.plain(x)))
        if self.timed or not how:
            how["seconds"] = 3600.0
            how["timer"] = HandTimer()
        return stream.batch(self.n, **how)


class Timeout(Op, engine="PushSubscription", needs_order=False):
    """A time that never comes."""

    uses = {
        "Timeout": Use(lambda s: s.timeout(LONG)),
        "TimeoutOfAThread": Use(lambda s: s.subscribe_on().timeout(LONG), threads=True),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.timeout(3600.0, timer=HandTimer())
