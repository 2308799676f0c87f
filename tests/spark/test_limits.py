"""Limits that stages share: in a process, on a host, in a job; and what a killed worker held."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, run_threads, start_thread, wait_until
from tests.spark.permits import holder, is_not_granted, soon, stages
from tests.spark.stages import K, Service, between_processes, made, parts, scopes, values


def looked_up(fn: Any, rows: int, **words: Any) -> list[int]:
    return values(made(rs.lookup, getattr(fn, "look", fn), pa.int64(), **words), range(rows))


async def all_are_back(limit: rs.Limit) -> None:
    assert limit.concurrency is not None
    async with stages(limit) as (stage,):
        await stage.begin_all(limit.concurrency)


class Begun(list[float]):
    """The times at which calls began."""

    async def look(self, k: int) -> int:
        self.append(time.monotonic())
        return k


def stage_of(kind: str, service: Service, limit: rs.Limit) -> Any:
    if kind == "lookup":
        return rs.lookup(rs.Policy(limit=limit)(service.look), pa.int64(), concurrency=8)
    if kind == "stage":
        calls = rs.Policy(limit=limit)(service.batch)
        return rs.stage(lambda stream: stream.map_async(calls, concurrency=8), K)
    called: Any = service.batch if kind == "map_batches" else service.batch_sync
    return rs.map_batches(rs.Policy(limit=limit)(called), K, concurrency=8)


@scopes
@pytest.mark.parametrize("kind", ["lookup", "map_batches", "map_batches of threads", "stage"])
def test_stages_of_one_name_share_a_limit(kind: str, scope: str, name: str) -> None:
    service = Service(meet=3)

    def work() -> int:
        stage = stage_of(kind, service, rs.Limit(name, concurrency=3, scope=scope))
        rows = parts(1, 1) * 50
        return sum(batch.num_rows for batch in stage.as_map_fn()(iter(rows)))

    assert run_threads([work, work]) == [50, 50]
    assert (len(service.calls), service.most) == (100, 3)


@scopes
@pytest.mark.parametrize("calls", [2, 4, 6])
def test_stages_with_other_windows_share_a_limit_and_leave_nothing_behind(
    scope: str, calls: int, name: str
) -> None:
    """One with a permit for each of its calls does not even count them while nobody else wants any;
    one is closed in the middle.
    """
    limit, service = rs.Limit(name, concurrency=4, scope=scope), Service(min(calls, 4))
    stage = rs.lookup(rs.Policy(limit=limit)(service.look), pa.int64(), concurrency=calls)
    first = start_thread(lambda: values(stage, range(400)))
    wait_until(lambda: len(service.calls) >= 100, "a hundred calls")

    def closed_early() -> list[int]:
        outputs: Any = stage.as_map_fn()(batch for batch in parts(10, 10) * 100)
        next(outputs)
        outputs.close()
        return []

    found = run_threads([*[lambda: values(stage, range(100))] * 2, closed_early])
    assert found == [list(range(100)), list(range(100)), []]
    assert first.result() == list(range(400))
    assert service.most <= 4
    assert service.inside == 0
    asyncio.run(all_are_back(limit))


# -- rates -----------------------------------------------------------------------------------------
@scopes
def test_a_rate_spaces_the_calls(scope: str, name: str) -> None:
    begun, start = Begun(), time.monotonic()
    limit = rs.Limit(name, rate=500, burst=10, scope=scope)
    assert looked_up(begun, 60, limit=limit) == list(range(60))
    # Each call after the first ten has a time of its own, and is never before it.
    assert all(at - start >= (index - 9) / 500 - 0.001 for index, at in enumerate(begun))


@scopes
async def test_calls_that_a_busy_worker_is_late_with_are_not_made_at_once(
    scope: str, name: str
) -> None:
    """Those of a host get other times; those of a job are granted anew when they have left."""
    async with stages(rs.Limit(name, rate=20, scope=scope)) as (stage,):
        await soon(stage.begin())
        calls = [stage.waiting() for _ in range(4)]
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - nothing else runs meanwhile
        until = time.monotonic()
        await soon(asyncio.gather(*calls))
        assert time.monotonic() >= until + 2 / 20


@pytest.mark.slow  # whether it keeps its time is a question of time
async def test_a_call_that_is_a_little_late_keeps_its_time(name: str) -> None:
    """At one in two seconds to lose it would cost two seconds, each time again."""
    async with stages(rs.Limit(name, rate=0.5)) as (stage,):
        loop = asyncio.get_running_loop()
        await soon(stage.begin())
        begin = loop.time()
        second = stage.waiting()
        loop.call_at(begin + 1.99, time.sleep, 0.03)
        await soon(second)
        assert 1.9 < loop.time() - begin < 3


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, None])
def test_the_first_call_of_a_new_limit_does_not_lose_its_time(loop_factory: Any, name: str) -> None:
    """A loop's timer may be early by a millisecond: the call would wait for its next time."""

    def first(number: int) -> list[int]:
        time.sleep(0.0037 * number)
        limit = rs.Limit(f"{name}{number}", rate=0.01)
        return looked_up(Service(), 1, limit=limit, loop_factory=loop_factory)

    assert run_threads([partial(first, n) for n in range(60)]) == [[0]] * 60


