"""A function with a policy is used as a function is: as a method, in a partial, in a pickle."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import gc
import inspect
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, Problem, run_python, run_threads, wait_until

ROOT = Path(__file__).parents[2]

TWICE = rsf.Policy(retry=rsf.Retry(1, backoff=0))


@TWICE
def plain(x: int, *, y: int = 0) -> tuple[int, int]:
    """Return both."""
    return x, y


@TWICE
async def awaited(x: int, *, y: int = 0) -> tuple[int, int]:
    """Return both, later."""
    await asyncio.sleep(0)
    return x, y


class Client:
    """Fails at the first call."""

    def __init__(self) -> None:
        self.calls = 0

    def _look(self, x: int, y: int) -> tuple[int, int]:
        self.calls += 1
        if self.calls == 1:
            raise Problem
        return x, y

    @TWICE
    def plain(self, x: int, *, y: int = 0) -> tuple[int, int]:
        return self._look(x, y)

    @TWICE
    async def awaited(self, x: int, *, y: int = 0) -> tuple[int, int]:
        await asyncio.sleep(0)
        return self._look(x, y)

    @classmethod
    @TWICE
    def of_class(cls, x: int, *, y: int = 0) -> tuple[int, int]:
        return cls()._look(x, y) if cls is not Client else (x, y)

    @staticmethod
    @TWICE
    async def of_none(x: int, *, y: int = 0) -> tuple[int, int]:
        return x, y


class Called:
    """An object whose attributes are its own, and not its policy's."""

    def __init__(self) -> None:
        self._latest = self._settings = self.policy = "mine"

    def __call__(self, x: int, *, y: int = 0) -> tuple[int, int]:
        return x, y


class Awaited(Called):
    async def __call__(self, x: int, *, y: int = 0) -> tuple[int, int]:  # type: ignore[override]
        return x, y


class Base:
    def look(self, x: int, *, y: int = 0) -> tuple[int, int]:
        return x, y


FUNCTIONS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "plain": (plain, "plain", False),
    "awaited": (awaited, "awaited", True),
    "method": (Client().plain, "Client.plain", False),
    "async method": (Client().awaited, "Client.awaited", True),
    "class method": (Client.of_class, "Client.of_class", False),
    "static method": (Client.of_none, "Client.of_none", True),
    "object": (TWICE(Called()), "Called", False),
    "async object": (TWICE(Awaited()), "Awaited", True),
    "partial": (TWICE(partial(plain.fn, y=0)), "plain", False),  # type: ignore[attr-defined]
    "async partial": (TWICE(partial(awaited.fn, y=0)), "awaited", True),  # type: ignore[attr-defined]
    "in a partial": (partial(awaited, y=0), "awaited", True),
    "bound": (TWICE(Base().look), "Base.look", False),
    "twice": (TWICE(Client().awaited), "Client.awaited", True),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_it_is_called_and_named_as_the_function(kind: str) -> None:
    fn, name, suspends = FUNCTIONS[kind]
    if kind != "in a partial":
        asked = inspect if sys.version_info >= (3, 12) else asyncio
        assert asked.iscoroutinefunction(fn) is suspends
    assert list(inspect.signature(fn).parameters) == ["x", "y"]

    def call() -> Any:
        result = fn(1, y=2)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    assert [call(), call()] == [(1, 2)] * 2

    stream = rsf.range_(3)
    if suspends:
        stage = stream.map_async(fn)
        for refuses in (stream.map, stream.map_blocking):
            with pytest.raises(TypeError, match="map_async"):
                refuses(fn)
    else:
        stage = stream.map_blocking(fn)
        assert stream.map(fn).to_list() == [(x, 0) for x in range(3)]
    assert stage.to_list() == [(x, 0) for x in range(3)]
    if kind != "in a partial":  # whose name streams do not look for
        assert f"{name})" in stage.describe()


def test_python_binds_what_it_would_bind_without_the_policy() -> None:
    class Lengths:
        of_builtin = TWICE(len)
        of_partial = TWICE(partial(max, 2))
        of_lambda = TWICE(lambda self, x: (type(self), x))

    assert Lengths().of_builtin([1]) == 1
    assert Lengths().of_partial(1) == 2
    assert Lengths().of_lambda(1) == (Lengths, 1)


def test_an_async_key_is_refused_as_its_coroutine_would_be_the_key() -> None:
    async def key(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="key must be a plain function, not a coroutine function"):
        rsf.Policy(cache=rsf.Cache(), key=key)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_abstract_method_stays_abstract(is_async: bool) -> None:
    async def later(_: Any) -> None: ...

    def now(_: Any) -> None: ...

    method = TWICE(abc.abstractmethod(later if is_async else now))
    kind = abc.ABCMeta("Abstract", (), {"method": method})
    with pytest.raises(TypeError, match="abstract method"):
        kind()


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_policy_above_a_static_method_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"put @{kind.__name__} above the policy"):
        TWICE(kind(len))


