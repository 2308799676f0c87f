"""The words of lookup around the function of a UDF: outside of Spark, in any loop and thread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE

AT_ONCE = rs.Retry(2, backoff=0)


class Service:
    """Fails so often, and counts."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[tuple[object, object]] = []

    def call(self, x: int, y: int = 0) -> int:
        self.calls.append((x, y))
        if len(self.calls) <= self.failures:
            raise OSError("refused")
        return x + y

    async def acall(self, x: int, y: int = 0) -> int:
        await asyncio.sleep(0)
        return self.call(x, y)


def made(service: Service, kind: str) -> Any:
    policy = rs.Policy(retry=AT_ONCE)
    if kind == "sync":
        return policy(service.call)
    call = policy(service.acall)
    return lambda *args, **kwargs: asyncio.run(call(*args, **kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ConnectionError("cut off"), rs.RetryAfter(0)], ids=repr)
def test_a_cancelled_call_is_not_made_again(error: Exception) -> None:
    calls = []

    async def call() -> None:
        calls.append(asyncio.current_task())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    async def cancel_it() -> None:
        task = asyncio.create_task(rs.Policy(retry=AT_ONCE)(call)())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE)
        assert task.done()
        assert task.exception() is error

    asyncio.run(cancel_it())
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failed_call_is_made_again(kind: str) -> None:
    service = Service(2)
    call = made(service, kind)
    assert call(1, y=2) == 3
    assert service.calls == [(1, 2)] * 3
    assert call(5) == 5  # async: on another loop
    service = Service(3)
    with pytest.raises(OSError, match="refused") as raised:
        made(service, kind)(1)
    assert raised.value.__notes__ == ["rstreams_fast: this was attempt 3 of 3"]
    assert len(service.calls) == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_other_failures_are_raised_at_once(kind: str) -> None:
    service = Service(1)
    with pytest.raises(TypeError):
        made(service, kind)(None)
    retry = rs.Retry(2, on=(ValueError,))
    with pytest.raises(OSError, match="refused"):
        rs.Policy(retry=retry)(Service(1).call)(1)


def test_an_attempt_takes_no_longer_than_its_timeout() -> None:
    attempts = []

    @rs.Policy(timeout=0.01, retry=rs.Retry(1, backoff=0))
    async def hangs() -> None:
        attempts.append(1)
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        asyncio.run(hangs())
    assert len(attempts) == 2


def test_it_travels_to_the_workers_with_the_name_of_the_function() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    offset = 10

    async def moved(x: int) -> int:
        return x + offset

    call = rs.Policy(timeout=5)(moved)
    asyncio.run(call(1))  # with what belongs to a loop in it
    arrived = cloudpickle.loads(cloudpickle.dumps(call))
    assert arrived.__name__ == "moved"
    assert asyncio.run(arrived(1)) == 11
