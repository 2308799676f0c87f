"""A plain function with a policy: called by threads, which block where a coroutine would wait."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import rstreams_fast as rsf
from rstreams_fast.calls import guarded
from rstreams_fast.calls.limits.blocking import BlockingGate
from tests.helpers import (
    DEADLINE,
    Counted,
    Problem,
    run_python,
    run_threads,
    start_thread,
    wait_for,
    wait_until,
)
from tests.spark.stages import scopes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex}"


class Service:
    """Counts the calls that it is in. A failing call raises before it ends."""

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.running = Counted()
        self.most = 0
        self.calls = list[int]()
        self.fails = fails

    def call(self, key: int) -> int:
        self.most = max(self.most, self.running.add())
        self.calls.append(key)
        try:
            time.sleep(0.001)  # so that calls of other threads overlap
            if self.fails(key):
                raise Problem(key)
            return 2 * key
        finally:
            self.running.add(-1)


class Held:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = Counted(), threading.Event()

    def call(self) -> None:
        self.begun.add()
        wait_for(self.go_on, "the end of the call")


def limit_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("rstreams-fast-limit")]


@scopes
@pytest.mark.parametrize("functions", [1, 2])
def test_threads_never_make_more_calls_than_the_limit(
    scope: str, functions: int, name: str
) -> None:
    service = Service(lambda key: key % 3 == 0)
    limit = rsf.Limit(name, concurrency=4, scope=scope)
    calls = [rsf.Policy(limit=limit)(service.call) for _ in range(functions)]

    def work(first: int) -> list[int]:
        found = []
        for key in range(first, first + 40):
            try:
                found.append(calls[key % functions](key))
            except Problem:
                found.append(-1)
        return found

    found = run_threads([lambda first=first: work(40 * first) for first in range(16)])
    assert [*chain(*found)] == [-1 if key % 3 == 0 else 2 * key for key in range(640)]
    assert sorted(service.calls) == list(range(640))
    assert service.most <= 4
    wait_until(lambda: not limit_threads(), "the end of the limit's threads")
    held = Held()  # the permits of calls that raised have come back
    hold = rsf.Policy(limit=limit)(held.call)
    threads = [start_thread(hold) for _ in range(4)]
    held.begun.wait_until(4)
    held.go_on.set()
    for thread in threads:
        thread.result()


def test_calls_begin_at_the_rate_of_the_limit(name: str) -> None:
    begun = list[float]()
    call = rsf.Policy(limit=rsf.Limit(name, rate=200))(lambda: begun.append(time.monotonic()))
    run_threads([lambda: [call() for _ in range(5)]] * 8)
    assert len(begun) == 40
    assert max(begun) - min(begun) >= 38 / 200


@scopes
def test_a_permit_is_held_by_a_running_attempt_alone(scope: str, name: str) -> None:
    limit = rsf.Limit(name, concurrency=1, scope=scope)
    held, again, calls = Held(), threading.Event(), list[str]()

    @rsf.Policy(limit=limit, retry=rsf.Retry(1, backoff=1.5, jitter=0))
    def repeated() -> None:
        calls.append("failed")
        raise Problem

    waits = start_thread(repeated)
    wait_until(lambda: calls, "the first attempt")
    rsf.Policy(limit=limit)(again.set)()
    assert calls == ["failed"]  # the other call waits for its next attempt

    cached = rsf.Policy(limit=limit, cache=rsf.Cache())(calls.append)
    guarded = rsf.Policy(limit=limit, circuit=rsf.Circuit(1, reset=DEADLINE))(lambda: 1 / 0)
    cached("kept")
    with pytest.raises(ZeroDivisionError):
        guarded()
    holds = start_thread(rsf.Policy(limit=limit)(held.call))
    held.begun.wait_until(1)
    cached("kept")  # neither waits for the permit
    with pytest.raises(rsf.CircuitOpenError):
        guarded()
    held.go_on.set()
    holds.result()
    with pytest.raises(Problem):
        waits.result()
    assert sorted(calls) == ["failed", "failed", "kept"]


@scopes
def test_retry_after_holds_the_limit_for_all(scope: str, name: str) -> None:
    limit, asked, begun = rsf.Limit(name, concurrency=3, scope=scope), list[float](), list[float]()

    @rsf.Policy(limit=limit)
    def refused() -> str:
        if not asked:
            asked.append(time.monotonic())
            raise rsf.RetryAfter(0.3)
        return "answered"

    other = rsf.Policy(limit=limit)(lambda: begun.append(time.monotonic()))
    first = start_thread(refused)
    wait_until(lambda: asked, "the refused attempt")
    time.sleep(0.05)  # the refusal is on its way to the limit
    run_threads([other] * 6)
    assert first.result() == "answered"
    assert min(begun) - asked[0] >= 0.3


def test_it_waits_for_no_permit_that_cannot_come(name: str) -> None:
    limit = rsf.Limit(name, concurrency=1, scope="job")
    limit.__dict__["address"] = limit.served_at._replace(token=b"another")
    with pytest.raises(RuntimeError, match="the driver no longer serves the limit"):
        rsf.Policy(limit=limit, retry=rsf.Retry(5, backoff=0))(print)()


def test_an_interrupted_wait_leaves_its_permit_to_others(name: str) -> None:
    hold = Held()
    limit = rsf.Limit(name, concurrency=1)
    call = rsf.Policy(limit=limit)(lambda: 1)
    first = start_thread(rsf.Policy(limit=limit)(hold.call))
    hold.begun.wait_until(1)

    waits = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: len(limit_threads()) == 2, "the wait for a permit")
        signal.pthread_kill(waits, signal.SIGINT)

    interrupts = start_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        call()
    interrupts.result()
    hold.go_on.set()
    first.result()
    assert run_threads([call] * 4) == [1] * 4


FORKS = """
import os, sys, threading
from rstreams_fast import Limit, Policy

