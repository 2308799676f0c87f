"""The entries of operators that take elements one by one: fused stages and observers."""

from __future__ import annotations

import itertools
import logging
import operator
from typing import Any

from hypothesis import strategies as st

import rstreams_fast as rsf
from tests.operators.entry import (
    NO_LOOK_AHEAD,
    POSITIVE,
    SEEDS,
    SMALL,
    Boom,
    Function,
    Items,
    Op,
    Use,
    _Fused,
    digest,
    equal,
    ignore,
    latter,
    same,
    yes,
)

QUIET = logging.getLogger("rstreams_fast.pipelines")
QUIET.setLevel(logging.DEBUG)
QUIET.addFilter(lambda record: False)  # pytest's handler would keep the elements

_LIMITS = st.sampled_from([0, 3, 20, 50])


class Map(_Fused, needs_order=False, one_by_one=True):
    in_c: bool = False
    draws = {"in_c": st.booleans()}
    uses = {
        "Map": Use(lambda s: s.map(same)),
        # No Python function runs, so a loop in C does.
        "MapInC": Use(lambda s: s.map(str), lambda s: s.map(int)),
    }

    fn = staticmethod(lambda x: (3 * digest(x) + 1) % 1009)

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.map(bench.function(index, self.fn, in_c=self.in_c))


class Spread(_Fused, needs_order=False, one_by_one=True):
    """A map to lists, some of them empty: for ``unbatch``."""

    methods = ()

    fn = staticmethod(lambda x: [digest(x) + i for i in range(digest(x) % 4)])

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.map(bench.function(index, self.fn))


class MapNotNone(_Fused, needs_order=False, one_by_one=True):
    use = Use(
        lambda s: s.map_not_none(same),
        of=lambda n: (
            rsf.range_(2 * n).map_not_none(lambda x: x if x % 2 else None).scan(operator.add)
        ),
    )

    fn = staticmethod(lambda x: None if digest(x) % 3 == 1 else digest(x) + 5)

    def model(self, items: Items, call: Function) -> Items:
        return (y for y in map(call(self.fn), items) if y is not None)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(self.fn(x) is None for x in items)


