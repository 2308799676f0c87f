"""The time-out of a call is a cancellation of its task, as asyncio knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE
from tests.spark.conftest import Frozen


def task() -> asyncio.Task[Any]:
    current = asyncio.current_task()
    assert current is not None
    return current


async def in_a_future() -> None:
    await asyncio.get_running_loop().create_future()


async def in_turns() -> None:
    while True:  # noqa: ASYNC110 - a wait without a future
        await asyncio.sleep(0)


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(asyncio.sleep(DEADLINE))


async def in_a_time_of_its_own() -> None:
    async with asyncio.timeout(DEADLINE):
        await asyncio.sleep(DEADLINE)


async def with_its_future_just_done() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(0.01, lambda: loop.call_soon(future.set_result, 1))
    await future
    await loop.create_future()


async def with_another_error() -> None:
    try:
        await asyncio.sleep(DEADLINE)
    except asyncio.CancelledError:
        raise TimeoutError("no answer of the service") from None


WAYS: list[Callable[[], Awaitable[None]]] = [
    in_a_future,
    in_turns,
    in_a_group,
    in_a_time_of_its_own,
    with_its_future_just_done,
    with_another_error,
]


@pytest.mark.parametrize("how", ["a task", "a window", "nested"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_takes_too_long_is_cancelled(
    way: Callable[[], Awaitable[None]], how: str
) -> None:
    log = list[int]()

    @rsf.Policy(timeout=0.01, deadline=DEADLINE if how == "nested" else None)
    async def call() -> None:
        try:
            await way()
        finally:
            log.append(task().cancelling())

    async def ended(_: int) -> int:
        """Call it as this task; return how often the task is cancelled afterwards."""
        with pytest.raises(TimeoutError, match=r"^no answer"):
            await call()
        return task().cancelling()

    if how == "a window":
        assert rsf.range_(64).map_async(ended, concurrency=8).to_list() == [0] * 64
        assert log == [1] * 64
    else:
        assert asyncio.run(ended(1)) == 0
        assert log == [1]


async def test_the_other_of_two_cancellations_wins() -> None:
    @rsf.Policy(timeout=0.01)
    async def call() -> None:
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            outer.cancel("the program's own")
            await asyncio.sleep(DEADLINE)

    outer = asyncio.create_task(call())
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert outer.cancelling() == 1


@pytest.mark.parametrize("error", [ConnectionError("cut off"), rsf.RetryAfter(0)], ids=repr)
async def test_a_cancelled_call_is_not_made_again(error: Exception) -> None:
    calls = []

    async def call() -> None:
        calls.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    made = asyncio.create_task(rsf.Policy(retry=rsf.Retry(2, backoff=0))(call)())
    await asyncio.sleep(0)
    made.cancel()
    await asyncio.wait([made], timeout=DEADLINE)
    assert made.done()
    assert made.exception() is error
    assert len(calls) == 1


async def _refused() -> None:
    await asyncio.sleep(0)
    raise ConnectionError("refused")


async def ends_before_the_body() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_refused())
        await asyncio.sleep(DEADLINE)


async def ends_after_the_body() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_refused())
        group.create_task(asyncio.sleep(DEADLINE))


async def ends_in_another_group() -> None:
    async with asyncio.TaskGroup():
        await ends_after_the_body()


async def ends_with_an_error_of_its_own() -> None:
    try:
        await ends_after_the_body()
    except ExceptionGroup:
        raise ConnectionError("no answer") from None


@pytest.mark.parametrize("how", ["a task", "a window"])
@pytest.mark.parametrize("words", [{}, {"timeout": DEADLINE, "deadline": DEADLINE}])
@pytest.mark.parametrize(
    "group",
    [
        ends_before_the_body,
        ends_after_the_body,
        ends_in_another_group,
        ends_with_an_error_of_its_own,
    ],
)
def test_a_call_whose_task_group_fails_is_made_again(
    group: Callable[[], Awaitable[None]], words: dict[str, float], how: str
) -> None:
    calls = []

    @rsf.Policy(retry=rsf.Retry(2, backoff=0), **words)  # type: ignore[arg-type]
    async def call(x: int) -> int:
        calls.append(x)
        if len(calls) < 3:
            await group()
        return x

    async def once() -> int:
        assert await call(7) == 7
        return task().cancelling()

    if how == "a window":
        assert rsf.range_(7, 8).map_async(call).to_list() == [7]
    else:
        assert asyncio.run(once()) == 0
    assert calls == [7, 7, 7]


async def test_a_cancelled_call_whose_task_group_fails_is_not_made_again() -> None:
    calls = []

    async def fails_to_clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("cut off")

    @rsf.Policy(retry=rsf.Retry(2, backoff=0))
    async def call() -> None:
        calls.append(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_to_clean_up())

    made = asyncio.create_task(call())
    for _ in range(3):
        await asyncio.sleep(0)
    made.cancel()
    await asyncio.wait([made], timeout=DEADLINE)
    assert isinstance(made.exception(), ExceptionGroup)
    assert made.cancelling() == 1
    assert len(calls) == 1


@pytest.mark.parametrize("deadline", [None, DEADLINE])
@pytest.mark.parametrize("error", [Frozen(1), rsf.RetryAfter(0), TimeoutError("no answer")])
async def test_a_cancelled_task_cleans_up_under_the_whole_policy(
    error: Exception, deadline: float | None
) -> None:
    calls, ends = list[int](), list[Any]()

    @rsf.Policy(timeout=0.01, deadline=deadline, retry=rsf.Retry(2, backoff=0))
    async def roll_back() -> None:
        calls.append(1)
        if type(error) is TimeoutError:
            await asyncio.Event().wait()
        elif type(error) is Frozen or len(calls) < 3:
            raise error

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await roll_back()
            except Exception as raised:
                ends.append(raised)

    made = asyncio.create_task(work())
    await asyncio.sleep(0)
    made.cancel()
    with pytest.raises(asyncio.CancelledError):
        await made
    assert made.cancelling() == 1
    assert len(calls) == 3
    if type(error) is not rsf.RetryAfter:
        assert type(ends[0]) is type(error)
        assert ends[0].__notes__ == ["rstreams_fast: this was attempt 3 of 3"]


async def test_a_deadline_tells_the_error_of_the_latest_attempt() -> None:
    @rsf.Policy(deadline=0.05, retry=rsf.Retry(1, backoff=DEADLINE, jitter=0))
    async def call() -> None:
        raise OSError("refused")

    with pytest.raises(TimeoutError, match="no answer within") as late:
        await call()
    assert str(late.value.__cause__) == "refused"
