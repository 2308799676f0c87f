"""Limits of functions: calls within calls, and permits that no call uses any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from rstreams_fast.calls.limits.job_permits import JobPermits, LimitLost
from rstreams_fast.calls.limits.nesting import Holder, NestedCall
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.usage import Usage
from tests.helpers import DEADLINE
from tests.spark.stages import values

LIMIT = rsf.Limit("nested", concurrency=2, scope="process")
PLACES = {
    "same": (LIMIT, True),
    "same name": (rsf.Limit("nested", concurrency=9, scope="process"), True),
    "other": (rsf.Limit("nested, other", concurrency=2, scope="process"), False),
    "other scope": (rsf.Limit("nested", concurrency=2), False),
}


on_this_host = pytest.mark.parametrize("scope", ["process", "executor"])


async def inner(x: int) -> int:
    return x + 1


def in_asyncio(first: Any, second: Any) -> list[int]:
    async def outer(x: int) -> int:
        return int(await first(x)) + 1

    async def call_all() -> list[int]:
        call = second(outer)
        return await asyncio.gather(*(call(x) for x in range(8)))

    return asyncio.run(call_all())


def on_threads(first: Any, second: Any) -> list[int]:
    def outer(x: int) -> int:
        return int(asyncio.run(first(x))) + 1

    return list(rsf.range_(8).map_blocking(second(outer), concurrency=8))


def in_a_stage(first: Any, second: Any) -> list[int]:
    async def outer(x: int) -> int:
        return int(await first(x)) + 1

    return values(rs.lookup(second(outer), pa.int64(), concurrency=8), range(8))


@pytest.mark.parametrize("run", [in_asyncio, on_threads, in_a_stage])
@pytest.mark.parametrize("place", PLACES)
def test_a_call_within_a_call_of_its_limit_is_refused(run: Any, place: str) -> None:
    limit, refused = PLACES[place]
    first, second = rsf.Policy(limit=limit)(inner), rsf.Policy(limit=LIMIT, retry=rsf.Retry(2))
    if refused:
        with pytest.raises(RuntimeError, match="runs under the limit 'nested'"):
            run(first, second)
    else:
        assert run(first, second) == [x + 2 for x in range(8)]


@pytest.mark.parametrize("run", [in_asyncio, on_threads, in_a_stage])
@pytest.mark.parametrize("inner_is_bounded", [False, True])
def test_concurrency_of_either_limit_of_a_name_refuses(
    run: Any, inner_is_bounded: bool, name: str
) -> None:
    rate = rsf.Limit(name, rate=1000.0, scope="process")
    bound = rsf.Limit(name, concurrency=1, scope="process")  # the newest, which applies to both
    first, second = (bound, rate) if inner_is_bounded else (rate, bound)
    with pytest.raises(RuntimeError, match="runs under the limit"):
        run(rsf.Policy(limit=first)(inner), rsf.Policy(limit=second))


def test_a_rate_has_no_permits_to_hold() -> None:
    limit = rsf.Limit("nested rate", rate=1000.0, scope="process")
    assert in_asyncio(rsf.Policy(limit=limit)(inner), rsf.Policy(limit=limit)) == list(range(2, 10))


async def test_what_a_call_left_behind_may_call() -> None:
    tasks = list[asyncio.Task[int]]()
    policy, begin = rsf.Policy(limit=LIMIT), asyncio.Event()

    async def later() -> int:
        await begin.wait()
        return int(await policy(inner)(1))

    async def outer() -> None:
        tasks.append(asyncio.create_task(later()))

    await policy(outer)()
    begin.set()
    assert await tasks[0] == 2


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
async def test_calls_in_a_row_of_tasks_keep_no_ended_calls(
    units: bool, overlap: bool, name: str
) -> None:
    quotas: Any = {"units": {"u": rsf.per_second(1e9)}, "weigh": abs} if units else {}
    limit = rsf.Limit(name, scope="process", concurrency=None if overlap else 1, rate=1e9, **quotas)
    running, ended = [asyncio.Event() for _ in range(101)], asyncio.Event()

    def linked(kind: type[NestedCall]) -> int:
        found = [each for each in gc.get_objects() if type(each) is kind]
        return len([each for each in found if getattr(each, "limit", limit) is limit])

    @rsf.Policy(limit=limit)
    async def link(left: int) -> None:
        running[left].set()
        if left:
            task = asyncio.create_task(link(left - 1))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if overlap:  # this call ends after the next call has begun
                await running[left - 1].wait()
        else:
            gc.collect()
            counts.extend([linked(Holder), linked(Usage)])
            ended.set()

    tasks, counts = set[asyncio.Task[None]](), list[int]()
    await link(100)
    await asyncio.wait_for(ended.wait(), DEADLINE)
    await asyncio.gather(*tasks)
    assert max(counts) < 10


@on_this_host
def test_a_loop_that_is_not_running_keeps_no_permit(scope: Any, name: str) -> None:
    limit = rsf.Limit(name, concurrency=2, scope=scope)
    call = rsf.Policy(limit=limit)(inner)

    async def call_twice() -> list[int]:
        return await asyncio.gather(call(1), call(2))

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        assert loop.run_until_complete(call_twice()) == [2, 3]
        assert asyncio.run(asyncio.wait_for(call(3), DEADLINE)) == 4


@on_this_host
async def test_a_call_that_is_closed_while_it_waits_takes_no_permit(scope: Any, name: str) -> None:
    limit = rsf.Limit(name, concurrency=1, scope=scope)
    may_end = asyncio.Event()

    @rsf.Policy(limit=limit)
    async def wait() -> None:
        await may_end.wait()

    running = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting: Any = wait()
    waiting.send(None)
    waiting.close()
    may_end.set()
    await running
    await asyncio.wait_for(wait(), DEADLINE)


@pytest.mark.parametrize("words", [{}, {"burst": 2}, {"concurrency": 200}], ids=str)
@on_this_host
async def test_cancelled_calls_use_up_no_rate(scope: Any, words: Any, name: str) -> None:
    """The cancelled calls alone would take two minutes, and their first ones 40 seconds."""
    policy = rsf.Policy(limit=rsf.Limit(name, scope=scope, rate=1, **words))
    await policy(inner)(1)
    functions = [policy(inner) for _ in range(40)]
    tasks = [asyncio.create_task(call(1)) for call in functions for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    call = policy(inner)
    await asyncio.wait_for(asyncio.gather(call(1), call(2)), DEADLINE)


@pytest.mark.parametrize("is_connected", [False, True])
async def test_calls_go_on_after_the_program_has_cancelled_its_tasks(
    is_connected: bool, name: str
) -> None:
    """A limit of the job connects in a task of the program's loop: at first, and once again."""
    call: Any = rsf.Policy(limit=rsf.Limit(name, concurrency=2, scope="job"))(inner)
    if is_connected:
        await asyncio.wait_for(call(1), DEADLINE)
        gate = call._latest[2]
        gate._source._connection.abort()
        await asyncio.sleep(0)
        assert gate._source._connection is None
    cancelled = asyncio.create_task(call(1))
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(tasks) > 1
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert cancelled.cancelled()
    assert await asyncio.wait_for(call(2), DEADLINE) == 3


