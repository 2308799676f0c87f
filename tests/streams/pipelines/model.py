"""What a pipeline means for a plain list: the words it is described in, and their list semantics.

Nothing here knows of streams. Elements are ints, and lists and tuples of them; a source is a list,
an operator makes one iterator of another, and all of it is lazy, so that it also tells how many
elements a consumer of so many needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

INFINITE: Final = float("inf")

Items = Iterator[Any]
Function = Callable[..., Any]


class Boom(Exception):
    """What an injected failure raises."""


def digest(value: Any) -> int:
    """A number for any element, so that every function takes every element."""
    return value if isinstance(value, int) else sum(map(digest, value)) + len(value)


def raising(fn: Function, at: int | None, where: str) -> Function:
    """``fn``, which raises at its call number ``at`` (from 0) and at no other."""
    calls = itertools.count()

    def call(*args: Any) -> Any:
        if next(calls) == at:
            raise Boom(where)
        return fn(*args)

    return call


@dataclass(frozen=True)
class Origin:
    """A source of the numbers from 0 to ``size`` - 1, which may fail after them."""

    kind: str = "list"
    size: int = 5
    fails: bool = False

    #: Pulled on the thread that asks: nothing is asked ahead, and nothing overtakes.
    PULLED: ClassVar = frozenset({"range", "generate", "list", "iterator", "callable", "empty"})
    KINDS: ClassVar = PULLED | {
        "error", "async", "defer", "using", "foreign", "foreign-late", "foreign-thread",
        "foreign-thread-late", "create", "create-thread",
    }  # fmt: skip

    @property
    def is_pulled(self) -> bool:
        return self.kind in self.PULLED

    def model(self) -> Items:
        yield from range(self.size)
        if self.fails:
            raise Boom("the source")


def late(parts: Iterable[Items]) -> Items:
    """All items of all parts, and then the error of those that failed."""
    failures = []
    try:
        for part in parts:
            try:
                yield from part
            except Boom as boom:
                failures.append(boom)
    except Boom as boom:  # it was who gives the parts
        failures.append(boom)
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class Op:
    """An operator. ``call(fn)`` makes a function of it that may fail."""

    #: Whether the order of what comes out is the order of what goes in.
    keeps_order: ClassVar[bool] = True
    #: Whether what comes out depends on the order of what goes in.
    needs_order: ClassVar[bool] = True
    #: Whether errors may overtake elements here, and elements may be asked for ahead.
    is_boundary: ClassVar[bool] = True
    #: How many functions of the user's it calls: where failures are injected.
    functions: ClassVar[int] = 0
    #: Whether it goes on where what is above it has failed.
    recovers: ClassVar[bool] = False
    #: Whether it may end well although a publisher beside it fails, or fail although it might have
    #: ended well: whichever is noticed first.
    races: ClassVar[bool] = False

    def model(self, items: Items, call: Function) -> Items:
        """What becomes of the items."""
        return items

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        """The same of what can be iterated again."""
        return self.model(upstream(), call)

    @property
    def beside(self) -> tuple[Origin, ...]:
        """The other sources that it subscribes to."""
        return ()

    def asks(self, wanted: float, items: list[Any]) -> float:
        """How many of ``items`` may be asked for, at most, when so many results are wanted."""
        return wanted + getattr(self, "prefetch", 0)


class Fused(Op):
    """An operator within a run: one element at a time, nothing held or asked ahead."""

    is_boundary = False


@dataclass(frozen=True)
class Map(Fused):
    functions = 1
    needs_order = False
    in_c: bool = False

    @staticmethod
    def fn(x: Any) -> Any:
        return (3 * digest(x) + 1) % 1009

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)


@dataclass(frozen=True)
class Spread(Fused):
    """A map to lists, some of them empty: for ``unbatch``."""

    functions = 1
    needs_order = False

    @staticmethod
    def fn(x: Any) -> Any:
        return [digest(x) + i for i in range(digest(x) % 4)]

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)


@dataclass(frozen=True)
class MapNotNone(Fused):
    functions = 1
    needs_order = False

    @staticmethod
    def fn(x: Any) -> Any:
        return None if digest(x) % 3 == 1 else digest(x) + 5

    def model(self, items: Items, call: Function) -> Items:
        return (y for y in map(call(self.fn), items) if y is not None)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(self.fn(x) is None for x in items)


@dataclass(frozen=True)
class Filter(Fused):
    functions = 1
    needs_order = False
    divisor: int = 2
    in_c: bool = False

    def fn(self, x: Any) -> bool:
        return digest(x) % self.divisor == 0

    def model(self, items: Items, call: Function) -> Items:
        return filter(call(self.fn), items)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(not self.fn(x) for x in items)


@dataclass(frozen=True)
class Take(Fused):
    n: int = 3

    def model(self, items: Items, call: Function) -> Items:
        return itertools.islice(items, self.n)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return min(wanted, self.n)


@dataclass(frozen=True)
class TakeWhile(Fused):
    functions = 1
    limit: int = 20

    def fn(self, x: Any) -> bool:
        return digest(x) % 50 < self.limit

    def model(self, items: Items, call: Function) -> Items:
        return itertools.takewhile(call(self.fn), items)


@dataclass(frozen=True)
class Skip(Fused):
    n: int = 2

    def model(self, items: Items, call: Function) -> Items:
        return itertools.islice(items, self.n, None)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + self.n


@dataclass(frozen=True)
class SkipWhile(Fused):
    functions = 1
    limit: int = 20

    def fn(self, x: Any) -> bool:
        return digest(x) % 50 < self.limit

    def model(self, items: Items, call: Function) -> Items:
        return itertools.dropwhile(call(self.fn), items)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + len(items)


@dataclass(frozen=True)
class Scan(Fused):
    functions = 1
    seed: int | None = None

    @staticmethod
    def fn(a: Any, x: Any) -> Any:
        return (7 * digest(a) + digest(x)) % 1013

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        if self.seed is None:
            return itertools.accumulate(items, fn)
        return itertools.accumulate(items, fn, initial=self.seed)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted if self.seed is None else max(wanted - 1, 0)


@dataclass(frozen=True)
class Reduce(Fused):
    functions = 1
    needs_order = False
    seed: int | None = None

    @staticmethod
    def fn(a: Any, x: Any) -> Any:
        return (digest(a) + digest(x)) % 1019

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)
        given = [] if self.seed is None else [self.seed]
        for x in items:
            given = [fn(given[0], x)] if given else [x]
        yield from given

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class Batch(Fused):
    n: int = 2

    def model(self, items: Items, call: Function) -> Items:
        while batch := list(itertools.islice(items, self.n)):
            yield batch

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted * self.n


@dataclass(frozen=True)
class Windows(Op):
    """Lists that overlap, or leave elements out; or streams, which become such lists."""

    n: int = 2
    skip: int = 1
    streams: bool = False

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


@dataclass(frozen=True)
class Sift(Op):
    """By a clock that stands still: nothing but one element, the first or the last."""

    operator: str = "sample"

    def model(self, items: Items, call: Function) -> Items:
        if self.operator == "throttle_first":
            yield from itertools.islice(items, 1)
            for _ in items:
                pass
        else:
            yield from list(items)[-1:]

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class Groups(Op):
    """A list for each key, all of them at the end."""

    keeps_order = False
    functions = 1
    prefetch: int = 4

    fn = staticmethod(lambda x: digest(x) % 3)

    def model(self, items: Items, call: Function) -> Items:
        key, groups = call(self.fn), {}
        for item in items:
            groups.setdefault(key(item), []).append(item)
        yield from groups.values()

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class DoOn(Fused):
    """An observer: whatever it does, it does not matter."""

    functions = 1
    needs_order = False
    signal: str = "next"


@dataclass(frozen=True)
class Unbatch(Op):
    is_boundary = True
    needs_order = False

    def model(self, items: Items, call: Function) -> Items:
        return itertools.chain.from_iterable(
            item if isinstance(item, (list, tuple)) else [item] for item in items
        )

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(isinstance(x, (list, tuple)) and not x for x in items) + 1


@dataclass(frozen=True)
class PublishOn(Op):
    needs_order = False
    executor: str = "own"
    prefetch: int = 4
    max_bytes: int | None = None
    delay_error: bool = False


@dataclass(frozen=True)
class SubscribeOn(Op):
    needs_order = False
    executor: str = "own"


@dataclass(frozen=True)
class _Calls(Op):
    functions = 1
    needs_order = False
    concurrency: int = 2
    prefetch: int = 4
    ordered: bool = True

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        return self.ordered

    @staticmethod
    def fn(x: Any) -> Any:
        return digest(x) + 2

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)


@dataclass(frozen=True)
class MapAsync(_Calls):
    suspends: bool = True
    in_turn: bool = False
    loop: str = "shared"


@dataclass(frozen=True)
class MapBlocking(_Calls):
    pass


@dataclass(frozen=True)
class Distinct(Fused):
    functions = 1

    @staticmethod
    def fn(x: Any) -> Any:
        return digest(x) // 3

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


@dataclass(frozen=True)
class DistinctKeys(Fused):
    """No key twice, as far as it remembers them."""

    functions = 1
    max_keys: int = 2

    @staticmethod
    def fn(x: Any) -> Any:
        return digest(x) % 5

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


@dataclass(frozen=True)
class Continuing(Fused):
    """A map that leaves out what it fails for."""

    functions = 1
    needs_order = False

    @staticmethod
    def fn(x: Any) -> Any:
        return 6 // (digest(x) % 3)

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


@dataclass(frozen=True)
class Passing(Fused):
    """What leaves all as it is."""

    needs_order = False
    operator: str = "named"


@dataclass(frozen=True)
class WindowTime(Op):
    """By a clock that stands still: one window."""

    prefetch: int = 4

    def model(self, items: Items, call: Function) -> Items:
        window = list(items)
        yield from [window] if window else []

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class DelayElements(Op):
    """Each a moment later, on another thread."""

    needs_order = False

    def model(self, items: Items, call: Function) -> Items:
        return items

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + 1


@dataclass(frozen=True)
class HeavyBatch(Op):
    """Batches by number, weight, and a time that never comes."""

    n: int = 3
    max_bytes: int | None = 6
    timed: bool = False

    @staticmethod
    def weigh(x: Any) -> int:
        return digest(x) % 5

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


@dataclass(frozen=True)
class Timeout(Op):
    """A time that never comes."""

    needs_order = False


@dataclass(frozen=True)
class OnOverflow(Op):
    """With room for everything, no strategy drops anything."""

    needs_order = False
    strategy: str = "BUFFER"

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class _Combining(Op):
    races = True
    others: tuple[Origin, ...] = ()
    prefetch: int = 4

    @property
    def beside(self) -> tuple[Origin, ...]:
        return self.others


@dataclass(frozen=True)
class Merge(_Combining):
    keeps_order = False
    needs_order = False
    delay_error: bool = False

    def model(self, items: Items, call: Function) -> Items:
        merged = [items, *(other.model() for other in self.others)]
        return late(merged) if self.delay_error else itertools.chain(*merged)


@dataclass(frozen=True)
class Zip(_Combining):
    def model(self, items: Items, call: Function) -> Items:
        return zip(items, *(other.model() for other in self.others), strict=False)


@dataclass(frozen=True)
class CombineLatest(Op):
    """With one of one element, or of none: what it gives is known."""

    races = True  # when the other is empty
    needs_order = False
    other: Origin = Origin("list", 1)
    prefetch: int = 4

    @property
    def beside(self) -> tuple[Origin, ...]:
        return (self.other,)

    def model(self, items: Items, call: Function) -> Items:
        return ((item, 0) for item in items) if self.other.size else iter(())


@dataclass(frozen=True)
class WithLatest(CombineLatest):
    """With one that is run through before anything else is asked."""

    races = False

    def model(self, items: Items, call: Function) -> Items:
        size = self.other.size
        return ((item, size - 1) for item in items) if size else iter(())

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted


@dataclass(frozen=True)
class Race(Op):
    """With one that is silent, before it or after it."""

    needs_order = False
    first: bool = True


@dataclass(frozen=True)
class TakeUntil(Op):
    """Until what never comes, or has come before anything is asked for."""

    needs_order = False
    kind: str = "never"

    def model(self, items: Items, call: Function) -> Items:
        return items if self.kind == "never" else iter(())


@dataclass(frozen=True)
class Concat(_Combining):
    races = False
    needs_order = False

    def model(self, items: Items, call: Function) -> Items:
        return itertools.chain(items, *(other.model() for other in self.others))

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted


@dataclass(frozen=True)
class FlatMap(Op):
    functions = 1
    needs_order = False
    kind: str = "list"
    concurrency: int = 2
    prefetch: int = 2
    delay_error: bool = False
    sequential: bool = False

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        return self.concurrency == 1 or self.sequential

    @staticmethod
    def fn(x: Any) -> Any:
        return Origin(size=digest(x) % 4)

    def model(self, items: Items, call: Function) -> Items:
        fn = call(self.fn)

        def inner(x: Any) -> Items:
            yield from fn(x).model()

        if self.delay_error:
            return late(map(inner, items))
        return itertools.chain.from_iterable(map(inner, items))

    def asks(self, wanted: float, items: list[Any]) -> float:
        nothing = sum(self.fn(x).size == 0 for x in items) + self.delay_error
        return wanted + nothing + self.concurrency


@dataclass(frozen=True)
class ConcatMap(Op):
    functions = 1
    needs_order = False
    kind: str = "list"
    prefetch: int = 2

    fn = staticmethod(FlatMap.fn)

    def model(self, items: Items, call: Function) -> Items:
        inner = map(call(self.fn), items)
        return itertools.chain.from_iterable(origin.model() for origin in inner)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + sum(self.fn(x).size == 0 for x in items) + self.prefetch + 1


@dataclass(frozen=True)
class SwitchMap(Op):
    """Each element's publisher is silent, but for one more at the end: what it gives is known."""

    needs_order = False
    kind: str = "list"
    size: int = 3
    prefetch: int = 2

    def model(self, items: Items, call: Function) -> Items:
        for _ in items:
            pass
        yield from range(self.size)

    def asks(self, wanted: float, items: list[Any]) -> float:
        return INFINITE


