"""``Budget``: what calls may spend in all, in one process and in the workers of a job."""

from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.budget import account_of
from tests.helpers import wait_until
from tests.spark.processes import OtherProcess
from tests.spark.stages import K, as_async, parts, same, values


def of_a_worker(budget: rs.Budget) -> rs.Budget:
    """Return the budget as a worker has it, which leases from this process."""
    found: rs.Budget = pickle.loads(pickle.dumps(budget))
    return found


places = pytest.mark.parametrize("worker", [False, True])
kinds = pytest.mark.parametrize("plain", [False, True])


@places
@kinds
def test_as_many_calls_are_made_as_there_are(worker: bool, plain: bool, name: str) -> None:
    budget, made = rs.Budget(name, calls=500, money=1e9), list[int]()
    used = of_a_worker(budget) if worker else budget

    def fn(k: int) -> int:
        made.append(k)
        if k % 10 == 0:
            raise OSError("an attempt that failed")
        return k

    policy = rs.Policy(budget=used, retry=rs.Retry(1, backoff=0), circuit=rs.Circuit(5000))
    asked = policy(fn if plain else as_async(fn))
    look = rs.lookup(asked, pa.int64(), concurrency=16, on_failure="column")
    outcomes = values(look, range(1000))
    refused = [each["error"] for each in outcomes if "BudgetSpentError" in str(each)]
    assert len(made) == 500
    assert 400 <= len(refused) <= 600
    assert budget.left["calls"] == 0
    more = rs.Budget(name, calls=502, money=1e9)  # what was spent stays spent
    asked = rs.Policy(budget=more)(as_async(fn))
    assert values(rs.lookup(asked, pa.int64()), [1, 2]) == [1, 2]
    assert more.spent["calls"] == 502


def test_a_plain_function_of_batches_has_a_budget(name: str) -> None:
    budget, made = rs.Budget(name, calls=2, scope="process"), list[int]()

    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        made.append(batch["k"][0].as_py())
        return batch

    stage = rs.map_batches(rs.Policy(budget=budget)(fn), K, concurrency=1)
    with pytest.raises(rs.BudgetSpentError, match="there are no calls left"):
        list(stage.as_map_fn()(parts(50, 10)))
    assert made == [0, 10]
    assert budget.spent == {"calls": 2}


