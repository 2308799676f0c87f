"""What a pipeline means for a plain list: the words it is described in, and their list semantics.

Nothing here knows of streams: what an operator makes of a list, its entry in the table says.
Elements are ints, and lists and tuples of them; a source is a list, an operator makes one iterator
of another, and all of it is lazy, so that it also tells how many elements a consumer of so many
needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.operators import Op, Origin
from tests.operators.combining import Merge
from tests.operators.entry import Boom, Function, Items, on_the_caller, raising
from tests.operators.stages import OnErrorContinue


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

    origin: Origin = Origin()  # noqa: RUF009 - it is frozen
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

    def fails_at(self, index: int) -> int | None:
        """At which call the function of operator ``index`` raises, if it does."""
        return self.fault.call if self.fault is not None and self.fault.op == index else None


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
        op.splits_a_run(index) for index, op in enumerate(pipeline.ops)
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

    by = "another" if pipeline.demand.by == "two" else pipeline.demand.by
    return dataclasses.replace(
        pipeline,
        origin=origin(pipeline.origin),
        ops=tuple(op.on_the_caller().with_others(origin) for op in pipeline.ops),
        demand=dataclasses.replace(pipeline.demand, by=by),
    )


def without_failures(pipeline: Pipeline, *, from_: int = -1) -> Pipeline:
    """The same pipeline; at operator ``from_`` and below nothing fails, but for single elements.
    The source is number -1.
    """
    ops = [op.with_others(sure) if index >= from_ else op for index, op in enumerate(pipeline.ops)]
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
        in_a_row = isinstance(op, OnErrorContinue) or (in_a_row and op.one_by_one)
        if in_a_row:
            found.add(index)
    return found


def run_model(pipeline: Pipeline) -> tuple[list[Any], bool]:
    """The elements before the end, and whether that is an error."""
    go_on = continued(pipeline.ops)
    upstream: Callable[[], Items] = pipeline.origin.model
    for index, op in enumerate(pipeline.ops):
        # Made once, however often it is subscribed to: so are the user's functions.
        failing = functools.partial(raising, at=pipeline.fails_at(index), where="a function")
        call = functools.cache(failing)
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


def counts_discards(pipeline: Pipeline) -> bool:
    """Whether each element is either delivered or discarded, once."""
    return pipeline.discards and all(op.accounted for op in pipeline.ops)


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
    fault, go_on = pipeline.fault, continued(pipeline.ops)

    def counted() -> Items:
        nonlocal pulled
        for item in sure(pipeline.origin).model():
            pulled += 1
            yield item

    items = counted()
    for index, op in enumerate(pipeline.ops):  # of one run: nothing in it subscribes twice
        if fault is not None and index == fault.op and index in go_on:
            failing = functools.cache(functools.partial(raising, at=fault.call, where=""))
            items = _one_by_one(op, functools.partial(iter, items), failing)
        else:
            items = op.model(items, lambda fn: fn)
    for _ in itertools.islice(items, wanted):
        pass
    return pulled
