"""Random sequences of operations: every backend does what ``_spec`` does."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING, RunStatus
from rstreams_fast.core.stage_table import STAGES
from tests.core.conftest import BACKENDS, load
from tests.helpers import DEADLINE, generated_after

SPECIFICATION = load("python")
COMPILED = [name for name in BACKENDS if name != "python"]

twin = pytest.mark.parametrize("backend", COMPILED)
thorough = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Any:
    """Thousands of dropped errors are part of the plan here."""
    log = logging.getLogger("rstreams_fast")
    log.disabled = True
    yield
    log.disabled = False


class Problem(Exception):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and other.args == self.args

    __hash__ = Exception.__hash__


def answer(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type and words of what it raises."""
    try:
        return call()
    except Exception as raised:
        return type(raised), str(raised)


class Falsy(Problem):
    def __len__(self) -> int:
        return 0


class Index:
    """A number that can do nothing but be one."""

    def __index__(self) -> int:
        return 5


LARGE = [UNBOUNDED - 1, UNBOUNDED, UNBOUNDED + 1, 2**64, -(2**63), 10**30, 10**5000]
NO_INTS = [True, 1.5, "1", None]
ints = st.one_of(st.integers(-3, 12), st.sampled_from([*LARGE, *NO_INTS, Index()]))
capacities = st.one_of(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, -1, 2**31 + 1, 10**40, True, 1.0])
)
ends = st.sampled_from([None, Problem("closed"), Falsy("closed"), "x", Problem])

demand_operations = st.lists(
    st.one_of(
        st.tuples(st.just("request"), ints),
        st.tuples(st.just("fulfil"), ints),
        st.tuples(st.sampled_from(["cancel", "terminate"])),
    ),
    max_size=12,
)


@twin
@thorough
@given(initial=ints, operations=demand_operations)
def test_a_demand_counter_does_what_the_specification_does(
    backend: str, initial: Any, operations: list[Any]
) -> None:
    def history(core: Any) -> list[Any]:
        demand = answer(lambda: core.DemandCounter(initial))
        if isinstance(demand, tuple):
            return [demand]
        log = []
        for name, *arguments in operations:
            # `True` and `1` are equal, but not alike.
            log.append(answer(lambda n=name, a=arguments: repr(getattr(demand, n)(*a))))
            log.append((demand.value, demand.pending, demand.cancelled, demand.terminated))
            log.append(repr(demand))
        return log

    assert history(load(backend)) == history(SPECIFICATION)


elements = st.one_of(st.integers(0, 99), st.none())
#: None waits.
timeouts = st.sampled_from([0, 0, 0, 0.0, -1, float("nan"), "1", True])
ring_operations = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), elements),
        st.tuples(st.just("offer_many"), st.lists(elements, max_size=9)),
        st.tuples(
            st.just("offer_many"),
            st.lists(st.integers(), max_size=9).map(tuple),
            st.sampled_from([*range(-1, 9), 10**40, 1.0]),
        ),
        st.tuples(st.just("offer_many"), st.sampled_from([{1}, "ab", None])),
        st.tuples(st.just("put"), elements, timeouts),
        st.tuples(st.just("poll")),
        st.tuples(st.just("poll_many"), st.sampled_from([*range(-1, 9), 10**40, "1"])),
        st.tuples(st.just("get"), timeouts),
        st.tuples(st.sampled_from(["arm", "arm_producer"]), st.sampled_from([None, 5])),
        st.tuples(st.sampled_from(["arm", "arm_producer"])),
        st.tuples(st.sampled_from(["disarm", "disarm_producer"])),
        st.tuples(st.just("close"), ends),
        st.tuples(st.just("__len__")),
        st.tuples(st.just("__repr__")),
    ),
    max_size=30,
)


@twin
@thorough
@given(capacity=capacities, operations=ring_operations)
def test_a_ring_does_what_the_specification_does(
    backend: str, capacity: Any, operations: list[Any]
) -> None:
    def history(core: Any) -> list[Any]:
        ring = answer(lambda: core.SpscRing(capacity))
        if isinstance(ring, tuple):
            return [ring]
        log: list[Any] = []
        for name, *arguments in operations:
            if name in ("arm", "arm_producer") and not arguments:
                arguments = [lambda n=name: log.append((n, len(ring)))]
            outcome = answer(lambda n=name, a=arguments: getattr(ring, n)(*a))
            log.append((outcome, len(ring), ring.closed))
        return log

    assert history(load(backend)) == history(SPECIFICATION)


