"""Limits in a service's own units: estimates, what was spent, and what the service says is left."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE
from tests.spark.stages import as_async, result_of, scopes, values

A_SECOND = rs.per_second(1000)
A_DAY = rs.per_minute(1000 / 1440)
AT_ONCE = 1 / 60
"""Seconds of a quota that may be spent at once."""


def limit(scope: str = "process", quota: Any = A_SECOND, **words: Any) -> rs.Limit:
    words = {"weigh": lambda *args: args[-1], **words}
    return rs.Limit(uuid.uuid4().hex, scope=scope, units={"tokens": quota}, **words)


async def called(fn: Any, *weights: float, seconds: float = DEADLINE) -> None:
    await asyncio.wait_for(asyncio.gather(*map(fn, weights)), seconds)


@scopes
@pytest.mark.parametrize("plain", [False, True])
def test_calls_wait_until_those_before_them_are_paid_for(scope: str, plain: bool) -> None:
    """A call heavier than what may be spent at once passes, and delays the others."""
    begun, one_at_a_time = list[tuple[float, int]](), threading.Lock()

    def call(tokens: int) -> None:
        with one_at_a_time:
            begun.append((time.monotonic(), tokens))

    weights, start = [30, 300, 1, 2, 40] * 2, time.monotonic()
    fn = rs.Policy(limit=limit(scope))(call if plain else as_async(call))
    if plain:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fn, weights))
    else:
        asyncio.run(called(fn, *weights))
    paid = -300 if plain else 0  # a thread may be overtaken when it has its permit
    for at, tokens in begun:
        assert at - start >= paid / 1000 - AT_ONCE - 0.002
        paid += tokens
    assert sorted(tokens for _, tokens in begun) == sorted(weights)


@scopes
async def test_what_a_call_has_spent_replaces_its_estimate(scope: str) -> None:
    """What is given back may be spent at once, and what is taken delays others."""

    @rs.Policy(limit=limit(scope, A_DAY))
    async def modest(tokens: int) -> None:
        await asyncio.to_thread(rs.spent, tokens=0)

    for _ in range(20):
        await called(modest, 500)

    @rs.Policy(limit=limit(scope, A_DAY, weigh=lambda _: 0))
    async def greedy(tokens: int) -> None:
        rs.spent(tokens=tokens / 2)
        rs.spent(tokens=tokens / 2)

    await called(greedy, 500)
    with pytest.raises(TimeoutError):
        await called(greedy, 1, seconds=0.2)


@scopes
async def test_calls_that_were_not_made_have_spent_nothing(scope: str) -> None:
    """Refused ones, and those that were cancelled while they waited."""
    shared = limit(scope, rs.per_minute(60_000))

    @rs.Policy(limit=shared, patience=0)
    async def refused(_: int) -> None:
        raise rs.RetryAfter(0.001)

    @rs.Policy(limit=shared)
    async def fn(_: int) -> None: ...

    for _ in range(40):
        with pytest.raises(rs.RetryAfter):
            await called(refused, 2000)  # two seconds' worth
    await called(fn, 2000)
    waiting = [asyncio.ensure_future(fn(1_000_000)) for _ in range(3)]
    await asyncio.sleep(0.2)
    for call in waiting:
        call.cancel()
    await asyncio.wait(waiting)
    await called(fn, 1)


@scopes
@pytest.mark.parametrize("told", [{}, {"reset": 0.4}])
async def test_a_limit_follows_what_the_service_says(scope: str, told: dict[str, float]) -> None:
    left, quota = [1e9], A_SECOND if not told else rs.per_second(1e6)

    @rs.Policy(limit=limit(scope, quota, weigh=lambda _: 1))
    async def fn(_: int) -> float:
        at = time.monotonic()
        rs.observed(tokens_left=left[0], **(told if left[0] < 100 else {}))
        return at

    begin = time.monotonic()
    await called(fn, *range(10))
    assert time.monotonic() - begin < (0.4 if told else DEADLINE)
    left[0] = 0.0
    before = await fn(0)
    left[0] = 1e9
    assert await fn(0) >= before + (0.4 if told else AT_ONCE) - 0.005


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[str]:
    yield "client"


@pytest.mark.parametrize("batch", [None, 5])
def test_a_stage_weighs_keys_without_the_client(batch: int | None) -> None:
    """A list of keys has the sum of its keys."""
    weighed, metrics = list[Any](), rs.Metrics()

    def weigh(*key: Any) -> int:
        weighed.append(key)
        return 1

    async def fn(given: str, keys: Any) -> Any:
        assert given == "client"
        rs.spent(tokens=7)
        return keys

    limited = rs.Policy(limit=limit(weigh=weigh, quota=rs.per_second(1e6)))(fn)
    words: Any = {} if batch is None else {"batch": batch}
    stage = rs.lookup(limited, pa.int64(), using=client, metrics=metrics, **words)
    assert values(stage, range(10)) == list(range(10))
    assert sorted(weighed) == [(k,) for k in range(10)]
    calls = 10 if batch is None else 2
    assert metrics.totals().spent == {"tokens": 7 * calls}


@scopes
async def test_each_quota_holds_and_another_limit_of_the_name_forgives(scope: str) -> None:
    name, slow = uuid.uuid4().hex, {"tokens": rs.per_minute(60), "bytes": rs.per_minute(6000)}

    async def fn(tokens: int, size: int) -> None: ...

    def under(**units: Any) -> Any:
        weigh = lambda tokens, size: {"tokens": tokens, "bytes": size}  # noqa: E731
        return rs.Policy(limit=rs.Limit(name, scope=scope, units=units, weigh=weigh))(fn)

    for spent in ((100, 0), (0, 10_000)):
        await asyncio.wait_for(under(**slow)(*spent), DEADLINE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(under(**slow)(0, 1), 0.2)
        await asyncio.wait_for(under(tokens=A_SECOND, bytes=A_SECOND)(1, 1), DEADLINE)


@pytest.mark.parametrize(
    ("weigh", "match"),
    [
        *[(weigh, r"Limit\(weigh\)") for weigh in (lambda _: "x", lambda _: -1)],
        *[(lambda _: {"words": 1}, r"Limit\(weigh\)"), (lambda _: {}["tokens"], "tokens")],
    ],
)
async def test_what_weigh_does_wrong_is_the_failure_of_the_call(weigh: Any, match: str) -> None:
    weighed = list[int]()

    def counted(key: int) -> Any:
        weighed.append(key)
        return weigh(key)

    retry = rs.Retry(3, backoff=0, on=Exception)

    @rs.Policy(limit=limit(weigh=counted), retry=retry)
    async def fn(_: int) -> None:
        raise AssertionError

    with pytest.raises((TypeError, ValueError, KeyError), match=match):
        await fn(0)
    assert weighed == [0]  # it is no attempt that failed, and no further one is made


def test_amounts_are_checked() -> None:
    rs.spent(tokens=1)  # outside of a call: nothing happens
    rs.observed(tokens_left=1, reset=1)
    for amount in (-1, math.nan, math.inf, 10**400):
        with pytest.raises(ValueError, match=r"spent\(tokens\) must be finite"):
            rs.spent(tokens=amount)
        with pytest.raises(ValueError, match=r"per_second\(amount\) must be finite and > 0"):
            rs.per_second(amount)
        with pytest.raises(ValueError, match=r"Limit\(rate\) must be finite and > 0"):
            rs.Limit("rate", rate=amount)
    with pytest.raises(TypeError, match=r"observed\(tokens\): a unit's name and '_left'"):
        rs.observed(tokens=1)


@pytest.mark.parametrize("plain", [False, True])
def test_a_unit_that_nothing_counts_is_an_error_of_the_call(plain: bool) -> None:
    """No further attempt is made, and a policy that counts no units takes any."""
    made = list[dict[str, float]]()

    def report(**units: float) -> None:
        made.append(units)
        rs.spent(**units)

    async def areport(**units: float) -> None:
        await asyncio.to_thread(report, **units)

    fn: Any = report if plain else areport
    retry, one = rs.Retry(3, backoff=0), limit(weigh=lambda **units: 1)
    budget = rs.Budget(uuid.uuid4().hex, scope="process", money=9, calls=9)
    for policy, counted in (
        (rs.Policy(limit=one, retry=retry), "tokens"),
        (rs.Policy(budget=budget, retry=retry), "money"),
        (rs.Policy(limit=one, budget=budget, retry=retry), "money, tokens"),
    ):
        with pytest.raises(TypeError, match=rf"spent\(token\): .*'token'; it counts {counted}$"):
            result_of(policy(fn)(token=1))
    assert len(made) == 3
    only_calls = rs.Budget(uuid.uuid4().hex, scope="process", calls=9)
    for policy in (rs.Policy(retry=retry), rs.Policy(budget=only_calls)):
        result_of(policy(fn)(token=1))


async def test_the_innermost_policy_that_counts_a_unit_gets_it() -> None:
    inner, outer = (rs.Budget(uuid.uuid4().hex, scope="process", **{unit: 9}) for unit in "ab")

    @rs.Policy(budget=inner)
    async def fn() -> None:
        rs.spent(a=1, b=2)

    await rs.Policy(budget=outer)(fn)()
    assert (inner.spent["a"], outer.spent["b"]) == (1, 2)


async def test_a_unit_that_no_limit_has_cannot_be_observed() -> None:
    budget = rs.Budget(uuid.uuid4().hex, scope="process", money=9)

    async def fn(_: int) -> None:
        rs.observed(token_left=1)

    with pytest.raises(TypeError, match=r"observed\(token_left\): .*'token'; it counts tokens$"):
        await rs.Policy(limit=limit(), budget=budget)(fn)(1)
    await rs.Policy(budget=budget)(fn)(1)