call = Policy(limit=Limit(sys.argv[1], concurrency=1))(lambda do: do())

def fork():
    child = os.fork()
    if not child:
        return  # the permit of this call is the parent's
    assert os.waitpid(child, 0)[1] == 0
    print("waited", flush=True)

parent = os.getpid()
assert threading.active_count() == 1
call(lambda: None)
call(fork)
if os.getpid() != parent:
    assert threading.active_count() == 1
    os._exit(0)
call(lambda: print("goes on", flush=True))
child = os.fork()
call(lambda: print("child" if not child else "parent", flush=True))
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_each_process_of_a_fork_has_permits_of_its_own(name: str) -> None:
    told = run_python("-W", "ignore", "-c", FORKS, name, cwd=ROOT).stdout.split("\n")
    assert told[:2] == ["waited", "goes on"]
    assert sorted(told[2:]) == ["", "child", "parent"]


ENDS = """
import sys, threading, time
from rstreams_fast import Limit, Policy

call = Policy(limit=Limit(sys.argv[1], concurrency=1))(lambda do: do())

def work():
    threading.main_thread().join()
    for _ in range(3):
        call(lambda: print("called", flush=True))
        time.sleep(0.3)  # in which the limit's thread ends

for _ in range(4):
    threading.Thread(target=work).start()
call(lambda: None)
"""


def test_threads_that_outlive_the_main_thread_go_on(name: str) -> None:
    done = run_python("-c", ENDS, name, cwd=ROOT)
    assert done.stdout == "called\n" * 12
    assert not done.stderr


def test_an_unused_limit_has_no_thread_and_may_change_its_numbers(name: str) -> None:
    call = rsf.Policy(limit=rsf.Limit(name, concurrency=1))(lambda: None)
    for _ in range(3):
        call()
        assert limit_threads()
        time.sleep(0.05)  # calls that follow each other keep it
    wait_until(lambda: not limit_threads(), "the end of the limit's thread")
    call()
    wait_until(lambda: not limit_threads(), "the end of the limit's thread")
    assert rsf.Policy(limit=rsf.Limit(name, concurrency=2))(lambda: 3)() == 3


@pytest.mark.parametrize("raised", [rsf.RetryAfter(1e12), OSError()], ids=repr)
def test_a_thread_sleeps_however_long_the_wait_is(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry, results = rsf.Retry(1, backoff=1e11, max_backoff=1e11, jitter=0), iter([raised, None])

    @rsf.Policy(retry=retry, patience=float("inf"))
    def fn() -> int:
        if (error := next(results)) is not None:
            raise error
        return 1

    sleeps = list[float]()
    monkeypatch.setattr(guarded.time, "sleep", sleeps.append)
    assert fn() == 1
    assert sleeps == [guarded.LONGEST_SLEEP]


@pytest.mark.parametrize("circuit", [None, rsf.Circuit(4)], ids=["", "circuit"])
def test_failed_attempts_are_made_again(circuit: rsf.Circuit | None) -> None:
    calls: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        raise rsf.RetryAfter(0) if len(calls) == 2 else Problem

    policy = rsf.Policy(retry=rsf.Retry(2, backoff=0), circuit=circuit)
    with pytest.raises(Problem) as raised:
        policy(call)(1, key=2)
    assert raised.value.__notes__ == ["rstreams_fast: this was attempt 3 of 3"]
    assert calls == [((1,), {"key": 2})] * 4  # RetryAfter is no attempt
    if circuit is not None:
        with pytest.raises(rsf.CircuitOpenError):  # the fourth failure in a row has opened it
            policy(call)()
        assert len(calls) == 5


def test_a_cache_answers_equal_calls() -> None:
    calls = list[Any]()

    @rsf.Policy(cache=rsf.Cache(), retry=rsf.Retry(1, backoff=0))
    def look(key: object, *, scale: int = 1) -> object:
        calls.append(key)
        if len(calls) == 1:
            raise Problem
        return key

    found = run_threads([lambda: [look(1), look(1.0), look(True), look(1, scale=2)]] * 4)
    assert all(list(map(type, some)) == [int, float, bool, int] for some in found)
    assert look(1) == 1
    made = len(calls)
    run_threads([lambda: look(1)] * 4)
    assert len(calls) == made
    by_key = rsf.Policy(cache=rsf.Cache(), key=lambda client, key: key)(lambda client, key: client)
    assert [by_key({"unhashable": 1}, 7), by_key({}, 7)] == [{"unhashable": 1}] * 2
    nested = rsf.Policy(cache=rsf.Cache())(lambda *args, **words: repr((args, words)))
    of_key = rsf.Policy(cache=rsf.Cache(), key=lambda value: value)(repr)
    twice = dt.datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    for some in (
        [1, 1.0, True],
        [(1,), (1.0,), ((True,),)],
        [frozenset({1}), frozenset({True})],
        [0.0, -0.0, 0j, complex(0, -0.0)],
        [(0.0,), (-0.0,), frozenset({0.0}), frozenset({-0.0})],
        [Decimal(1), Decimal("1.0")],
        [twice, twice.replace(fold=1), (twice,), (twice.replace(fold=1),)],
        [dt.time(9), dt.time(9, fold=1), dt.time(9, tzinfo=twice.tzinfo)],
    ):
        assert len({nested(value) for value in some}) == len(some)
        assert len({of_key(value) for value in some}) == len(some)
        assert len({nested(1, value=value) for value in some}) == len(some)
    with pytest.raises(TypeError, match=r"Policy\(key\) must return a hashable value"):
        rsf.Policy(cache=rsf.Cache(), key=lambda key: [key])(lambda key: key)(1)


def test_a_function_that_returns_a_coroutine_is_told_of_async_def() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match=r"returned a coroutine.*'async def'"):
        rsf.Policy(retry=rsf.Retry(1))(lambda: later())()  # noqa: PLW0108