@dataclass(frozen=True)
class Expand(Op):
    functions = 1
    kind: str = "list"
    depth_first: bool = False

    @staticmethod
    def fn(x: Any) -> Any:
        return Origin(size=digest(x) % 3)

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


@dataclass(frozen=True)
class StartWith(Op):
    needs_order = False
    n: int = 2

    def model(self, items: Items, call: Function) -> Items:
        yield from range(self.n)
        yield from items


@dataclass(frozen=True)
class IfEmpty(Op):
    """``switch_if_empty``; of one element ``default_if_empty``."""

    needs_order = False
    n: int = 2

    def model(self, items: Items, call: Function) -> Items:
        found = False
        for x in items:
            found = True
            yield x
        if not found:
            yield from range(self.n)


@dataclass(frozen=True)
class Retry(Op):
    recovers = True
    times: int = 2

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        for left in reversed(range(self.times + 1)):
            try:
                yield from upstream()
            except Boom:
                if not left:
                    raise
            else:
                return

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted * (self.times + 1)


@dataclass(frozen=True)
class Repeat(Op):
    recovers = True  # it subscribes again, as who recovers does
    times: int = 1

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        for _ in range(self.times + 1):
            yield from upstream()


@dataclass(frozen=True)
class Resume(Op):
    recovers = True
    other: Origin = Origin("list", 3)

    @property
    def beside(self) -> tuple[Origin, ...]:
        return (self.other,)

    def model(self, items: Items, call: Function) -> Items:
        try:
            yield from items
        except Boom:
            yield from self.other.model()