@places
@kinds
def test_other_units_overshoot_by_the_calls_in_flight(worker: bool, plain: bool, name: str) -> None:
    budget, most = rs.Budget(name, tokens=1000), 8

    def call(_: int) -> None:
        rs.spent(tokens=70)

    async def acall(k: int) -> None:
        await asyncio.to_thread(call, k)

    fn = rs.Policy(budget=of_a_worker(budget) if worker else budget)(call if plain else acall)
    if plain:
        with ThreadPoolExecutor(most) as pool:
            calls = [pool.submit(fn, k) for k in range(100)]
        found: list[Any] = [call.exception() for call in calls]
    else:

        async def main() -> list[Any]:
            found = list[Any]()
            for _ in range(100 // most):
                calls = (fn(k) for k in range(most))
                found += await asyncio.gather(*calls, return_exceptions=True)
            return found

        found = asyncio.run(main())
    refused = sum(isinstance(each, rs.BudgetSpentError) for each in found)
    made = len(found) - refused
    assert 1000 / 70 * (0.7 if worker else 1) <= made <= 1000 / 70 + most
    if not worker:
        assert budget.spent["tokens"] == 70 * made


async def test_what_was_estimated_counts_until_the_function_tells(name: str) -> None:
    """A call that waits has taken its estimate; one that is cancelled has spent nothing."""
    budget = rs.Budget(name, calls=100, tokens=50)
    limit = rs.Limit(name, units={"tokens": rs.per_second(1e6)}, weigh=lambda _: 60)

    go_on = asyncio.Event()

    @rs.Policy(budget=budget, limit=limit)
    async def fn(_: int) -> None:
        await go_on.wait()
        rs.spent(tokens=1)

    first = asyncio.ensure_future(fn(0))
    await asyncio.sleep(0.1)
    with pytest.raises(rs.BudgetSpentError, match="there are no tokens left"):
        await fn(1)
    go_on.set()
    await first
    assert budget.left == {"calls": 99, "tokens": 49}
    for _ in range(10):
        await fn(2)
    assert budget.spent == {"calls": 11, "tokens": 11}


@pytest.mark.parametrize("has_circuit", [False, True])
@kinds
def test_a_call_counts_though_another_circuit_is_open(
    has_circuit: bool, plain: bool, name: str
) -> None:
    budget, made = rs.Budget(name, calls=3, tokens=100, scope="process"), list[int]()
    limit = rs.Limit(name, units={"tokens": rs.per_second(1e6)}, weigh=lambda _: 10)
    outer = rs.Policy(budget=budget, limit=limit, circuit=rs.Circuit(100) if has_circuit else None)

    @rs.Policy(circuit=rs.Circuit(1, reset=60))
    def inner(_: int) -> None:
        raise OSError("down")

    def call(k: int) -> None:
        made.append(k)
        inner(k)

    fn: Any = outer(call if plain else as_async(call))
    with asyncio.Runner() as runner:
        for k in range(5):
            with pytest.raises((OSError, rs.CircuitOpenError, rs.BudgetSpentError)):
                fn(k) if plain else runner.run(fn(k))
    assert made == [0, 1, 2]
    assert budget.spent == {"calls": 3, "tokens": 30}


async def test_a_call_that_its_own_circuit_stops_after_the_limit_spends_nothing(name: str) -> None:
    budget = rs.Budget(name, calls=3, scope="process")
    limit = rs.Limit(name, concurrency=1, scope="process")

    @rs.Policy(budget=budget, limit=limit, circuit=rs.Circuit(1, reset=60))
    async def fn(_: int) -> None:
        await asyncio.sleep(0)
        raise OSError("down")

    first, second = await asyncio.gather(fn(0), fn(1), return_exceptions=True)
    assert (type(first), type(second)) == (OSError, rs.CircuitOpenError)
    assert budget.spent == {"calls": 1}


def test_a_circuit_does_not_count_the_spent_budget_of_another_function(name: str) -> None:
    inner = rs.Policy(budget=rs.Budget(name, calls=1, scope="process"))(str)
    outer = rs.Policy(circuit=rs.Circuit(2, reset=60))(inner)
    assert outer(0) == "0"
    for k in range(5):
        with pytest.raises(rs.BudgetSpentError):
            outer(k)


WORKER = """
import pickle, sys
import rstreams_fast.spark as rs

made = 0

def call(_):
    global made
    made += 1

fn = rs.Policy(budget=pickle.loads(bytes.fromhex(sys.argv[1])))(call)
for line in sys.stdin:
    made = 0
    for k in range(int(line)):
        try:
            fn(k)
        except rs.BudgetSpentError:
            break
    print(made, flush=True)
"""


@pytest.fixture
def workers() -> Iterator[Any]:
    with ExitStack() as stack:
        yield lambda budget: stack.enter_context(OtherProcess(WORKER, pickle.dumps(budget).hex()))


@pytest.mark.slow
def test_workers_share_a_budget_though_they_are_killed(name: str, workers: Any) -> None:
    """What a killed worker has leased counts as spent, so never too much is."""
    budget = rs.Budget(name, calls=10_000)
    made = 0
    for _ in range(4):
        one, other = workers(budget), workers(budget)
        made += int(one.tell(300)) + int(other.tell(300))
        one.kill()
    assert made == 8 * 300
    last = workers(budget)
    wait_until(lambda: budget.spent["calls"] >= 4 * 300, "that the driver has noticed")
    made += int(last.tell(20_000))
    assert 0.75 * 10_000 <= made <= 10_000


def test_what_a_stage_has_left_goes_to_others(name: str) -> None:
    budget = rs.Budget(name, calls=100)
    stage = rs.lookup(rs.Policy(budget=of_a_worker(budget))(same), pa.int64())
    assert values(stage, range(3)) == [0, 1, 2]
    del stage
    gc.collect()
    wait_until(lambda: budget.left == {"calls": 97}, "that the lease has come back")
    assert budget.spent == {"calls": 3}


@pytest.mark.parametrize("stage_ends", [False, True])
def test_what_calls_tell_after_the_last_lease_survives_a_broken_connection(
    stage_ends: bool, name: str
) -> None:
    budget = rs.Budget(name, money=1.0)
    account: Any = account_of(of_a_worker(budget))
    account.refill()
    _, left = account.amounts()
    assert account.take(left)
    account_of(budget).add({"money": 1.0})
    account.refill()
    assert account.amounts() == ({}, {})  # nothing is left, and a call is in flight
    account.add({"money": 0.5})
    with account._connection as connection:
        connection.shutdown(socket.SHUT_RDWR)
        if stage_ends:  # it was the worker's last, and cannot report what was spent
            user = ExitStack()
            account.join(user)
            del user
        account._spent_until = 0.0  # ask again at once
        account.refill()
    assert budget.spent == {"money": left["money"] + 1.0 + 0.5}


def pay(k: int) -> int:
    rs.spent(money=0.5)
    return k


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_process_gives_its_lease_back_when_it_ends(method: str, name: str) -> None:
    budget = rs.Budget(name, calls=1000, money=100)
    call = rs.Policy(budget=budget)(pay)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(call, range(8))) == list(range(8))
    wait_until(lambda: budget.left == {"calls": 992, "money": 96}, "that the leases have come back")
    assert budget.spent == {"calls": 8, "money": 4}


@kinds
def test_a_newer_budget_raises_the_amounts_of_earlier_functions(plain: bool, name: str) -> None:
    def fn(k: int) -> int:
        return k

    call: Any = rs.Policy(budget=rs.Budget(name, calls=1))(fn if plain else as_async(fn))

    def result() -> Any:
        return call(1) if plain else asyncio.run(call(1))

    assert result() == 1
    with pytest.raises(rs.BudgetSpentError):
        result()
    rs.Budget(name, calls=2)
    assert result() == 1


def test_words_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Budget\(calls\) must be finite"):
        rs.Budget("name", calls=math.nan)
    with pytest.raises(TypeError, match=r"Budget\(calls\) must be a number, got bytes"):
        rs.Budget("name", calls=b"3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bounds nothing"):
        rs.Budget("name")
    with pytest.raises(TypeError, match=r"Budget\(calls\) must be a number"):
        rs.Budget("name", calls="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Budget\(calls\) must be a whole number, got 2\.5"):
        rs.Budget("name", calls=2.5)
    with pytest.raises(TypeError, match="counts them itself"):
        rs.spent(calls=1)
    assert rs.Budget("b", calls=10, money=1.5).describe() == (
        "budget 'b': 10 calls, 1.5 money, by the whole job"
    )
