"""How a stage with a limit ends, step by step: what the driver reads last, what holds, a child."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.limits import leases
from rstreams_fast.calls.limits.host_locks import locks_of
from rstreams_fast.calls.limits.permits import PermitGate
from tests.helpers import DEADLINE, run_python
from tests.spark.conftest import temporary_in, worker_environment
from tests.spark.permits import is_not_granted, soon, stages
from tests.spark.processes import OtherProcess


@pytest.mark.usefixtures("patient")
async def test_a_stage_that_ends_leaves_no_grant_behind(name: str) -> None:
    """The kernel resets a connection that ends with something unread: that looks like a break."""
    limit = rs.Limit(name, concurrency=2, scope="job")

    loop = asyncio.get_running_loop()
    gate, other = PermitGate(limit, loop), PermitGate(limit, loop)
    await soon(gate.acquire())
    permit = await soon(other.acquire())
    waiting = asyncio.ensure_future(gate.acquire())
    await asyncio.sleep(0.05)
    other.release(permit)
    other.suspend(True)  # gives it back at once
    time.sleep(0.2)  # noqa: ASYNC251 - the grant comes, and the loop does not read it
    gate.close()
    other.close()
    waiting.cancel()
    last = PermitGate(limit, loop)
    for _ in range(2):
        await soon(last.acquire())
    last.close()


@pytest.mark.usefixtures("patient")
async def test_a_stage_ends_for_a_driver_that_cannot_write_to_it(name: str) -> None:
    """A grant for which the connection is gone must not hide what the worker sent before."""
    limit = rs.Limit(name, concurrency=4, scope="job")

    loop = asyncio.get_running_loop()
    gate, other = PermitGate(limit, loop), PermitGate(limit, loop)
    permits = [await soon(other.acquire()) for _ in range(2)]
    for _ in range(2):
        await soon(gate.acquire())
    waiting = [asyncio.ensure_future(gate.acquire()) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert leases._server is not None
    goes_on = threading.Event()
    leases._server._loop.call_soon_threadsafe(goes_on.wait, DEADLINE)
    await asyncio.sleep(0.05)
    for permit in permits:
        other.release(permit)
    other.suspend(True)  # two grants for the gate, whose connection has ended by then
    gate.close()
    for one in waiting:
        one.cancel()
    await asyncio.sleep(0.05)
    goes_on.set()
    last = PermitGate(limit, loop)
    for _ in range(4):
        await soon(last.acquire())
    for ended in (other, last):
        ended.close()


async def test_a_gate_that_is_never_closed_gives_its_limit_up(name: str) -> None:
    loop = asyncio.get_running_loop()
    PermitGate(rs.Limit(name, concurrency=5), loop)
    gc.collect()
    PermitGate(rs.Limit(name, concurrency=6), loop).close()


FORKING = """
import asyncio, os, sys, time
import rstreams_fast.spark as rs
from rstreams_fast.calls.limits.permits import PermitGate

async def main():
    gate = PermitGate(rs.Limit(sys.argv[1], concurrency=3), asyncio.get_running_loop())
    for _ in range(3):
        await gate.acquire()
    child = os.fork()
    if not child:
        gate.close()  # as whatever runs in a child may: the permits are the parent's
        os.write(1, b"child\\n")
        time.sleep(600)
    os.write(1, b"%d\\n" % child)  # one step: the two would mix their lines
    time.sleep(600)

asyncio.run(main())
"""


async def test_a_child_of_a_fork_neither_frees_nor_keeps_the_permits_of_its_parent(
    tmp_path: Path, name: str
) -> None:
    with temporary_in(tmp_path), OtherProcess(FORKING, name, TMPDIR=str(tmp_path)) as parent:
        child = 0
        try:
            lines = {parent.line() for _ in range(2)}
            child = int(max(lines - {"child"}))
            async with stages(rs.Limit(name, concurrency=3)) as (stage,):
                waiting = stage.waiting()
                assert await is_not_granted(waiting, 0.3)
                parent.kill()
                await soon(waiting)
                await stage.begin_all(2)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def seconds_held(limit: rs.Limit) -> float:
    """Return how long calls of ``limit`` have to wait from now on."""
    if limit.scope == "executor":
        return locks_of(limit.name).held_until() - time.monotonic()
    server = leases._server
    assert server is not None
    permits, _ = server.services[limit.served_at.number]
    return permits._not_before - time.monotonic()


ASKS_FOR_YEARS = """
import pickle, sys
import pyarrow as pa
import rstreams_fast.spark as rs
from tests.spark.stages import made

async def look(k):
    raise rs.RetryAfter(1.9e9)

for limit in pickle.loads(bytes.fromhex(sys.argv[1])):
    stage = rs.lookup(rs.Policy(limit=limit, patience=0)(look), pa.int64())
    try:
        list(stage.as_map_fn()(iter([pa.RecordBatch.from_pydict({"k": [1]})])))
    except rs.RetryAfter:
        print("refused")
"""


def test_a_moment_that_is_taken_for_a_delay_does_not_stop_later_jobs(name: str) -> None:
    """The next call of another process may be made within minutes, and no earlier."""
    limits = [rs.Limit(name, concurrency=2, scope=scope) for scope in ("executor", "job")]
    told = run_python("-c", ASKS_FOR_YEARS, pickle.dumps(limits).hex(), env=worker_environment())
    assert told.stdout == "refused\n" * 2
    for limit in limits:
        assert 200 < seconds_held(limit) <= 300
