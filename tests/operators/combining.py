"""The entries of operators that subscribe to several publishers, at once or in turn."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import rstreams_fast as rsf
from tests.operators.entry import (
    INNER,
    NO_LOOK_AHEAD,
    NO_ORDER,
    POSITIVE,
    PREFETCHES,
    SMALL,
    Function,
    Items,
    NoStream,
    Op,
    Use,
    digest,
    equal,
    first,
    late,
    nothing,
    one,
    same,
    second,
)
from tests.operators.sources import Origin, origins


def halves(n: int, source: Callable[[int], Any]) -> list[Any]:
    return [source(n - n // 2), source(n // 2)]


def one_on_a_thread(x: Any) -> Any:
    return one(x).subscribe_on()


def one_foreign(x: Any) -> Any:
    return NoStream(one(x))


class _Combining(Op, engine="Prefetch", races=True):
    others: tuple[Origin, ...] = ()
    prefetch: int = 4
    draws = {
        "others": st.lists(origins(), min_size=1, max_size=2).map(tuple),
        "prefetch": PREFETCHES,
    }

    def all_others(self, bench: Any) -> list[Any]:
        return [bench.source(other) for other in self.others]


class Merge(_Combining, keeps_order=False, needs_order=False):
    delay_error: bool = False
    draws = {**_Combining.draws, "delay_error": st.booleans()}
    # All elements are equal: each subscriber sees those of two sources in an order of its own.
    uses = {
        "Merge": Use(
            lambda s: s.merge(rsf.empty()),
            of=lambda n: rsf.merge(*halves(n, lambda m: rsf.range_(m).map(equal))),
            within=lambda s: rsf.merge(rsf.empty(), s.map(same)),
            not_claimed=NO_ORDER,
        ),
        "MergeDelayed": Use(lambda s: s.merge(rsf.empty(), delay_error=True), not_claimed=NO_ORDER),
        "MergeOfThreads": Use(
            lambda s: s.subscribe_on().merge(rsf.empty().publish_on()),
            of=lambda n: rsf.merge(*halves(n, lambda m: rsf.range_(m).map(equal).subscribe_on())),
            threads=True,
            not_claimed=NO_ORDER,
        ),
        "MergeOneByOne": Use(
            lambda s: rsf.merge(s, rsf.empty(), prefetch=1),
            of=lambda n: rsf.merge(
                *halves(n, lambda m: NoStream(rsf.range_(m).map(equal))), prefetch=1
            ),
            not_claimed=NO_ORDER,
        ),
    }

    def model(self, items: Items, call: Function) -> Items:
        merged = [items, *(other.model() for other in self.others)]
        return late(merged) if self.delay_error else itertools.chain(*merged)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        how: Any = {"prefetch": self.prefetch, "delay_error": self.delay_error}
        return stream.merge(*self.all_others(bench), **how)


class Zip(_Combining):
    uses = {
        "Zip": Use(
            # One by one: the error overtakes what waits for a partner.
            lambda s: s.zip(rsf.range_(10**9), prefetch=1),
            lambda s: s.map(first),
            of=lambda n: rsf.zip_(rsf.range_(n), rsf.range_(n + 3)),
            within=lambda s: rsf.zip_(rsf.range_(10**9), s).map(second),
        ),
        "ZipOfThreads": Use(
            lambda s: s.subscribe_on().zip(rsf.range_(10**9).subscribe_on()),
            lambda s: s.map(first),
            of=lambda n: rsf.zip_(rsf.range_(n).subscribe_on(), rsf.range_(n + 3).subscribe_on()),
            threads=True,
        ),
        "ZipOfForeign": Use(
            lambda s: rsf.zip_(s, NoStream(rsf.range_(10**9)), prefetch=2),
            lambda s: s.map(first),
            of=lambda n: rsf.zip_(*[NoStream(rsf.range_(n + m)) for m in (2, 0, 1)], prefetch=2),
        ),
    }

    def model(self, items: Items, call: Function) -> Items:
        return zip(items, *(other.model() for other in self.others), strict=False)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.zip(*self.all_others(bench), prefetch=self.prefetch)


class MergeSorted(_Combining):
    """Most sources are not sorted by its key: both it and the model take them as they are."""

    reverse: bool = False
    draws = {**_Combining.draws, "reverse": st.booleans()}
    uses = {
        "MergeSorted": Use(
            lambda s: s.merge_sorted(rsf.empty()),
            of=lambda n: rsf.merge_sorted(rsf.range_(0, n, 2), rsf.range_(1, n, 2)),
            within=lambda s: rsf.merge_sorted(rsf.empty(), s),
        ),
        "MergeSortedOfThreads": Use(
            lambda s: s.subscribe_on().merge_sorted(rsf.empty().publish_on(), key=equal),
            of=lambda n: rsf.merge_sorted(
                *halves(n, lambda m: rsf.range_(m).subscribe_on()), key=equal
            ),
            threads=True,
        ),
        "MergeSortedOneByOne": Use(
            lambda s: rsf.merge_sorted(s, rsf.empty(), reverse=True, prefetch=1),
            of=lambda n: rsf.merge_sorted(
                *halves(n, lambda m: NoStream(rsf.range_(m))), key=equal, prefetch=1
            ),
        ),
    }

    fn = staticmethod(lambda x: digest(x) % 7)

    def model(self, items: Items, call: Function) -> Items:
        others = [other.model() for other in self.others]
        return heapq.merge(items, *others, key=call(self.fn), reverse=self.reverse)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        key = bench.function(index, self.fn, uses=None)
        how: Any = {"reverse": self.reverse, "prefetch": self.prefetch}
        return stream.merge_sorted(*self.all_others(bench), key=lambda x: key(x).value, **how)


class CombineLatest(Op, engine="Prefetch", needs_order=False):
    """With one of one element, or of none: what it gives is known."""

    races = True  # when the other is empty
    other: Origin = Origin("list", 1)
    prefetch: int = 4
    draws = {"other": st.builds(Origin, kind=INNER, size=st.integers(0, 1)), "prefetch": PREFETCHES}
    uses = {
        "CombineLatest": Use(
            lambda s: s.combine_latest(NoStream(rsf.range_(1))),
            lambda s: s.map(first),
            within=lambda s: rsf.range_(1).combine_latest(s).map(second),
        ),
        "CombineLatestOneByOne": Use(
            lambda s: s.combine_latest(rsf.range_(1), prefetch=1), lambda s: s.map(first)
        ),
    }

    def model(self, items: Items, call: Function) -> Items:
        return ((item, 0) for item in items) if self.other.size else iter(())

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        # The newest element of the other one is delivered as often as there are pairs.
        other = bench.source(self.other, once=False)
        return stream.combine_latest(other, prefetch=self.prefetch)


class WithLatestFrom(Op, engine="SubscriptionArbiter", needs_order=False):
    """With one that is run through before anything else is asked."""

    other: Origin = Origin("list", 1)
    draws = {
        "other": st.builds(Origin, kind=st.sampled_from(["list", "range", "foreign"]), size=SMALL)
    }
    use = Use(lambda s: s.with_latest_from(NoStream(rsf.range_(3))), lambda s: s.map(first))

    def model(self, items: Items, call: Function) -> Items:
        size = self.other.size
        return ((item, size - 1) for item in items) if size else iter(())

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.with_latest_from(bench.source(self.other, once=False))


class Race(Op, engine="SubscriptionArbiter", needs_order=False):
    """With one that is silent, before it or after it."""

    first: bool = True
    draws = {"first": st.booleans()}
    uses = {
        "Race": Use(lambda s: s.race(rsf.never()), within=lambda s: rsf.never().race(s)),
        "RaceOfForeign": Use(lambda s: rsf.never().race(NoStream(s.subscribe_on())), threads=True),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.race(rsf.never()) if self.first else rsf.never().race(stream)


class TakeUntil(Op, engine="SubscriptionArbiter", needs_order=False):
    """Until what never comes, or has come before anything is asked for."""

    until: str = "never"
    draws = {"until": st.sampled_from(["never", "never", "list", "empty"])}
    uses = {
        "TakeUntil": Use(lambda s: s.take_until(rsf.never())),
        "TakeUntilMerged": Use(lambda s: s.take_until(rsf.never().merge(rsf.never()))),
        "TakeUntilForeign": Use(lambda s: s.take_until(NoStream(rsf.never()))),
    }

    def model(self, items: Items, call: Function) -> Items:
        return items if self.until == "never" else iter(())

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        # What the other one signals is no element.
        silent = self.until == "never"
        return stream.take_until(
            rsf.never() if silent else bench.source(Origin(self.until, 3), once=False)
        )


class Concat(_Combining, engine="SubscriptionArbiter", races=False, needs_order=False):
    uses = {
        "Concat": Use(
            lambda s: s.concat(rsf.empty()),
            of=lambda n: rsf.concat(
                rsf.range_(n - n // 2), rsf.empty(), NoStream(rsf.range_(n // 2))
            ),
            within=lambda s: rsf.concat(rsf.empty(), s.map(same)),
        ),
        "ConcatOfThreads": Use(
            lambda s: s.subscribe_on().concat(rsf.empty().publish_on()),
            of=lambda n: rsf.concat(
                rsf.range_(n - n // 2).subscribe_on(), NoStream(rsf.range_(n // 2).subscribe_on())
            ),
            threads=True,
        ),
    }

    def model(self, items: Items, call: Function) -> Items:
        return itertools.chain(items, *(other.model() for other in self.others))

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.concat(*self.all_others(bench))


class FlatMap(Op, engine="Prefetch", needs_order=False):
    methods = ("flat_map", "flat_map_sequential")
    kind: str = "list"
    concurrency: int = 2
    prefetch: int = 2
    delay_error: bool = False
    sequential: bool = False
    draws = {
        "kind": INNER,
        "concurrency": st.integers(1, 3),
        "prefetch": PREFETCHES,
        "delay_error": st.booleans(),
        "sequential": st.booleans(),
    }
    uses = {
        "FlatMap": Use(
            lambda s: s.flat_map(one),
            within=lambda s: rsf.from_iterable([s]).flat_map(same),
            not_claimed=NO_ORDER,
        ),
        "FlatMapOnThreads": Use(
            lambda s: s.flat_map(one_on_a_thread, concurrency=3),
            of=lambda n: rsf.range_(n).map(equal).flat_map(one_on_a_thread, concurrency=3),
            threads=True,
            not_claimed=NO_ORDER,
        ),
        "FlatMapOneAtATime": Use(
            lambda s: s.flat_map(one_foreign, concurrency=1, prefetch=1, delay_error=True)
        ),
        "FlatMapSequential": Use(
            lambda s: s.flat_map_sequential(one),
            within=lambda s: rsf.from_iterable([s]).flat_map_sequential(same),
        ),
        "FlatMapSequentialOnThreads": Use(
            lambda s: s.flat_map_sequential(one_on_a_thread, concurrency=3), threads=True
        ),
    }

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        return self.concurrency == 1 or self.sequential

    fn = staticmethod(lambda x: Origin(size=digest(x) % 4))

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)

        def inner(x: Any) -> Items:
            yield from fn(x).model()

        if self.delay_error:
            return late(map(inner, items))
        return itertools.chain.from_iterable(map(inner, items))

    def asks(self, wanted: float, items: list[Any]) -> float:
        empty = sum(self.fn(x).size == 0 for x in items) + self.delay_error
        return wanted + empty + self.concurrency

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        operator = stream.flat_map_sequential if self.sequential else stream.flat_map
        return operator(
            bench.inner(index, self),
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            delay_error=self.delay_error,
        )


class ConcatMap(Op, engine="SubscriptionArbiter", needs_order=False):
    kind: str = "list"
    prefetch: int = 2
    draws = {"kind": INNER, "prefetch": PREFETCHES}
    uses = {
        "ConcatMap": Use(
            lambda s: s.concat_map(one), within=lambda s: rsf.from_iterable([s]).concat_map(same)
        ),
        "ConcatMapOneByOne": Use(
            lambda s: s.concat_map(one, prefetch=1),
            of=lambda n: rsf.range_(2).concat_map(lambda x: NoStream(rsf.range_(x * n))),
            not_claimed=NO_LOOK_AHEAD,
        ),
    }

    fn = staticmethod(FlatMap.fn)

    def model(self, items: Items, call: Function) -> Items:
        inner = map(call(self.fn), items)
        return itertools.chain.from_iterable(origin.model() for origin in inner)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(self.fn(x).size == 0 for x in items) + self.prefetch + 1

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.concat_map(bench.inner(index, self), prefetch=self.prefetch)


class SwitchMap(Op, engine="FanIn", asks_for_all=True, needs_order=False):
    """Each element's publisher is silent, but for one more at the end: what it gives is known."""

    kind: str = "list"
    size: int = 3
    prefetch: int = 2
    draws = {"kind": INNER, "size": SMALL, "prefetch": PREFETCHES}
    uses = {
        "SwitchMap": Use(
            # One publisher of all.
            lambda s: s.batch(10**9).switch_map(rsf.from_iterable),
            within=lambda s: rsf.from_iterable([s]).switch_map(same),
            delivers_at_end=True,
        ),
        "SwitchMapOneByOne": Use(
            lambda s: s.batch(10**9).switch_map(rsf.from_iterable),
            # From one that is silent to one on a thread.
            of=lambda n: rsf.from_iterable(
                [rsf.never(), NoStream(rsf.range_(n).subscribe_on())]
            ).switch_map(same, prefetch=1),
            not_claimed=NO_LOOK_AHEAD,
            delivers_at_end=True,
        ),
    }
    #: As subscribers only: each element's publisher replaces the one before.
    above = {"SwitchMapOfEach": lambda s: s.switch_map(one, prefetch=1)}

    def model(self, items: Items, call: Function) -> Items:
        for _ in items:
            pass
        yield from range(self.size)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        last = bench.source(Origin(kind=self.kind, size=self.size))
        used = stream.map(lambda x: bench.ends(x, "used") or rsf.never())
        publishers = used.concat(rsf.from_iterable([last]))
        return publishers.switch_map(same, prefetch=self.prefetch)