sizes = st.one_of(st.integers(-1, 9), st.sampled_from([10**30, True, 1.5]))
most = st.one_of(st.none(), sizes)
arrays = st.one_of(
    st.integers(0, 9).map(lambda n: ("i2", n, 1)),
    st.tuples(st.sampled_from(["i2", "i2", ">i2", "f4"]), st.integers(0, 9), st.integers(1, 2)),
)
record_operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), arrays),
        st.tuples(st.just("put"), arrays),
        st.tuples(st.just("read"), most),
        st.tuples(st.just("get"), most),
        st.tuples(st.just("read_into"), arrays),
        st.tuples(st.sampled_from(["reserve", "reserve", "peek", "peek"]), sizes),
        st.tuples(st.sampled_from(["commit", "commit", "release", "release"]), sizes),
        st.tuples(st.just("forget")),
        st.tuples(st.just("close"), ends),
        st.tuples(st.sampled_from(["arm", "arm_producer", "disarm", "disarm_producer"])),
        st.tuples(st.just("__len__")),
        st.tuples(st.just("__repr__")),
    ),
    max_size=40,
)


@twin
@settings(parent=thorough, max_examples=300)
@given(capacity=capacities, operations=record_operations)
def test_a_record_ring_does_what_the_specification_does(
    backend: str, capacity: Any, operations: list[Any]
) -> None:
    def history(core: Any) -> list[Any]:
        ring = answer(lambda: core.RecordRing("i2", capacity))
        if isinstance(ring, tuple):
            return [ring]
        log: list[Any] = []
        views: list[Any] = []
        stamp = 0

        def new_array(dtype: str, length: int, step: int) -> Any:
            nonlocal stamp
            stamp += 10
            return np.arange(stamp, stamp + length * step, dtype=dtype)[::step]

        def perform(name: str, arguments: list[Any]) -> Any:
            if name == "forget":
                views.clear()
                return None
            if name in ("write", "put", "read_into"):
                array = new_array(*arguments[0])
                more = [0] if name == "put" else []
                return getattr(ring, name)(array, *more), array.tolist()
            if name == "get":
                return ring.get(*arguments, 0).tolist()
            if name in ("arm", "arm_producer"):
                return getattr(ring, name)(lambda: log.append((name, len(ring))))
            if name in ("reserve", "peek"):
                view = getattr(ring, name)(*arguments)
                if name == "reserve":
                    view[:] = new_array("i2", len(view), 1)
                # Some views live on.
                if len(log) % 3 == 0:
                    views.append(view)
                return view.tolist(), view.flags.writeable
            result = getattr(ring, name)(*arguments)
            return result.tolist() if name == "read" else result

        for name, *arguments in operations:
            log.append((name, answer(lambda n=name, a=arguments: perform(n, a))))
            log.append((len(ring), ring.closed, [view.tolist() for view in views]))
        return log

    assert history(load(backend)) == history(SPECIFICATION)


serializer_operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["on_next", "try_next"]), elements),
        st.tuples(st.just("introduce"), st.none()),
        st.tuples(st.just("on_error"), st.sampled_from([Problem("signal"), None, "x"])),
        st.tuples(st.sampled_from(["on_complete", "cancel", "on_subscribe"])),
        st.tuples(st.just("request"), st.integers(1, 5)),
    ),
    max_size=14,
)


@twin
@thorough
@given(
    capacity=st.integers(1, 4),
    on_full=st.sampled_from(["error", "wait"]),
    delay_error=st.booleans(),
    fail_fast=st.booleans(),
    outer=serializer_operations,
    nested=st.dictionaries(st.integers(0, 99), serializer_operations, max_size=4),
    nested_anyhow=serializer_operations,
    raises=st.sets(
        st.sampled_from([*range(0, 99, 7), "subscribed", "complete", "error"]), max_size=3
    ),
)
def test_a_serializer_does_what_the_specification_does(
    backend: str,
    *,
    capacity: int,
    on_full: str,
    delay_error: bool,
    fail_fast: bool,
    outer: list[Any],
    nested: dict[int, list[Any]],
    nested_anyhow: list[Any],
    raises: set[Any],
) -> None:
    def history(core: Any) -> list[Any]:
        log: list[Any] = []
        budget = [12]  # of nested rounds: signals may lead to signals for ever

        class Upstream:
            def request(self, n: int) -> None:
                log.append(("upstream", n))

            def cancel(self) -> None:
                log.append("upstream cancelled")

        class Subscriber:
            def signal(self, signal: Any, inner: list[Any]) -> None:
                log.append(("signal", repr(signal)))
                if budget[0]:
                    budget[0] -= 1
                    perform(inner)
                if signal in raises:
                    raise Problem(repr(signal))

            def on_subscribe(self, subscription: Any) -> None:
                self.signal("subscribed", nested_anyhow)

            def on_next(self, element: Any) -> None:
                self.signal(element, nested.get(element, []))

            def on_error(self, error: BaseException) -> None:
                log.append(repr(error))
                self.signal("error", nested_anyhow)

            def on_complete(self) -> None:
                self.signal("complete", nested_anyhow)

        def perform(operations: list[Any]) -> None:
            for name, *arguments in operations:
                given_arguments = [Upstream()] if name == "on_subscribe" else arguments
                method = getattr(serializer, name.replace("introduce", "on_subscribe"))
                outcome = answer(lambda m=method, a=given_arguments: m(*a))
                log.append((name, arguments, outcome, serializer.queued))

        serializer = core.SignalSerializer(
            Subscriber(),
            capacity=capacity,
            on_full=on_full,
            delay_error=delay_error,
            fail_fast=fail_fast,
        )
        perform(outer)
        return log

    assert history(load(backend)) == history(SPECIFICATION)