@scopes
async def test_calls_that_have_their_time_are_held_back_too(scope: str, name: str) -> None:
    async with stages(rs.Limit(name, rate=20, scope=scope)) as (stage,):
        first = await soon(stage.begin())
        calls = [stage.waiting() for _ in range(2)]
        await asyncio.sleep(0)
        held = time.monotonic()
        first.end(retry_after=0.3)
        await soon(asyncio.gather(*calls))
        assert time.monotonic() >= held + 0.3


@scopes
def test_the_word_of_the_service_holds_all_back(scope: str, name: str) -> None:
    """A shorter one does not undo it, and the next stage obeys the one that failed the last."""
    limit = rs.Limit(name, concurrency=16, scope=scope)
    begun: list[float] = []
    longer: list[float] = []

    async def fn(k: int) -> int:
        begun.append(time.monotonic())
        if k == 0 and not longer:
            longer.append(time.monotonic())
            raise rs.RetryAfter(0.3)
        if k == 1 and len(begun) <= 16:
            await asyncio.sleep(0.02)
            raise rs.RetryAfter(0.01)
        await asyncio.sleep(0.05)
        return k

    words: Any = {"limit": limit, "concurrency": 16}
    assert looked_up(fn, 64, retry=rs.Retry(1, backoff=0), **words) == list(range(64))
    assert min(begun[16:]) >= longer[0] + 0.29
    longer.clear()
    begun.clear()
    with pytest.raises(rs.RetryAfter):
        looked_up(fn, 1, patience=0, **words)
    assert looked_up(fn, 1, **words) == [0]
    assert begun[-1] >= longer[0] + 0.29


@scopes
def test_the_times_that_a_failed_stage_did_not_use_are_not_lost(scope: str, name: str) -> None:
    limit = rs.Limit(name, rate=2, scope=scope)

    async def fails(k: int) -> int:
        await asyncio.sleep(0.05)  # until the others have asked
        raise OSError(f"down: {k}")

    with pytest.raises(OSError, match="down: 0"):
        looked_up(fails, 500, limit=limit, concurrency=500)
    failed = time.monotonic()
    assert looked_up(Service(), 1, limit=limit) == [0]
    assert time.monotonic() < failed + DEADLINE  # five hundred calls take minutes


@scopes
def test_numbers_that_were_changed_are_obeyed_at_once(scope: str, name: str) -> None:
    begun = Begun()

    def work(rows: int, **numbers: Any) -> None:
        begun.clear()
        looked_up(begun, rows, limit=rs.Limit(name, scope=scope, **numbers))

    start = time.monotonic()
    work(1, rate=0.01)
    work(10, rate=1000)
    work(1, rate=0.01)
    work(50, rate=5, burst=50)
    work(1, rate=1000)
    assert time.monotonic() - start < DEADLINE  # a hundred seconds, by the former rate
    work(20, rate=100)
    start = time.monotonic()
    work(5, rate=20)
    assert begun[-1] - start >= 4 / 20 - 0.001
    for concurrency in (2, 5, 1, None, 3):
        service = Service(concurrency or 1)
        words: Any = {"rate": 1e5} if concurrency is None else {"concurrency": concurrency}
        looked_up(service, 30, limit=rs.Limit(name, scope=scope, **words), concurrency=8)
        assert service.most == concurrency or concurrency is None