class Expand(Op, engine="SubscriptionArbiter"):
    kind: str = "list"
    depth_first: bool = False
    draws = {"kind": INNER, "depth_first": st.booleans()}
    # One level for each element.
    uses = {
        "Expand": Use(
            lambda s: s.expand(nothing),
            of=lambda n: (
                rsf.range_(n).take(1).expand(lambda x: one(x + 1) if x < n - 1 else rsf.empty())
            ),
        ),
        "ExpandDepthFirst": Use(
            lambda s: s.expand(nothing, depth_first=True),
            of=lambda n: (
                rsf.range_(n)
                .take(1)
                .expand(
                    lambda x: one_on_a_thread(x + 1) if x < n - 1 else rsf.empty(), depth_first=True
                )
            ),
        ),
    }

    fn = staticmethod(lambda x: Origin(size=digest(x) % 3))

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        level = [items]
        while level:
            for x in level[-1]:
                yield x
                if self.depth_first:
                    level.append(fn(x).model())
                else:
                    level.insert(0, self._lazily(fn, x))
                    continue
                break
            else:
                level.pop()

    @staticmethod
    def _lazily(fn: Function, x: Any) -> Items:
        yield from fn(x).model()

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        follow = bench.inner(index, self, uses=False)  # it delivers the element, too
        return stream.expand(follow, depth_first=self.depth_first)


class StartWith(Op, engine="SubscriptionArbiter", needs_order=False):
    n: int = 2
    draws = {"n": SMALL}
    use = Use(
        lambda s: s.start_with(),
        of=lambda n: rsf.range_(n - n // 2, n).start_with(*range(n - n // 2)),
    )

    def model(self, items: Items, call: Function) -> Items:
        yield from range(self.n)
        yield from items

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.start_with(*map(bench.element, range(self.n)))


class SwitchIfEmpty(Op, engine="SubscriptionArbiter", needs_order=False):
    """Of one element ``default_if_empty``."""

    methods = ("switch_if_empty", "default_if_empty")
    n: int = 2
    draws = {"n": POSITIVE}
    use = Use(
        lambda s: s.switch_if_empty(rsf.empty()),
        of=lambda n: rsf.empty().switch_if_empty(NoStream(rsf.range_(n))),
        within=lambda s: rsf.empty().switch_if_empty(s.map(same)),
    )

    def model(self, items: Items, call: Function) -> Items:
        found = False
        for x in items:
            found = True
            yield x
        if not found:
            yield from range(self.n)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        if self.n == 1:
            return stream.default_if_empty(bench.element(0))
        return stream.switch_if_empty(bench.source(Origin(size=self.n)))