@dataclass(frozen=True)
class ErrorReturn(Op):
    recovers = True

    def model(self, items: Items, call: Function) -> Items:
        try:
            yield from items
        except Boom:
            yield 7


@dataclass(frozen=True)
class Shared(Op):
    """One subscription upstream for all below: they get the same, at the pace of the slowest."""

    needs_order = False
    kind: str = "multicast"  #: multicast, share or replay
    buffer_size: int = 4

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + self.buffer_size


@dataclass(frozen=True)
class Through(Op):
    """A processor, subscribed to first or last."""

    needs_order = False
    kind: str = "processor"  #: processor, serialized, multicast or replay
    upstream_first: bool = True

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted if self.kind == "processor" else INFINITE


@dataclass(frozen=True)
class Fault:
    """The function of operator ``op`` raises at its call number ``call``."""

    op: int
    call: int


@dataclass(frozen=True)
class Demand:
    """How the subscriber asks: in on_subscribe, in each on_next, and from outside in turns."""

    first: int = 0
    inside: int = 0
    outside: tuple[int, ...] = (1,)
    #: Who asks from outside: this thread, another one, or two at once.
    by: str = "main"


@dataclass(frozen=True)
class Stop:
    """What ends the stream early, when the subscriber has seen ``at`` elements."""

    kind: str = ""  #: cancel, raise or bad; "" for nothing
    at: int = 0
    where: str = "next"  #: subscribe, next or outside
    #: For ``bad``: what is asked for.
    request: Any = 0