class Filter(_Fused, needs_order=False, one_by_one=True):
    divisor: int = 2
    in_c: bool = False
    draws = {"divisor": st.integers(1, 4), "in_c": st.booleans()}
    uses = {
        "Filter": Use(lambda s: s.filter(yes)),
        "FilterThatDrops": Use(
            lambda s: s.filter(yes),
            of=lambda n: rsf.range_(3 * n).filter(lambda x: x % 3 == 0),
            not_claimed=NO_LOOK_AHEAD,
        ),
    }

    def fn(self, x: Any) -> bool:
        return digest(x) % self.divisor == 0

    def model(self, items: Items, call: Function) -> Items:
        return filter(call(self.fn), items)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(not self.fn(x) for x in items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.filter(bench.function(index, self.fn, in_c=self.in_c))


class Take(_Fused):
    n: int = 3
    draws = {"n": SMALL}
    use = Use(lambda s: s.take(10**6), of=lambda n: rsf.range_(10**9).take(n))

    def model(self, items: Items, call: Function) -> Items:
        return itertools.islice(items, self.n)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return min(wanted, self.n)


class TakeWhile(_Fused):
    limit: int = 20
    draws = {"limit": _LIMITS}
    use = Use(
        lambda s: s.take_while(yes),
        of=lambda n: rsf.range_(10**9).skip(2).take_while(lambda x: x < n + 2),
        not_claimed=NO_LOOK_AHEAD,
    )

    def fn(self, x: Any) -> bool:
        return digest(x) % 50 < self.limit

    def model(self, items: Items, call: Function) -> Items:
        return itertools.takewhile(call(self.fn), items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.take_while(bench.function(index, self.fn))


class Skip(_Fused):
    n: int = 2
    draws = {"n": SMALL}
    use = Use(lambda s: s.skip(0))

    def model(self, items: Items, call: Function) -> Items:
        return itertools.islice(items, self.n, None)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + self.n


class SkipWhile(_Fused):
    limit: int = 20
    draws = {"limit": _LIMITS}
    use = Use(lambda s: s.skip_while(ignore))

    def fn(self, x: Any) -> bool:
        return digest(x) % 50 < self.limit

    def model(self, items: Items, call: Function) -> Items:
        return itertools.dropwhile(call(self.fn), items)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + len(items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.skip_while(bench.function(index, self.fn))


class Scan(_Fused):
    seed: int | None = None
    draws = {"seed": SEEDS}
    uses = {
        "Scan": Use(lambda s: s.scan(latter)),
        "ScanWithSeed": Use(
            lambda s: s.map(same).scan(latter, -1).skip(1), not_claimed=NO_LOOK_AHEAD
        ),
    }

    fn = staticmethod(lambda a, x: (7 * digest(a) + digest(x)) % 1013)

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        if self.seed is None:
            return itertools.accumulate(items, fn)
        return itertools.accumulate(items, fn, initial=self.seed)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted if self.seed is None else max(wanted - 1, 0)

    def splits_a_run(self, index: int) -> bool:
        return self.seed is not None and index > 0

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        seed = () if self.seed is None else (bench.element(self.seed),)
        return stream.scan(bench.function(index, self.fn, uses=1), *seed)


class Reduce(_Fused, asks_for_all=True, needs_order=False):
    seed: int | None = None
    draws = {"seed": SEEDS}
    use = Use(
        lambda s: s.map(_alone).reduce(operator.add),
        lambda s: s.unbatch(),
        of=lambda n: rsf.range_(n).map(_alone).reduce(operator.add).unbatch(),
        delivers_at_end=True,
    )

    fn = staticmethod(lambda a, x: (digest(a) + digest(x)) % 1019)

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        given = [] if self.seed is None else [self.seed]
        for x in items:
            given = [fn(given[0], x)] if given else [x]
        yield from given

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        seed = () if self.seed is None else (bench.element(self.seed),)
        return stream.reduce(bench.function(index, self.fn, uses=0), *seed)


def _alone(x: Any) -> tuple[Any]:
    return (x,)


class Batch(_Fused):
    n: int = 2
    draws = {"n": POSITIVE}
    use = Use(lambda s: s.batch(1), lambda s: s.unbatch(), of=lambda n: rsf.range_(3 * n).batch(3))

    def model(self, items: Items, call: Function) -> Items:
        while batch := list(itertools.islice(items, self.n)):
            yield batch

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted * self.n


class DistinctUntilChanged(_Fused):
    use = Use(
        lambda s: s.distinct_until_changed(),
        of=lambda n: rsf.range_(3 * n).map(lambda x: x // 3).distinct_until_changed(),
        not_claimed=NO_LOOK_AHEAD,
    )

    fn = staticmethod(lambda x: digest(x) // 3)

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        last: list[Any] = []
        for x in items:
            key = fn(x)
            if last != [key]:
                last = [key]
                yield x

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + len(items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.distinct_until_changed(bench.function(index, self.fn, uses=None))


class Distinct(_Fused):
    """No key twice, as far as it remembers them."""

    max_keys: int = 2
    draws = {"max_keys": POSITIVE}
    use = Use(lambda s: s.distinct(max_keys=8))

    fn = staticmethod(lambda x: digest(x) % 5)

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        known: list[Any] = []
        for x in items:
            key = fn(x)
            if key not in known:
                yield x
            known = [*(other for other in known if other != key), key][-self.max_keys :]

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + len(items)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        key = bench.function(index, self.fn, uses=None)
        return stream.distinct(lambda x: key(x).value, max_keys=self.max_keys)


class OnErrorContinue(_Fused, needs_order=False, one_by_one=True):
    """A map that leaves out what it fails for."""

    use = Use(lambda s: s.map(same).on_error_continue(ignore))

    fn = staticmethod(lambda x: 6 // (digest(x) % 3))

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        for x in items:
            try:
                y = fn(x)
            except (Boom, ZeroDivisionError):
                continue
            yield y

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(digest(x) % 3 == 0 for x in items) + 1

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.map(bench.function(index, self.fn)).on_error_continue(ignore)


class Passing(_Fused, needs_order=False):
    """What leaves all as it is, or is followed by what undoes it."""

    methods = ("name", "log", "timestamp")
    operator: str = "name"
    draws = {"operator": st.sampled_from(["name", "log", "timestamp"])}
    uses = {
        "name": Use(lambda s: s.name("it")),
        "log": Use(lambda s: s.log(QUIET.name)),
        "timestamp": Use(lambda s: s.timestamp(int), lambda s: s.map(operator.itemgetter(1))),
    }

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]
        return self.operator == "timestamp"  # which is made of maps

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return self.uses[self.operator].same(stream)


SIGNALS = ("next", "subscribe", "error", "complete", "request", "cancel")


class DoOn(_Fused, engine="Peek", needs_order=False):
    """An observer: whatever it does, it does not matter."""

    methods = (*(f"do_on_{signal}" for signal in SIGNALS), "do_finally")
    signal: str = "next"
    draws = {"signal": st.sampled_from([*SIGNALS, "finally"])}
    fn = staticmethod(lambda *_: True)
    uses = {
        "observed": Use(
            lambda s: (
                s.do_on_subscribe(bool)
                .do_on_next(ignore)
                .do_on_request(bool)
                .do_on_cancel(ignore)
                .do_on_error(bool)
                .do_on_complete(ignore)
                .do_finally(ignore)
            )
        )
    }

    def splits_a_run(self, index: int) -> bool:
        return self.signal != "next"

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        name = "do_finally" if self.signal == "finally" else f"do_on_{self.signal}"
        return getattr(stream, name)(bench.function(index, self.fn))


class OnDiscard(Op, engine="Peek", modelled=False):
    """The pipelines put it below all others, where they count what was discarded."""

    use = Use(
        lambda s: s.on_discard(equal),
        of=lambda n: rsf.concat(
            rsf.empty(), rsf.range_(n).publish_on("caller").filter(equal).batch(1).unbatch()
        ).on_discard(equal),
    )


class Transform(Op, modelled=False):
    """It only calls the function."""

    use = Use(lambda s: s.transform(same))