# -- permits ---------------------------------------------------------------------------------------
@scopes
@pytest.mark.parametrize("beyond", [False, True])
def test_a_thread_keeps_its_permit_until_it_has_left_the_service(
    beyond: bool, scope: str, name: str
) -> None:
    """Also of a stage that has failed; ``beyond``: when nobody waits for the thread any more."""
    limit = rs.Limit(name, concurrency=2, scope=scope)
    both, leave, service = threading.Barrier(2), threading.Event(), Service()

    def blocks(k: int) -> int:
        both.wait(DEADLINE)
        if k == 0:
            raise OSError("down")
        with service.entered(k):
            leave.wait(DEADLINE)
        return k

    def fails() -> None:
        with pytest.raises(OSError, match="down"):
            looked_up(blocks, 2, limit=limit, concurrency=2)

    failing = start_thread(fails)
    try:
        wait_until(lambda: service.inside == 1, "the call that does not end")
        if beyond:
            failing.result()
        assert looked_up(service, 20, limit=limit) == list(range(20))
    finally:
        leave.set()
        failing.result()
    assert service.most <= 2
    asyncio.run(all_are_back(limit))


@scopes
def test_each_thread_that_has_left_gives_its_permit_back(
    scope: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others have it, and not those calls of the stage that waited for one when it ended."""
    limit = rs.Limit(name, concurrency=2, scope=scope)
    leave = [threading.Event(), threading.Event()]

    def blocks(k: int) -> int:
        leave[k % 2].wait(DEADLINE)
        return k

    async def main() -> None:
        async with stages(limit) as (stage,):
            for event in leave:
                call = stage.waiting()
                assert await is_not_granted(call)
                event.set()
                await soon(call)

    with pytest.raises(TimeoutError):
        looked_up(blocks, 8, limit=limit, concurrency=8, bounds=rs.Bounds(seconds=0.2))
    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("rstreams-call"):
            thread.join(DEADLINE)
    assert "Task was destroyed" not in capfd.readouterr().err


@scopes
def test_a_call_that_is_cancelled_and_tried_again_finds_no_permit(scope: str, name: str) -> None:
    limit, calls, begun = rs.Limit(name, concurrency=2, scope=scope), [0], threading.Event()

    async def fn(k: int) -> int:
        if not k:
            return k
        calls[0] += 1
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise OSError("the connection was cut") from None
        return k

    stage = rs.lookup(
        rs.Policy(limit=limit, retry=rs.Retry(9, backoff=0))(fn), pa.int64(), concurrency=2
    )
    outputs: Any = stage.as_map_fn()(iter(parts(2, 2)))
    next(outputs)
    assert begun.wait(DEADLINE)
    outputs.close()
    made = calls[0]
    asyncio.run(all_are_back(limit))
    assert calls == [made]


@scopes
async def test_permits_go_from_call_to_call_come_back_and_go_to_others(
    scope: str, name: str
) -> None:
    limit = rs.Limit(name, concurrency=1, scope=scope)
    async with stages(limit, limit) as (stage, other):
        for _ in range(3):
            first = await soon(stage.begin())
            first.end()
        first = await soon(stage.begin())
        waiting = [stage.waiting() for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        waiting[0].cancel()
        first.end()
        waiting[1].cancel()  # it has been given the permit, or is about to be
        (await soon(waiting[2])).end()
        theirs = await soon(other.begin())
        ours = stage.waiting()
        assert await is_not_granted(ours, 0.05)
        theirs.end()
        await soon(ours)


@scopes
async def test_a_stage_that_has_all_permits_lets_others_have_one(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=2, scope=scope)
    async with stages(limit, limit) as (stage, other):

        async def call_on() -> None:
            while True:
                call = await stage.begin()
                await asyncio.sleep(0.001)
                call.end()

        calling = [asyncio.create_task(call_on()) for _ in range(2)]
        await asyncio.sleep(0.01)
        await soon(other.begin())
        for task in calling:
            task.cancel()
        await asyncio.wait(calling, timeout=DEADLINE)


@scopes
def test_a_stage_with_less_permits_than_calls_waits_and_what_never_ends_keeps_none(
    scope: str, name: str
) -> None:
    limit = rs.Limit(name, concurrency=4, scope=scope)
    running: list[int] = []

    async def fn(k: int) -> int:
        if k:
            running.append(k)
            await asyncio.get_running_loop().create_future()
        return k

    outputs: Any = rs.lookup(rs.Policy(limit=limit)(fn), pa.int64(), concurrency=4).as_map_fn()(
        iter(parts(5, 5))
    )

    async def main() -> None:
        async with stages(limit) as (other,):
            await other.begin_all(3)
            await asyncio.to_thread(next, outputs)
            await asyncio.to_thread(wait_until, lambda: running, "a call that does not end")
            fourth = other.waiting()
            assert await is_not_granted(fourth, 0.05)
            await asyncio.to_thread(outputs.close)
            await soon(fourth)
            assert running == [1]

    asyncio.run(main())


@between_processes
async def test_what_a_killed_worker_held_comes_back(scope: str, name: str) -> None:
    limit = rs.Limit(name, concurrency=3, scope=scope)
    with holder(limit) as process:
        async with stages(limit) as (stage,):
            waiting = stage.waiting()
            assert await is_not_granted(waiting)
            killed = time.monotonic()
            process.kill()
            await soon(waiting)
            # What else the kernel has to end may end later than the permit.
            assert time.monotonic() >= killed + 0.05
            await stage.begin_all(2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"port": 1}, r"nobody serves the limit .*:1, where the driver is"),
        ({"token": b"another"}, "the driver no longer serves the limit"),
    ],
    ids=str,
)
def test_a_driver_that_is_gone_or_another_one_fails_the_task(
    change: dict[str, Any], said: str, name: str
) -> None:
    """At once: to try again for minutes is of no use, and it is no failure of a row."""
    limit = rs.Limit(name, concurrency=3, scope="job")
    state = limit.__getstate__()
    stranger = object.__new__(rs.Limit)
    stranger.__setstate__({**state, "address": state["address"]._replace(**change)})
    with pytest.raises(RuntimeError, match=said):
        looked_up(Service(), 10, limit=stranger, on_failure="null")
    assert looked_up(Service(), 10, limit=limit) == list(range(10))


@scopes
def test_the_numbers_of_the_limit_made_last_hold_for_all_at_once(scope: str, name: str) -> None:
    """Also for stages that are at work already, and for those of another process."""
    old, new, paced, free = (
        rs.Limit(name, scope=scope, **numbers)
        for numbers in (
            {"concurrency": 2},
            {"concurrency": 3},
            {"concurrency": 9, "rate": 20},
            {"concurrency": 9},
        )
    )

    async def main() -> None:
        async with stages(old, new, paced, free) as (first, second, third, fourth):
            waiting = [first.waiting()]
            assert scope == "process" or await is_not_granted(waiting[0])
            waiting.append(second.waiting())
            done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if scope != "process":  # of three permits the other process has two
                assert await is_not_granted(*pending)
                done.pop().result().end()
            await soon(asyncio.gather(*waiting))
            await soon(third.begin())
            await asyncio.sleep(0.05)  # in which a stage that keeps permits learns of the rate
            begin = time.monotonic()
            for _ in range(5):
                (await soon(first.begin())).end()
            assert time.monotonic() - begin >= 4 / 20 - 0.001
            await soon(fourth.begin())
            for _ in range(1000):  # at the rate before, 50 seconds
                (await soon(first.begin())).end()
            assert time.monotonic() - begin < DEADLINE

    with holder(old, 2) if scope != "process" else nullcontext():
        asyncio.run(main())


@pytest.mark.parametrize("scope", ["process", "executor"])
@pytest.mark.parametrize("numbers", [{"concurrency": 50}, {"rate": 1e5, "burst": 1000}], ids=str)
async def test_calls_beyond_a_lower_limit_pass_no_permit_on(
    numbers: Any, scope: str, name: str
) -> None:
    old, lower = rs.Limit(name, scope=scope, **numbers), rs.Limit(name, concurrency=1, scope=scope)
    async with stages(old, lower) as (stage, other):
        running = await stage.begin_all(20)
        waiting = {other.waiting(), *(stage.waiting() for _ in range(20))}
        # Meanwhile the old stage learns of the lower limit.
        granted, waiting = await asyncio.wait(waiting, timeout=0.3)
        for call in running:
            call.end()
        while waiting:
            if not granted:
                granted, waiting = await asyncio.wait(
                    waiting, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED
                )
            assert len(granted) == 1
            if waiting:
                assert not (await asyncio.wait(waiting, timeout=0.05))[0]
            granted.pop().result().end()
