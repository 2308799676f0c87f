"""The relay of a host, through which all its workers share one connection to the driver."""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.limits import leases
from rstreams_fast.calls.limits.host_relay import connect_by_relay
from tests.helpers import run_python, run_threads, wait_until
from tests.spark import stages as stages_module
from tests.spark.conftest import temporary_in
from tests.spark.permits import Driver, holder, is_not_granted, relays, soon, stages
from tests.spark.stages import values

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="relays need sockets of Unix")


@pytest.fixture(params=["", pytest.param("x" * 120, id="long")])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give a temporary directory of its own; the kernel has a bound for the paths of sockets."""
    folder = tmp_path / request.param
    folder.mkdir(exist_ok=True)
    with temporary_in(folder):
        yield folder


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Give a driver with a limit of four calls at once."""
    with Driver(4) as process:
        yield process


def connections(driver: Driver) -> int:
    """Return how many connections the driver has, but for the listening socket."""
    found = psutil.Process(driver.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


def files(host: Path) -> list[Path]:
    """Return the files of relays, in the order of their names."""
    return sorted(host.glob("rstreams-relays-*/*"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has another way to long paths")
async def test_workers_of_a_host_share_a_connection_to_the_driver(
    host: Path, driver: Driver
) -> None:
    """Also workers that begin at once; the permits of a killed worker come back."""
    async with stages(*[driver.limit] * 20) as workers:
        calls = await soon(asyncio.gather(*(worker.begin() for worker in workers[:4])))
        assert (connections(driver), len(relays())) == (1, 1)
        waiting = [worker.waiting() for worker in workers[4:]]
        assert all([await is_not_granted(call, 0.01) for call in waiting])
        for call in calls:
            call.end()
        for granted in asyncio.as_completed(waiting):
            (await soon(granted)).end()
    killing = holder(driver.limit, 4, TMPDIR=str(host))
    process = await asyncio.to_thread(killing.__enter__)
    async with stages(driver.limit) as (worker,):
        waiting = [worker.waiting()]
        assert await is_not_granted(waiting[0])
        killed = time.monotonic()
        process.kill()
        await soon(waiting[0])
        assert time.monotonic() >= killed + leases.DEATH_SECONDS
        await worker.begin_all(3)
        assert connections(driver) == 1
    await asyncio.to_thread(killing.__exit__, None, None, None)
    assert [file.suffix for file in files(host)] == ["", ".lock"]


@pytest.mark.parametrize(
    "seconds", [0.5, pytest.param(leases.RELAY_SECONDS + 1, marks=pytest.mark.slow)]
)
async def test_permits_in_use_stay_when_the_relay_is_killed(
    driver: Driver, seconds: float, tmp_path: Path
) -> None:
    with temporary_in(tmp_path):
        async with stages(*[driver.limit] * 3) as (first, second, third):
            calls = await first.begin_all(2) + await second.begin_all(2)
            waiting = third.waiting()
            (relay,) = relays()
            relay.kill()
            assert await is_not_granted(waiting, seconds)
            calls.pop().end()
            (await soon(waiting)).end()
            assert (connections(driver), len(relays())) == (1, 1)  # another relay was started


@pytest.mark.slow
async def test_a_worker_that_a_frozen_relay_does_not_serve_goes_to_the_driver(
    driver: Driver, tmp_path: Path
) -> None:
    with temporary_in(tmp_path):
        async with stages(*[driver.limit] * 2) as (first, second):
            await first.begin_all(1)
            (relay,) = relays()
            relay.suspend()
            try:
                await second.begin_all(1)
                assert connections(driver) == 2
            finally:
                relay.resume()


class Service(stages_module.Service):
    """Kills the relays of the host at every sixtieth call."""

    kills = 0

    async def __call__(self, k: int) -> int:
        if len(self.calls) % 60 == 59:
            for relay in relays():
                relay.kill()
                self.kills += 1
        return 2 * int(await self.look(k))


def test_no_row_is_lost_when_relays_are_killed(driver: Driver, tmp_path: Path) -> None:
    """And the service never has more calls than the limit."""
    limit, service = driver.limit, Service()
    stage = rs.lookup(rs.Policy(limit=limit)(service), pa.int64())
    with temporary_in(tmp_path):
        found = run_threads([lambda: values(stage, range(240))] * 3)
        assert found == [[2 * k for k in range(240)]] * 3
    assert (len(service.calls), service.most) == (720, 4)
    assert service.kills >= 3


async def work(limit: rs.Limit) -> None:
    async with stages(limit) as (worker,):
        await worker.begin_all(1)
        assert len(relays()) == 1


@pytest.mark.slow  # a relay waits some seconds for another worker
def test_a_relay_ends_when_it_has_no_worker_and_removes_its_files(
    driver: Driver, tmp_path: Path
) -> None:
    with temporary_in(tmp_path):
        asyncio.run(work(driver.limit))
        wait_until(lambda: not relays(), "the end of the relay")
        assert not files(tmp_path)


async def test_a_relay_removes_what_killed_ones_have_left(host: Path, driver: Driver) -> None:
    async with stages(driver.limit) as (worker,):
        (await soon(worker.begin())).end()
        (living,) = relays()
        in_use = files(host)
        left = [in_use[0].with_name(f"0123{suffix}") for suffix in ("", ".lock")]
        for file in left:
            file.touch()
        with Driver(4) as other:
            async with stages(other.limit) as (another,):
                (await soon(another.begin())).end()
            assert not any(file.exists() for file in left)
            assert set(in_use) < set(files(host))
        assert living in relays()


async def test_a_relay_that_finds_no_driver_leaves_no_file(host: Path) -> None:
    with Driver(4) as driver:
        address = driver.limit.served_at
    with pytest.raises(ConnectionRefusedError):
        await connect_by_relay(asyncio.Protocol, address, 1.0)
    assert not files(host)


CANCELLING = """
import asyncio, contextlib, gc, os, pickle, sys, uvloop
from rstreams_fast.calls.limits.host_relay import connect_by_relay

async def cancel_at_each_step():
    address = pickle.loads(bytes.fromhex(sys.argv[1])).served_at
    for steps in range(12):
        connecting = asyncio.ensure_future(connect_by_relay(asyncio.Protocol, address, 10))
        if not steps:
            await connecting  # it starts the relay
        for _ in range(steps):
            await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
        await asyncio.sleep(0.01)  # the loop closes the connection
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        del connecting
        gc.collect()
        for file in files:
            os.close(file)
    os._exit(0)

uvloop.new_event_loop().run_until_complete(cancel_at_each_step())
"""


def test_a_connection_that_is_cancelled_closes_no_other_file(
    driver: Driver, tmp_path: Path
) -> None:
    pytest.importorskip("uvloop")
    words = pickle.dumps(driver.limit).hex()
    run_python("-W", "ignore", "-c", CANCELLING, words, env={"TMPDIR": str(tmp_path)})


STARTING = """
import asyncio, pickle, sys
from rstreams_fast.calls.limits.host_relay import _started, connect_by_relay

class Worker(asyncio.Protocol):
    def connection_made(self, transport):
        transport.abort()

    def connection_lost(self, raised):
        ended.set()

async def start_relay():
    await connect_by_relay(Worker, pickle.loads(bytes.fromhex(sys.argv[1])).served_at, 10)
    await ended.wait()

ended = asyncio.Event()
asyncio.run(start_relay())
print(len(_started))
"""


def test_a_process_ends_without_a_warning_that_its_relay_runs(
    driver: Driver, tmp_path: Path
) -> None:
    words = pickle.dumps(driver.limit).hex()
    strict = ("-W", "error")  # -X dev would report slow callbacks, too
    ended = run_python(*strict, "-c", STARTING, words, env={"TMPDIR": str(tmp_path)})
    assert (ended.stdout, ended.stderr) == ("1\n", "")


def test_a_relay_ends_with_its_driver(tmp_path: Path) -> None:
    with temporary_in(tmp_path):
        with Driver(4) as driver:
            asyncio.run(work(driver.limit))
        wait_until(lambda: not relays(), "the end of the relay", timeout=4)