def test_a_stream_names_the_function_that_returned_none() -> None:
    @TWICE
    async def nothing(x: int) -> None: ...

    @TWICE
    def no_thing(x: int) -> None: ...

    stream = rsf.range_(3)
    with pytest.raises(TypeError, match=r"<locals>\.nothing, that of map_async, returned None"):
        stream.map_async(nothing).run()
    with pytest.raises(TypeError, match=r"<locals>\.no_thing, that of map_blocking, returned None"):
        stream.map_blocking(no_thing).run()


def test_two_policies_surround_a_function_each() -> None:
    calls = list[int]()

    @rsf.Policy(retry=rsf.Retry(1, backoff=0))
    @rsf.Policy(retry=rsf.Retry(2, backoff=0))
    def fails(x: int) -> None:
        calls.append(x)
        raise Problem

    with pytest.raises(Problem):
        fails.fn(1)  # type: ignore[attr-defined] # the inner one has made calls before
    assert len(calls) == 3
    with pytest.raises(Problem):
        fails(1)
    assert len(calls) == 3 + 6


# -- pickles ---------------------------------------------------------------------------------------


SCRIPT = """
from rstreams_fast import Limit, Policy

limit = Limit("pickled", concurrency=1, scope="job")

@Policy(limit=limit)
def fetch(x):
    return x
"""


@pytest.mark.parametrize("kind", ["plain", "awaited", "class method", "static method"])
def test_any_pickle_finds_a_named_function(kind: str) -> None:
    fn, name, suspends = FUNCTIONS[kind]
    arrived = pickle.loads(pickle.dumps(fn))
    assert arrived.counts.stage == name
    result = arrived(3, y=4)
    assert (asyncio.run(result) if suspends else result) == (3, 4)


@rsf.Policy(cache=rsf.Cache(scope="executor"))
def told_once(x: int) -> int:
    print("called", x)
    return 2 * x


def test_a_named_function_finds_its_results_in_each_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("lmdb")
    assert told_once(7) == 14
    assert capsys.readouterr().out == "called 7\n"
    load = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1]))(7))"
    done = run_python("-c", load, pickle.dumps(told_once).hex(), cwd=ROOT)
    assert done.stdout == "14\n"


def test_cloudpickle_takes_along_what_another_process_does_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    offset = 10
    local = TWICE(lambda x: x + offset)
    local(1)  # with what belongs to this process in it
    assert cloudpickle.loads(cloudpickle.dumps(local))(1) == 11

    script = ModuleType("a_users_script")
    monkeypatch.setitem(sys.modules, "a_users_script", script)
    exec(SCRIPT, vars(script))
    by_name = pickle.dumps(script.fetch)
    arrived: Any = pickle.loads(by_name)
    assert arrived.fn is script.fetch.fn
    assert arrived.policy.limit.served_at == script.limit.served_at
    assert "address" in vars(arrived.policy.limit)  # which the module of a worker does not know
    cloudpickle.register_pickle_by_value(script)
    try:
        by_value = cloudpickle.dumps(script.fetch)
    finally:
        cloudpickle.unregister_pickle_by_value(script)
    monkeypatch.delitem(sys.modules, "a_users_script")
    assert cloudpickle.loads(by_value).policy == arrived.policy
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(by_name)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_function_tells_what_its_calls_came_to(kind: str) -> None:
    """Calls of several threads, each of which has its own loop if it needs one."""
    seen = list[int]()
    failing = {7: Problem, 8: ValueError, 9: ValueError}

    def answer(k: int) -> int:
        seen.append(k)
        if k in failing:
            raise failing[k]
        if seen.count(k) == 1 and k % 2:
            raise rsf.RetryAfter(0.001) if k % 4 == 1 else OSError
        return k

    async def look(k: int) -> int:
        await asyncio.sleep(0)
        return answer(k)

    words: Any = {"retry": rsf.Retry(1, backoff=0.001, on=OSError), "cache": rsf.Cache()}
    call = rsf.Policy(**words)(answer if kind == "plain" else look)

    async def each(ks: range) -> list[Any]:
        return await asyncio.gather(*map(call, ks), return_exceptions=True)

    def work(ks: range) -> None:
        for _ in range(2):
            if kind == "async":
                asyncio.run(each(ks))
            for k in ks if kind == "plain" else ():
                with contextlib.suppress(Problem, ValueError):
                    call(k)

    parts = [range(start, start + 10) for start in range(0, 100, 10)]
    run_threads([partial(work, part) for part in parts])
    counts = call.counts  # type: ignore[attr-defined]
    assert (counts.stage, counts.attempts) == (
        "answer" if kind == "plain" else "look",
        len(seen),
    )
    assert (counts.calls, counts.cache_hits) == (103, 97)
    assert (counts.retries, counts.throttled) == (24, 24)
    assert counts.failure_types == {"Problem": 2, "ValueError": 4}
    assert sum(counts.latencies.values()) == len(seen)
    assert counts.latency(1.0) < DEADLINE
    assert counts.waited_service >= 0.024
    assert counts.waited_retry > 0
    assert call.counts.calls == 103  # type: ignore[attr-defined]