# -- fused runs -----------------------------------------------------------------------------------
def size(x: Any) -> int:
    return x if isinstance(x, int) else sum(map(size, x)) + len(x)


def counted(function: Callable[..., Any], raise_at: int | None, kind: type[Exception]) -> Any:
    """``function``, which raises at its ``raise_at``-th call."""
    calls = 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == raise_at:
            raise kind(raise_at)
        return function(*arguments)

    return call


#: The functions of stages that need one of their own; ``k`` is drawn. The others get ``_plain``.
FUNCTIONS: dict[str, Callable[[int], Callable[..., Any]]] = {
    "map": lambda k: (
        lambda x: None if k == 9 and size(x) % 23 == 7 else [x] if k == 8 else size(x) + 1
    ),
    "map_not_none": lambda k: lambda x: x if size(x) % k else None,
    "take_while": lambda k: lambda x: size(x) < 15 * k,
    "skip_while": lambda k: lambda x: size(x) % k < k - 1,
    "distinct_until_changed": lambda k: lambda x: size(x) // k,
}


def _plain(k: int) -> Callable[..., Any]:
    return lambda *xs: sum(map(size, xs[:-1])) + size(xs[-1]) % k


functions = st.tuples(
    st.integers(2, 9),  # the function's parameter
    st.one_of(st.none(), st.none(), st.integers(1, 60)),  # the call at which it raises
    st.sampled_from([Problem, StopIteration]),
    st.booleans(),  # a Python function, or not
)
NUMBERS = [0, 1, 2, 3, 5, 7, 17, 40, 2**40, 10**30]
stages = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                *(name for name, kind in STAGES.items() if kind.least is None and not kind.seeded),
                *("map", "filter"),
            ]
        ),
        functions,
    ),
    st.tuples(st.sampled_from([name for name, kind in STAGES.items() if kind.optional]), st.none()),
    st.tuples(
        st.sampled_from([name for name, kind in STAGES.items() if kind.seeded]),
        functions,
        st.sampled_from([MISSING, 0, 5]),
    ),
    *(
        st.tuples(st.just(name), st.sampled_from([n for n in NUMBERS if n >= kind.least]))
        for name, kind in STAGES.items()
        if kind.least is not None
    ),
)


def program_of(stages: list[Any]) -> Any:
    """A program with functions of its own, for one backend."""
    program = []
    for name, *arguments in stages:
        if STAGES[name].least is None and arguments[0] is not None:
            (k, raise_at, kind, python), *seed = arguments
            function = counted(FUNCTIONS.get(name, _plain)(k), raise_at, kind)
            program.append((name, function if python else functools.partial(function), *seed))
        else:
            program.append((name, *arguments))
    return tuple(program)


limits = st.sampled_from([1, 2, 7, 8, 9, 30, 200, 10**30])
run_operations = st.lists(
    st.one_of(
        st.tuples(st.just("drain"), limits),
        st.tuples(st.just("drain"), limits),
        st.tuples(st.just("drain"), st.sampled_from([0, -1, True, 1.5])),
        st.tuples(st.sampled_from(["cancel", "terminate"])),
        st.tuples(st.just("push"), st.integers(1, 99)),
        st.tuples(st.just("request"), st.sampled_from([1, 2, 20, UNBOUNDED])),
        st.tuples(st.just("feed"), st.integers(1, 20)),
        st.tuples(st.just("finish")),
    ),
    max_size=14,
)