async def test_calls_fail_if_connecting_raises_an_unexpected_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_memory(*_: object) -> None:
        raise MemoryError

    call = rsf.Policy(limit=rsf.Limit(name, concurrency=2, scope="job"))(inner)
    with monkeypatch.context() as patched:
        patched.setattr(JobPermits, "_connect_to_driver", no_memory)
        with pytest.raises(LimitLost, match="MemoryError"):
            await asyncio.wait_for(call(1), DEADLINE)
    assert await asyncio.wait_for(call(1), DEADLINE) == 2


@on_this_host
async def test_calls_that_are_cancelled_while_they_are_held_back_leave_nothing(
    scope: Any, name: str
) -> None:
    limit = rsf.Limit(name, concurrency=2, scope=scope)
    gate = PermitGate(limit, asyncio.get_running_loop())
    gate.release(await asyncio.wait_for(gate.acquire(), DEADLINE))
    gate.hold(60)
    for _ in range(3):
        waiting = [asyncio.ensure_future(gate.acquire()) for _ in range(2)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    source: Any = gate._source
    assert source._shared.pace._free == []
    gate.close()


@on_this_host
def test_loops_that_end_use_up_no_rate(scope: Any, name: str) -> None:
    call = rsf.Policy(limit=rsf.Limit(name, rate=1.0, scope=scope))(inner)

    async def waiting() -> None:
        task = asyncio.create_task(call(1))
        await asyncio.sleep(0)
        task.cancel()

    assert asyncio.run(call(1)) == 2
    for _ in range(40):
        asyncio.run(waiting())
    assert asyncio.run(asyncio.wait_for(call(1), DEADLINE)) == 2


@pytest.mark.parametrize("limit", [None, LIMIT, rsf.Limit("clean-up", concurrency=2)])
def test_a_loop_that_closes_its_generators_may_still_call(limit: Any) -> None:
    call: Any = rsf.Policy(limit=limit)(inner)
    ends: list[int] = []

    async def rows() -> AsyncIterator[int]:
        try:
            yield await call(1)
        finally:
            ends.append(await call(2))

    async def main() -> None:
        for each in made:
            assert await anext(each) == 2

    made = [rows() for _ in range(9)]
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
        for _ in range(3):
            assert loop.run_until_complete(asyncio.wait_for(call(3), DEADLINE)) == 4
    assert ends == [3] * 9
    assert asyncio.run(asyncio.wait_for(call(3), DEADLINE)) == 4
    assert call.counts.calls == 9 + 9 + 3 + 1