def test_calls_count_when_threads_run_a_loop_in_turn() -> None:
    @rsf.Policy(retry=rsf.Retry(1))
    async def look(key: int) -> int:
        return key

    call: Any = look
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        for key in range(3):
            run_threads([lambda: loop.run_until_complete(call(key))])  # noqa: B023
            assert call.counts.calls == key + 1
    assert call.counts.calls == 3


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_circuit_of_several_threads_counts_its_open_seconds_once(kind: str) -> None:
    def fail() -> None:
        raise Problem

    async def fail_on_loop() -> None:
        raise Problem

    policy = rsf.Policy(circuit=rsf.Circuit(1, reset=DEADLINE))
    call: Any = policy(fail if kind == "plain" else fail_on_loop)

    def make(run: Callable[[Any], Any]) -> None:
        with contextlib.suppress(Problem, rsf.CircuitOpenError):
            run(call())

    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        if kind == "plain":
            begun_all = threading.Barrier(8)
            run_threads([lambda: (make(bool), begun_all.wait(DEADLINE))] * 8)
        else:
            for _ in range(8):
                make(stack.enter_context(asyncio.Runner()).run)
        until = begun + 3 * (time.monotonic() - begun)
        wait_until(lambda: time.monotonic() > until, "some time with an open circuit")
        assert 0 < call.counts.circuit_open <= time.monotonic() - begun
    assert 0 < call.counts.circuit_open <= time.monotonic() - begun


def test_a_hundred_calls_that_all_fail_alike_are_pointed_out_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails_alike(k: int) -> int:
        raise Problem(k)

    def fails_at_times(k: int) -> int:
        if k:
            raise Problem(k)
        return k

    def make_calls(call: Callable[[int], int], keys: range) -> None:
        for k in keys:
            with contextlib.suppress(Problem):
                call(k)

    for fn in (fails_alike, fails_at_times):
        make_calls(rsf.Policy()(fn), range(300))
    in_two_threads = rsf.Policy()(fails_at_times)
    in_two_threads(0)
    run_threads([lambda: make_calls(in_two_threads, range(1, 300))])
    (record,) = caplog.records
    assert "fails_alike: the first 100 calls have all failed with Problem" in record.getMessage()


@pytest.mark.parametrize("scope", ["process", "executor"])
@pytest.mark.parametrize("in_flight", [0, 3])
def test_a_loop_that_is_closed_without_a_word_keeps_no_permit(scope: str, in_flight: int) -> None:
    limit = rsf.Limit(uuid.uuid4().hex, concurrency=1, scope=scope)

    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    calls = [rsf.Policy(limit=limit)(sleep) for _ in range(2)]

    async def leave(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            waiting = [calls[0](seconds) for _ in range(in_flight or 1)]
            await asyncio.wait_for(asyncio.shield(asyncio.gather(*waiting)), 0.05)

    for call in (*calls, *calls):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave(DEADLINE if in_flight else 0))
        loop.close()  # and no shutdown_asyncgens
        assert asyncio.run(asyncio.wait_for(call(0), DEADLINE)) == 0
    gc.collect()  # what was in flight
    assert calls[0].counts.calls == 4 * (in_flight or 1) + 2  # type: ignore[attr-defined]


def test_the_garbage_collector_may_end_a_call_at_any_moment() -> None:
    @rsf.Policy(circuit=rsf.Circuit(1000))
    async def call(fails: bool) -> None:
        if fails:
            raise Problem
        await asyncio.get_running_loop().create_future()

    def collect(frame: FrameType, event: str, _: object) -> None:
        if event == "c_call" and Path(frame.f_code.co_filename).name == "circuit.py":
            if cycles:  # a call that waits, and that only the collector can end
                cycles.pop()
            gc.collect()

    async def main() -> None:
        for _ in range(10):
            cycle: list[Any] = [call(False)]
            cycle[0].send(None)
            cycle.append(cycle)
            cycles.append(cycle)
        del cycle
        sys.setprofile(collect)
        for _ in range(5):
            with pytest.raises(Problem):
                await call(True)

    cycles: list[Any] = []
    try:
        asyncio.run(main())
    finally:
        sys.setprofile(None)
    assert not cycles


def test_no_repr_shows_what_a_partial_holds() -> None:
    def of(secret: str, key: int) -> int:
        return key

    holds = partial(of, "secret")
    limit = rsf.Limit("held", units={"tokens": rsf.per_second(1)}, weigh=holds)
    policy = rsf.Policy(limit=limit, key=holds)
    batching = rs.Batching(8, weight=5, weigh=holds)
    assert "secret" not in repr(policy) + repr(limit) + repr(policy(holds)) + repr(batching)