@twin
@settings(parent=thorough, max_examples=300)
@given(
    first=st.sampled_from([0, 1, 5]),
    stages=st.lists(stages, max_size=5),
    source=st.sampled_from(["range", "generator", "ring", "none inside", "raises", "push"]),
    length=st.integers(0, 150),
    slot=st.sampled_from(["function", "partial", "ring"]),
    initial=st.sampled_from([0, 1, 5, 50, UNBOUNDED]),
    cancel_at=st.one_of(st.none(), st.integers(0, 30)),
    slot_raises_at=st.one_of(st.none(), st.none(), st.integers(1, 40)),
    operations=run_operations,
)
def test_a_fused_run_does_what_the_specification_does(
    backend: str,
    *,
    first: int,
    stages: list[Any],
    source: str,
    length: int,
    slot: str,
    initial: int,
    cancel_at: int | None,
    slot_raises_at: int | None,
    operations: list[Any],
) -> None:
    def history(core: Any) -> list[Any]:
        log: list[Any] = []
        demand = core.DemandCounter(initial)
        feeding = core.SpscRing(500)
        taking = core.SpscRing(25)

        def generate() -> Any:
            yield from range(length)
            if source == "none inside":
                yield None
            if source == "raises":
                raise Problem("source")

        def deliver(element: Any) -> bool:
            log.append(repr(element))
            if cancel_at is not None and len(log) > cancel_at:
                demand.cancel()
            return False

        delivering = counted(deliver, slot_raises_at, Problem)
        taker = {"function": delivering, "partial": functools.partial(delivering), "ring": taking}
        givers = {"range": range(length), "ring": feeding, "push": None}
        feeding.offer_many(list(range(1, length + 1)))
        run = core.FusedRun(
            givers.get(source, generate()) if source in givers else generate(),
            program_of(stages),
            taker[slot],
            demand,
        )
        log.append(run.ratio)
        for name, *arguments in operations:
            if name in ("request", "cancel", "terminate"):
                getattr(demand, name)(*arguments)
            elif name == "feed":
                feeding.offer_many(list(range(arguments[0])))
            else:
                status = answer(lambda n=name, a=arguments: getattr(run, n)(*a))
                log.append((name, status, run.refund if status is RunStatus.DROPPED else None))
            log.append((run.pulled, demand.value, repr(run.error), taking.poll_many(10)))
        return log

    with generated_after(first):
        found = history(load(backend))
    assert found == history(SPECIFICATION)


# -- windows --------------------------------------------------------------------------------------
@twin
@settings(parent=thorough, max_examples=60)
@given(
    items=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["ok"] * 8 + ["raise", "none"]), st.integers(0, 5)
        ),
        max_size=30,
    ),
    concurrency=st.integers(1, 5),
    capacity=st.integers(1, 6),
    ordered=st.booleans(),
    dedupe=st.booleans(),
    burst=st.integers(1, 4),
)
def test_a_window_does_what_the_specification_does(
    backend: str,
    *,
    items: list[Any],
    concurrency: int,
    capacity: int,
    ordered: bool,
    dedupe: bool,
    burst: int,
) -> None:
    """Calls of zero to three steps of the loop each; what comes out, and that the bounds hold."""

    async def fn(item: Any) -> Any:
        steps, outcome, value = item
        for _ in range(steps):
            await asyncio.sleep(0)
        if outcome == "raise":
            raise Problem(repr(item))
        return None if outcome == "none" else (steps, value)

    async def history(core: Any) -> Any:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        results: list[Any] = []
        position = 0

        def pump() -> None:
            nonlocal position
            while True:
                taken = window.take(burst)
                results.extend(taken)
                count = window.submit_many(items, position)
                position += count
                assert window.running <= concurrency
                assert window.ready <= window.pending <= capacity
                if not (count or taken):
                    break
            failed = window.failure is not None and window.running == 0
            if (failed or len(results) == len(items)) and not done.done():
                done.set_result(None)

        window = core.CallWindow(
            fn,
            loop=loop,
            on_ready=pump,
            concurrency=concurrency,
            capacity=capacity,
            ordered=ordered,
            dedupe=dedupe,
        )
        loop.call_soon(pump)
        async with asyncio.timeout(DEADLINE):
            await done
        assert window.max_running <= concurrency
        assert window.max_pending <= capacity
        assert window.permits.pending == concurrency
        return results, window.failure

    ours, failure = asyncio.run(history(load(backend)))
    theirs, expected_failure = asyncio.run(history(SPECIFICATION))
    assert (failure is None) == (expected_failure is None)
    if failure is None:
        assert ours == theirs if ordered else sorted(map(repr, ours)) == sorted(map(repr, theirs))
    elif ordered:
        # Turns of the loop may differ by one, and with them how far the others came.
        wanted = [None if o == "none" else (s, v) for s, o, v in items]
        assert ours == wanted[: len(ours)]
