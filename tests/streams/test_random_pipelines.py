"""Random pipelines agree with a list model, keep the rules on every signal, and leave nothing.

``RSTREAMS_FAST_PIPELINES=10000`` runs more of them than the suite does, and others; ``make
pipelines`` does, on all backends.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import rstreams_fast
from rstreams_fast import errors
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.streams.engine import drain, push, upstream
from rstreams_fast.streams.engine import stages as program
from rstreams_fast.streams.operators import publish_on, unbatch
from tests.helpers import generated_after
from tests.operators import SOURCE_OF, Op, Origin
from tests.operators.combining import CombineLatest, FlatMap
from tests.operators.flow import PublishOn, SubscribeOn
from tests.operators.parts import Unbatch
from tests.operators.stages import (
    DoOn,
    Filter,
    Map,
    OnErrorContinue,
    Reduce,
    Scan,
    Skip,
    Spread,
    Take,
    TakeWhile,
)
from tests.streams.pipelines import model as m
from tests.streams.pipelines.bench import Resources
from tests.streams.pipelines.draw import MODELLED, may_follow, pipelines
from tests.streams.pipelines.judge import Difference, judge

#: What the suite runs; any other number also means other pipelines, on each backend others.
IN_THE_SUITE = 500
EXAMPLES = int(os.environ.get("RSTREAMS_FAST_PIPELINES", IN_THE_SUITE))
SEED = 1 if EXAMPLES == IN_THE_SUITE else f"{EXAMPLES} on {rstreams_fast.backend}"

#: A faulty stream has to be found out within so many pipelines.
ENOUGH = 1000

deterministic = settings(
    database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)


@pytest.fixture(scope="module")
def resources() -> Iterator[Resources]:
    log = logging.getLogger("rstreams_fast")
    before, log.disabled = log.disabled, True  # thousands of dropped errors are expected here
    resources = Resources()
    yield resources
    resources.close()
    log.disabled = before


@pytest.mark.timeout(300 + EXAMPLES / 5)
def test_random_pipelines(resources: Resources) -> None:
    """What holds for all signals: §1.1, §1.3, §1.7, §1.8, §1.9, §2.12, §2.13, §3.3, §3.6, §3.7,
    §3.13, §3.15, §3.16, and §1.11 where it is shared; and elements, ends, demand upstream, threads,
    tasks, references.
    """

    @seed(SEED)
    @settings(deterministic, max_examples=EXAMPLES)
    @given(pipeline=pipelines())
    def run(pipeline: m.Pipeline) -> None:
        # By what it is, so that it runs the same way again.
        with generated_after((0, 3, 64)[zlib.crc32(repr(pipeline).encode()) % 3]):
            judge(pipeline, resources)

    run()


def test_every_way_to_stop_has_its_turn() -> None:
    drawn: set[str] = set()

    @seed(2)
    @settings(deterministic, max_examples=300, phases=[Phase.generate])
    @given(pipeline=pipelines())
    def look(pipeline: m.Pipeline) -> None:
        drawn.add(f"stop: {pipeline.stop.kind} {pipeline.stop.where}")

    look()
    assert drawn >= {
        f"stop: {what} {where}"
        for what, where in itertools.product(["cancel", "raise"], ["subscribe", "next"])
    } | {"stop: cancel outside", "stop: bad next", "stop: bad outside"}


# -- each operator by itself ----------------------------------------------------------------------

ONE_BY_ONE = m.Demand(first=1, inside=1)
AT_ONCE = m.Demand(first=UNBOUNDED)


@pytest.mark.parametrize("demand", [AT_ONCE, ONE_BY_ONE], ids=["unbounded", "one by one"])
@pytest.mark.parametrize("op", MODELLED, ids=lambda op: op.__name__)
def test_an_operator_does_what_its_entry_says(
    resources: Resources, op: type[Op], demand: m.Demand
) -> None:
    """Over every kind of source: of nothing, of some elements, that fails, below a boundary; and
    where a function of it fails.
    """
    for origin in [
        *(Origin(kind, size) for kind in SOURCE_OF for size in (0, 1, 11)),
        *(Origin(kind, 5, fails=True) for kind in ("list", "foreign", "create", "async")),
    ]:
        if SOURCE_OF[origin.kind].fixed in (None, origin) and may_follow(origin, [], op()):
            judge(m.Pipeline(origin, (op(),), demand, discards=True), resources)
    for above in ((PublishOn(),), (PublishOn("caller", 1),), (Map(), Unbatch())):
        if may_follow(Origin(), list(above), op()):
            judge(m.Pipeline(Origin(size=11), (*above, op()), demand), resources)
    for call in (0, 3) if hasattr(op, "fn") else ():
        pipeline = m.Pipeline(Origin(size=11), (op(),), demand, fault=m.Fault(0, call))
        judge(pipeline, resources)


# -- what they have found, and what stays mended ---------------------------------------------------

FOUND = {
    "unbatch kept the last iterable": m.Pipeline(
        Origin("range", 1), (Unbatch(), Map(in_c=True), Unbatch()), m.Demand(first=1)
    ),
    "subscribe_on worked on after a subscriber had raised": m.Pipeline(
        Origin("foreign", 4),
        (SubscribeOn(), Skip(3)),
        m.Demand(first=1),
        m.Stop("raise", 0, "subscribe"),
    ),
    "the first observer to raise kept the subscriber": m.Pipeline(
        Origin("range", 2), (DoOn("complete"),), m.Demand(first=1), fault=m.Fault(0, 0)
    ),
    "what skip dropped below it made take ask for more": m.Pipeline(
        Origin("foreign", 4), (Take(3), Skip(1)), m.Demand(first=100)
    ),
    "a seed was forgotten when take asked for all it takes": m.Pipeline(
        Origin("foreign", 4), (Scan(5), Take(3)), m.Demand(first=100)
    ),
    "the model knew of no failure that on_error_continue bears with further up": m.Pipeline(
        Origin("range", 3),
        (Map(), Filter(1), OnErrorContinue(), Take(1)),
        m.Demand(first=1),
        fault=m.Fault(0, 0),
    ),
    "the model forgot what was left out when something else failed": m.Pipeline(
        Origin("list", 3, fails=True),
        (OnErrorContinue(), CombineLatest(Origin("list", 1))),
        m.Demand(),
        fault=m.Fault(0, 1),
    ),
    "a publisher above flat_map kept its seed after the end": m.Pipeline(
        Origin("range", 0),
        (Reduce(0), FlatMap("list", 1, 1, sequential=True)),
        m.Demand(outside=(1, 1, 7)),
    ),
    "an error overtook elements of a run without a boundary": m.Pipeline(
        Origin("list", 30, fails=True),
        (Filter(1), Scan(8)),
        m.Demand(first=0, inside=2, outside=(100,)),
    ),
}


@pytest.mark.parametrize("pipeline", FOUND.values(), ids=list(FOUND))
def test_what_was_found_stays_mended(resources: Resources, pipeline: m.Pipeline) -> None:
    errors._unraisable_type.cache_clear()
    judge(pipeline, resources)


# -- the proof that they find ----------------------------------------------------------------------
#
# With synchronous pipelines, so that it never depends on how fast the threads of a loaded machine
# are: what has not come when the calls have returned does not come at all, and nothing is waited
# for. Each faulty stream says how differences begin that it causes: all of them, and no others.


STUCK = "an element that was requested, or the end, did not come"


class Between:
    """A publisher between a stream and its subscribers, with a subscription of a kind for each."""

    def __init__(self, upstream: Any, passing: type[Passing]) -> None:
        self.upstream = upstream
        self.passing = passing

    def subscribe(self, subscriber: Any, /) -> None:
        self.upstream.subscribe(self.passing(subscriber))


class Passing:
    """A correct subscription and subscriber in between; subclasses break one thing."""

    says: ClassVar[str]

    def __init_subclass__(cls, says: str) -> None:
        cls.says = says

    def __init__(self, subscriber: Any) -> None:
        self.subscriber = subscriber

    def on_subscribe(self, subscription: Any, /) -> None:
        self.subscription = subscription
        try:
            self.subscriber.on_subscribe(self)
        except BaseException:
            self.subscriber = None
            raise

    def on_next(self, element: Any, /) -> None:
        subscriber = self.subscriber
        if subscriber is not None:
            try:
                subscriber.on_next(element)
            except BaseException:
                self.subscriber = None
                raise

    def on_error(self, error: BaseException, /) -> None:
        subscriber, self.subscriber = self.subscriber, None
        if subscriber is not None:
            subscriber.on_error(error)

    def on_complete(self) -> None:
        subscriber, self.subscriber = self.subscriber, None
        if subscriber is not None:
            subscriber.on_complete()

    def request(self, n: int, /) -> None:
        self.subscription.request(n)

    def cancel(self) -> None:
        self.subscriber = None
        self.subscription.cancel()


class Twice(Passing, says="§1.1: |other elements"):
    def on_next(self, element: Any, /) -> None:
        super().on_next(element)
        super().on_next(element)


class AsksForOneMore(Passing, says="§1.1: |§1.1 upstream"):
    def request(self, n: Any, /) -> None:
        super().request(n + 1 if type(n) is int and n > 0 else n)


class CompletesTwice(Passing, says="§1.7"):
    def on_complete(self) -> None:
        subscriber = self.subscriber
        super().on_complete()
        if subscriber is not None:
            subscriber.on_complete()


class CompletesInsteadOfFailing(
    Passing, says="on_complete, and a failure was due|on_complete without all elements"
):
    def on_error(self, error: BaseException, /) -> None:
        self.on_complete()


class NeverCompletes(Passing, says=STUCK):
    def on_complete(self) -> None:
        pass


class LosesTheThird(Passing, says="other elements|on_complete without all elements"):
    seen = 0

    def on_next(self, element: Any, /) -> None:
        self.seen += 1
        if self.seen == 3:
            self.subscription.request(1)
        else:
            super().on_next(element)


class IgnoresCancel(Passing, says="§1.8: |§1.1: "):
    def cancel(self) -> None:
        pass


class StaysAfterTheEnd(Passing, says="kept: the subscriber"):
    def on_complete(self) -> None:
        self.subscriber.on_complete()


class KeepsAnElement(Passing, says="kept: elements"):
    def on_next(self, element: Any, /) -> None:
        self.last = element
        super().on_next(element)


class LeavesAThread(Passing, says="the thread 'left' is left running"):
    def on_complete(self) -> None:
        threading.Thread(target=time.sleep, args=(2,), name="left", daemon=True).start()
        super().on_complete()


class RequestRaises(Passing, says="§3.16: request raised RuntimeError"):
    def request(self, n: int, /) -> None:
        if n == 7:
            raise RuntimeError("seven is too much")
        super().request(n)


class BearsNoRequestAfterCancel(Passing, says="§3.16: request raised AttributeError"):
    def request(self, n: int, /) -> None:
        self.subscriber.on_next  # noqa: B018 - None has none
        super().request(n)


class SubscribesTwice(Passing, says="(§1.8: on_subscribe .*; )?§2.12: "):
    def on_subscribe(self, subscription: Any, /) -> None:
        subscriber = self.subscriber
        super().on_subscribe(subscription)
        subscriber.on_subscribe(self)


WRAPPERS = Passing.__subclasses__()


def one_more(bound: Callable[..., int]) -> Callable[..., int]:
    return lambda self, n: min(bound(self, n) + 1, UNBOUNDED)


def nothing(_: Any) -> Callable[..., None]:
    return lambda self, *args: None


def keeping(release: Callable[..., Any]) -> Callable[..., Any]:
    def keep(self: Any) -> Any:
        subscriber = self._subscriber
        released = release(self)
        self._grows = subscriber  # which is of no more use
        return released

    return keep


def asking_twice(ask: Callable[..., None]) -> Callable[..., None]:
    def twice(self: Any, *args: Any) -> None:
        ask(self, *args)
        ask(self, *args)

    return twice


def entering_never_nested(enter: Callable[..., None]) -> Callable[..., None]:
    def forget(self: Any) -> None:
        if self._wip.missed == 0:
            enter(self)

    return forget


#: Those around which work is done in more than one place.
BOUNDARIES = (Filter, Take, TakeWhile, Skip, Unbatch, PublishOn, SubscribeOn)

#: Real code with one thing changed: class, method, change, what is said of it, and operators that
#: it takes, so that few pipelines are enough.
MUTANTS: dict[str, tuple[Any, str, Callable[[Any], Any], str, tuple[type[Op], ...]]] = {
    "take asks for one more": (
        program.Stages, "_requestable", one_more, "§1.1 upstream", (Take, Scan, Skip),
    ),
    "what a filter drops is not asked for again": (
        push.PushSubscription, "_add_replacements", nothing, STUCK, (Filter, Map, Skip),
    ),
    "the drain keeps its subscriber": (
        drain.Drain, "_drop_everything", keeping, "kept: the subscriber", BOUNDARIES,
    ),
    # A ring that is full is noticed by who puts an element in: the boundary, or a run above it.
    "publish_on asks for its prefetch twice": (
        publish_on.ElementQueue, "first_request", asking_twice,
        "on_error with (DemandExceeded|BufferOverflow)Error",
        (PublishOn, Unbatch, Skip),
    ),
    "publish_on never asks again": (
        publish_on.ElementQueue, "replenish", nothing, STUCK, (PublishOn, Unbatch, Skip),
    ),
    "unbatch keeps its iterable": (
        unbatch._Items, "close", lambda _: lambda self: self.current, "kept: elements",
        (Unbatch, Spread, TakeWhile),
    ),
    "cancel does not reach upstream": (
        upstream.Upstream, "cancel", nothing, "kept: (elements|the subscriber)", BOUNDARIES,
    ),
    "work that comes while the drain is held is forgotten": (
        drain.Drain, "_enter", entering_never_nested, f"{STUCK}|kept: the subscriber", BOUNDARIES,
    ),
}  # fmt: skip


class Found(BaseException):
    """Not for hypothesis: the first difference is enough."""


def find(
    resources: Resources,
    broken: type[Passing] | None = None,
    *,
    pool: tuple[type[Op], ...] = MODELLED,
    within: int = ENOUGH,
) -> Difference | None:
    """The first difference that random synchronous pipelines make visible."""

    def between(stream: Any) -> Any:
        return stream if broken is None else Between(stream, broken)

    @seed(3)
    @settings(deterministic, max_examples=within, phases=[Phase.generate])
    @given(pipeline=pipelines(pool))
    def run(pipeline: m.Pipeline) -> None:
        try:
            judge(m.synchronous(pipeline), resources, patience=0.0, broken=between)
        except Difference as difference:
            raise Found(difference) from None

    try:
        run()
    except Found as found:
        return found.args[0]
    finally:
        resources.threads |= set(threading.enumerate())  # a faulty stream may have left some
    return None


@pytest.mark.parametrize("broken", WRAPPERS)
def test_a_broken_publisher_is_found_out(resources: Resources, broken: type[Passing]) -> None:
    assert re.match(broken.says, str(find(resources, broken)))


def test_a_correct_publisher_in_between_is_none(resources: Resources) -> None:
    assert find(resources, Passing, within=200) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_operator_is_found_out(
    resources: Resources, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owner, method, change, said, pool = MUTANTS[name]
    monkeypatch.setattr(owner, method, change(getattr(owner, method)))
    assert re.match(said, str(find(resources, pool=pool)))