@dataclass(frozen=True)
class Pipeline:
    """A whole experiment, and its reproduction: ``judge(<the repr of this>)``."""

    origin: Origin = Origin()
    ops: tuple[Op, ...] = ()
    demand: Demand = Demand()
    stop: Stop = Stop()
    fault: Fault | None = None
    #: The most elements in one burst of a drain.
    burst: int = 256
    #: How many subscribe, at the most: more than one where the last operator is shared. All ask in
    #: the same way; only the first may stop early.
    subscribers: int = 1
    #: Whether there is a hook for what is dropped.
    discards: bool = False


@dataclass
class Expected:
    """What the list model says."""

    elements: list[Any]
    failed: bool  #: whether the end is an error, seen lazily
    before_failure: list[Any]  #: the elements, and those of a merge's others before it fails
    everything: list[Any]  #: the elements if nothing fails
    ordered: bool
    exact: bool  #: nothing is asked ahead, nothing overtakes
    races: bool  #: which of two ends it is, is open

    def begins_with(self, seen: list[Any]) -> bool:
        """Whether this may have been seen on the way."""
        # With delay_error a failure leaves a gap, and no end.
        whole = (self.everything, self.elements, self.before_failure)
        if self.ordered:
            return any(seen == elements[: len(seen)] for elements in whole)
        return any(_bag(seen) <= _bag(elements) for elements in whole)

    def is_whole(self, seen: list[Any]) -> bool:
        """Whether this may have been seen before on_complete."""
        if self.races and self._is_all(seen, self.everything):
            return True
        return self._is_all(seen, self.elements)

    def _is_all(self, seen: list[Any], elements: list[Any]) -> bool:
        return seen == elements if self.ordered else _bag(seen) == _bag(elements)