def test_an_awaitable_is_refused_since_it_would_run_without_the_policy() -> None:
    closed = list[object]()

    class Request(Coroutine[Any, Any, None]):
        """What the ``session.get`` of aiohttp returns is a coroutine of such a type."""

        def send(self, value: Any, /) -> Any: ...

        def throw(self, *error: Any) -> Any: ...

        def __await__(self) -> Generator[Any, Any, None]:
            yield

        def close(self) -> None:
            closed.append(self)

    async def program() -> None:
        policy, task = rsf.Policy(retry=rsf.Retry(1)), asyncio.ensure_future(asyncio.sleep(0))
        for made in (Request, lambda: task):
            with pytest.raises(TypeError, match="without the policy: surround an 'async def'"):
                policy(made)()
        await task

    asyncio.run(program())
    assert list(map(type, closed)) == [Request]


def test_a_generator_is_refused_since_its_body_would_run_without_the_policy() -> None:
    def some() -> Iterator[int]:
        yield 1

    async def others() -> AsyncIterator[int]:
        yield 1

    managers = contextlib.contextmanager(some), contextlib.asynccontextmanager(others)
    for made in (some, others, *managers):
        with pytest.raises(TypeError, match=f"{made.__name__} is a generator"):
            rsf.Policy(cache=rsf.Cache())(made)()


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("blocking.py", "_reuses"),
        ("blocking.py", "_next_ticket"),
        ("counts.py", "__exit__"),
        ("executors.py", "process_id"),
        ("ids.py", "set_call"),
        ("ids.py", "reset_call"),
        ("nesting.py", "end"),
    ],
)
def test_an_exception_of_a_signal_keeps_no_permit(file: str, function: str, name: str) -> None:
    """A signal's exception may come where any function begins: a trace function raises there."""
    call = rsf.Policy(limit=rsf.Limit(name, concurrency=1, scope="process"))(abs)
    code_of: list[str] = []

    def strike(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.endswith(file):
            code_of.append(function)
            if len(code_of) == nth:
                sys.settrace(None)
                raise Problem(function)

    def interrupted() -> int:
        before = sys.gettrace()
        sys.settrace(strike)
        try:
            return call(-1)
        except Problem:
            return 0
        finally:
            sys.settrace(before)

    def work() -> int:
        assert call(-1) == 1
        interrupted()
        return call(-1)

    for nth in (1, 2, 3):
        code_of.clear()
        assert start_thread(work).result() == 1
        assert nth > 1 or code_of


@pytest.mark.parametrize(
    ("method", "args"),
    [("hold", (0.0,)), ("spend", ((1.0,),)), ("adopt_remaining", ((99.0,), (1.0,)))],
)
def test_an_exception_of_a_signal_keeps_no_loop(
    method: str, args: tuple[Any, ...], name: str
) -> None:
    units = {"tokens": rsf.per_second(1000)}
    gate = BlockingGate(rsf.Limit(name, scope="process", units=units, weigh=len))

    def strike(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "_run" and code.co_filename.endswith("blocking.py"):
            sys.settrace(None)
            raise Problem(method)

    def work() -> None:
        gate.take((1.0,)).release()
        sys.settrace(strike)
        try:
            with pytest.raises(Problem):
                getattr(gate, method)(*args)
        finally:
            sys.settrace(None)

    start_thread(work).result()
    wait_until(lambda: not limit_threads(), "the end of the loop's thread")