def _bag(elements: list[Any]) -> Counter[str]:
    return Counter(map(repr, elements))


def is_one_run(pipeline: Pipeline) -> bool:
    """Whether one loop does it all, so that nothing is asked for that is not taken at once."""
    return pipeline.origin.is_pulled and not any(
        op.is_boundary
        or (isinstance(op, Scan) and op.seed is not None and index > 0)
        or (isinstance(op, DoOn) and op.signal != "next")
        for index, op in enumerate(pipeline.ops)
    )


def sure(origin: Origin) -> Origin:
    """The same source, which does not fail."""
    return dataclasses.replace(origin, fails=False)


def synchronous(pipeline: Pipeline) -> Pipeline:
    """The like of it, all of whose work is done by the thread that subscribes or asks: when these
    calls have returned, nothing more will come until somebody asks for it.
    """

    def origin(it: Origin) -> Origin:
        return dataclasses.replace(it, kind=on_the_caller(it.kind))

    def on_the_caller(kind: str) -> str:
        return "list" if kind == "async" else kind.replace("-thread", "")

    ops: list[Op] = []
    for op in pipeline.ops:
        if isinstance(op, (PublishOn, SubscribeOn)):
            op = dataclasses.replace(op, executor="caller")
        elif isinstance(op, (FlatMap, ConcatMap, SwitchMap, Expand)):
            op = dataclasses.replace(op, kind=on_the_caller(op.kind))
        elif isinstance(op, _Combining):
            op = dataclasses.replace(op, others=tuple(map(origin, op.others)))
        elif isinstance(op, (Resume, CombineLatest)):
            op = dataclasses.replace(op, other=origin(op.other))
        elif isinstance(op, (MapAsync, MapBlocking, DelayElements)):
            op = Map()
        ops.append(op)
    by = "another" if pipeline.demand.by == "two" else pipeline.demand.by
    return dataclasses.replace(
        pipeline,
        origin=origin(pipeline.origin),
        ops=tuple(ops),
        demand=dataclasses.replace(pipeline.demand, by=by),
    )


def without_failures(pipeline: Pipeline, *, from_: int = -1) -> Pipeline:
    """The same pipeline; at operator ``from_`` and below nothing fails, but for single elements.
    The source is number -1.
    """
    ops: list[Any] = list(pipeline.ops)
    for index, op in enumerate(ops):
        if index >= from_ and isinstance(op, _Combining):
            ops[index] = dataclasses.replace(op, others=tuple(map(sure, op.others)))
        if index >= from_ and isinstance(op, Resume):
            ops[index] = dataclasses.replace(op, other=sure(op.other))
    fault, borne = pipeline.fault, continued(pipeline.ops)
    return dataclasses.replace(
        pipeline,
        origin=sure(pipeline.origin) if from_ == -1 else pipeline.origin,
        ops=tuple(ops),
        fault=None if fault is None or (fault.op >= from_ and fault.op not in borne) else fault,
    )


def _one_by_one(op: Op, upstream: Callable[[], Items], call: Function) -> Items:
    """What becomes of each element, or nothing where the operator fails for it."""
    for x in upstream():
        try:
            yield from op.model(iter((x,)), call)
        except Boom:
            continue


def continued(ops: tuple[Op, ...]) -> set[int]:
    """The operators whose failures are of one element alone: those in a row above a continuing
    one, and that itself.
    """
    found: set[int] = set()
    in_a_row = False
    for index in reversed(range(len(ops))):
        op = ops[index]
        in_a_row = isinstance(op, Continuing) or (
            in_a_row
            and (
                isinstance(op, (Map, Spread, MapNotNone, Filter))
                or op == Passing("timestamp")  # which is made of maps
            )
        )
        if in_a_row:
            found.add(index)
    return found


def run_model(pipeline: Pipeline) -> tuple[list[Any], bool]:
    """The elements before the end, and whether that is an error."""
    fault, go_on = pipeline.fault, continued(pipeline.ops)
    upstream: Callable[[], Items] = pipeline.origin.model
    for index, op in enumerate(pipeline.ops):
        at = fault.call if fault is not None and fault.op == index else None
        functions: dict[str, Function] = {}

        def call(fn: Function, at: int | None = at, made: dict[str, Function] = functions) -> Any:
            # Made once, however often it is subscribed to: so are the user's functions.
            return made.setdefault("fn", raising(fn, at, "a function"))

        make = functools.partial(_one_by_one, op) if index in go_on else op.model_anew
        upstream = functools.partial(make, upstream, call)
    seen = []
    try:
        for item in upstream():
            seen.append(item)
    except Boom:
        return seen, True
    return seen, False


def _before_failure(pipeline: Pipeline) -> list[Any]:
    """The elements, where whatever fails above a merge comes after the elements of its others."""
    ops = [
        dataclasses.replace(op, delay_error=True) if isinstance(op, Merge) else op
        for op in pipeline.ops
    ]
    return run_model(dataclasses.replace(pipeline, ops=tuple(ops)))[0]


def expect(pipeline: Pipeline) -> Expected:
    """What a correct stream does."""
    ops = pipeline.ops
    elements, failed = run_model(pipeline)
    # What comes out above the last recovery comes with its failures, as these are recovered from.
    recovery = max((index for index, op in enumerate(ops) if op.recovers), default=-1)
    sound = without_failures(pipeline, from_=recovery)
    return Expected(
        elements,
        failed,
        _before_failure(pipeline),
        _before_failure(sound),
        ordered=all(op.keeps_order for op in ops),
        exact=pipeline.origin.is_pulled and not any(op.is_boundary for op in ops),
        races=any(op.races for op in ops),
    )


#: Operators that share no element, and deliver none twice: with a hook each is accounted for.
ACCOUNTED: Final = {
    Map, Spread, MapNotNone, Filter, Take, TakeWhile, Skip, SkipWhile, Scan, Reduce, Batch, DoOn,
    Unbatch, PublishOn, SubscribeOn, MapAsync, MapBlocking, DelayElements, Distinct, HeavyBatch,
    Timeout, OnOverflow, Merge, Zip, CombineLatest, WithLatest, Race, TakeUntil, Concat, FlatMap,
    ConcatMap, SwitchMap, Expand, StartWith, IfEmpty, ErrorReturn, Retry, Repeat, Resume,
    Sift, DistinctKeys, Continuing, Passing,
}  # fmt: skip


def counts_discards(pipeline: Pipeline) -> bool:
    """Whether each element is either delivered or discarded, once."""
    return pipeline.discards and ACCOUNTED.issuperset(map(type, pipeline.ops))


def fails_somewhere(pipeline: Pipeline) -> bool:
    """Whether a failure was put anywhere."""
    beside = [origin for op in pipeline.ops for origin in op.beside]
    return pipeline.fault is not None or any(o.fails for o in [pipeline.origin, *beside])


def most_asked(pipeline: Pipeline, wanted: float) -> float:
    """How many elements the source may be asked for when ``wanted`` are asked of the stream."""
    pipeline = without_failures(pipeline)
    above = [list(pipeline.origin.model())]
    for op in pipeline.ops:
        above.append(list(op.model_anew(functools.partial(iter, above[-1]), lambda fn: fn)))
    for op, items in zip(reversed(pipeline.ops), reversed(above[:-1]), strict=True):
        wanted = op.asks(wanted, items)
    return wanted


def pulled_lazily(pipeline: Pipeline, wanted: int) -> int:
    """How many elements a lazy consumer of ``wanted`` elements pulls, where nothing ends it."""
    pulled = 0
    fault = pipeline.fault
    at = fault.op if fault is not None and fault.op in continued(pipeline.ops) else None

    def counted() -> Items:
        nonlocal pulled
        for item in sure(pipeline.origin).model():
            pulled += 1
            yield item

    items = counted()
    for index, op in enumerate(pipeline.ops):  # of one run: nothing in it subscribes twice
        if fault is not None and index == at:
            failing = functools.lru_cache(None)(functools.partial(raising, at=fault.call, where=""))
            items = _one_by_one(op, functools.partial(iter, items), failing)
        else:
            items = op.model(items, lambda fn: fn)
    for _ in itertools.islice(items, wanted):
        pass
    return pulled
