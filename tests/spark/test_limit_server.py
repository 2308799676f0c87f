"""The driver's server of a job's limits: breaks, crowds, silence, strangers, and IPv6."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.limits import leases
from rstreams_fast.calls.limits.leases import UNDER_WAY, serve
from rstreams_fast.calls.limits.messages import (
    ASK,
    CHALLENGE_BYTES,
    GRANT,
    SENT,
    Address,
    answer_to,
)
from rstreams_fast.calls.limits.pace import Numbers
from tests.helpers import DEADLINE, run_python, run_threads, start_thread, wait_until
from tests.spark import stages as stages_module
from tests.spark.conftest import temporary_in, worker_environment
from tests.spark.permits import Driver, is_not_granted, soon, stages
from tests.spark.processes import OtherProcess
from tests.spark.test_event_loops import HAS_UVLOOP


def through(limit: rs.Limit, port: int) -> rs.Limit:
    """Return the limit as a worker gets it that reaches its driver at ``port``."""
    state = limit.__getstate__()
    there = object.__new__(rs.Limit)
    there.__setstate__({**state, "address": state["address"]._replace(port=port)})
    return there


class Firewall:
    """Passes connections on to a driver, and breaks them."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0  # any
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.passed = 0
        self.listen()

    def listen(self) -> None:
        """Let workers through, at the port of before."""
        self._listening: socket.socket | None = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                worker, _ = listening.accept()
                driver = socket.create_connection(("127.0.0.1", self._to), DEADLINE)
                with self._lock:
                    if listening is not self._listening:  # it refuses meanwhile
                        worker.close()
                        driver.close()
                        return
                    self.passed += 1
                    self._open += [worker, driver]
                for one, other in ((worker, driver), (driver, worker)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError), self._lock:  # it has ended, too
            if target in self._open:  # else the connection is cut, which is no orderly end
                target.shutdown(socket.SHUT_WR)

    def cut(self, orderly: bool = False) -> None:
        """End all connections, on both sides, as a firewall that has forgotten them."""
        with self._lock:
            for one in self._open:
                if not orderly:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RD)  # whoever reads there leaves it
                one.close()
            self._open.clear()

    def refuse(self) -> None:
        """End all connections, and let nobody through."""
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self.cut()


@contextlib.contextmanager
def firewall(limit: rs.Limit) -> Iterator[tuple[Firewall, rs.Limit]]:
    wall = Firewall(limit.served_at.port)
    try:
        yield wall, through(limit, wall.port)
    finally:
        wall.refuse()


class Service(stages_module.Service):
    """Calls ``then`` at every so manieth call."""

    def __init__(self, every: int, then: Callable[[], object]) -> None:
        super().__init__()
        self._every, self._then = every, then

    async def __call__(self, k: int) -> int:
        if len(self.calls) % self._every == 0 and k:
            self._then()
        return 2 * int(await self.look(k))


def values(stage: Any, rows: int) -> list[Any]:
    return stages_module.values(stage, range(rows))


LOOPS = [pytest.param(asyncio.SelectorEventLoop, id="asyncio")]
if HAS_UVLOOP:
    import uvloop

    LOOPS.append(pytest.param(uvloop.new_event_loop, id="uvloop"))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("words", [{"concurrency": 4}, {"rate": 2000.0}], ids=str)
@pytest.mark.parametrize("orderly", [False, True], ids=["reset", "closed"])
@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_worker_connects_again_and_no_row_is_lost(
    loop_factory: Any, orderly: bool, words: Any, name: str
) -> None:
    """Two workers share the limit; the connections of both break again and again."""
    limit = rs.Limit(name, scope="job", **words)
    with firewall(limit) as (wall, behind):
        service = Service(60, lambda: wall.cut(orderly))
        stage = rs.lookup(
            rs.Policy(limit=behind)(service),
            pa.int64(),
            on_failure="null",
            loop_factory=loop_factory,
        )
        found = run_threads([lambda: values(stage, 240)] * 2)
        assert found == [[2 * k for k in range(240)]] * 2
        assert len(service.calls) == 480
        assert wall.passed > 4
        if "concurrency" in words and not orderly:
            assert service.most == 4


@pytest.mark.usefixtures("patient")
async def test_what_running_calls_have_is_declared_again(name: str) -> None:
    limit = rs.Limit(name, concurrency=2, scope="job")
    with firewall(limit) as (wall, behind):
        async with stages(behind, limit) as (stage, other):
            running = await stage.begin_all(2)
            waiting = [stage.waiting() for _ in range(2)]
            await asyncio.sleep(0.05)
            wall.cut()
            elsewhere = other.waiting()
            await asyncio.to_thread(wait_until, lambda: wall.passed == 2, "another connection")
            assert await is_not_granted(elsewhere, 0.3), elsewhere
            assert not any(call.done() for call in waiting)
            running[0].end(retry_after=0.1)
            running[1].end()
            (await soon(elsewhere)).end()
            for call in waiting:  # those were asked for again
                (await soon(call)).end()
            await stage.close()
            await other.begin_all(2)


def test_permits_at_hand_are_the_drivers_when_the_connection_breaks(name: str) -> None:
    """Also where the window of calls counts none, since there are more permits than calls."""
    limit = rs.Limit(name, concurrency=4, scope="job")
    with firewall(limit) as (wall, behind):
        service = Service(20, wall.cut)
        found = values(rs.lookup(rs.Policy(limit=behind)(service), pa.int64(), concurrency=4), 200)
        assert found == [2 * k for k in range(200)]

    async def main() -> None:
        async with stages(limit) as (stage,):
            await stage.begin_all(4)

    asyncio.run(main())


# -- what is granted on a connection ---------------------------------------------------------------
@contextlib.contextmanager
def lease(address: Address) -> Iterator[socket.socket]:
    """Give a connection of a worker that is slow to answer."""
    with socket.create_connection((address.host, address.port), DEADLINE) as connection:
        connection.sendall(answer_to(received(connection, CHALLENGE_BYTES), address))
        yield connection


def received(connection: socket.socket, size: int, timeout: float = DEADLINE) -> bytes:
    connection.settimeout(timeout)
    found = b""
    while len(found) < size:
        found += connection.recv(size - len(found))
    return found


def test_a_worker_that_is_late_is_granted_no_more_of_a_rate(name: str) -> None:
    """Else the calls of those that come late start beside the calls of those that come in time."""
    address = serve(name, Numbers(0.0, None, 1000.0, 1))
    with lease(address) as other:
        with lease(address) as late:
            late.sendall(ASK * 50)
            most = int(1000 * UNDER_WAY) - 1  # besides the burst
            assert received(late, most) == GRANT * most
            late.sendall(SENT * 3)
            assert received(late, 3) == GRANT * 3
            other.sendall(ASK)
            assert received(other, 1) == GRANT  # it is not held up for long
            other.sendall(SENT + ASK)
            assert received(other, 1) == GRANT
            with pytest.raises(TimeoutError):
                received(late, 1, timeout=0.05)  # in which fifty more could be granted
            other.sendall(SENT)
            late.sendall(SENT * most)
            assert received(late, most) == GRANT * most
        other.sendall(ASK * 2)
        assert received(other, 2) == GRANT * 2  # what a lost one had under way counts no longer


def test_a_call_is_on_its_way_until_it_has_left(name: str) -> None:
    """Its worker may have no processor between the permit and the request."""
    limit = rs.Limit(name, rate=1000, scope="job")
    begun, stall = threading.Event(), threading.Event()

    async def fn(k: int) -> int:
        begun.set()
        assert stall.wait(DEADLINE)
        return k

    with lease(serve(name, Numbers(0.0, None, 1000.0, 1))) as other:
        worker = start_thread(lambda: values(rs.lookup(rs.Policy(limit=limit)(fn), pa.int64()), 1))
        assert begun.wait(DEADLINE)
        other.sendall(ASK * 50)
        most = int(1000 * UNDER_WAY) - 1 - 1  # besides the burst, and the one that has not left
        assert received(other, most) == GRANT * most
        with pytest.raises(TimeoutError):
            received(other, 1, timeout=0.05)
        stall.set()
        assert received(other, 1) == GRANT
        assert worker.result() == [0]


async def test_limits_that_are_made_anew_are_served_at_one_address(name: str) -> None:
    """As for each micro-batch of a stream. The one made last is newer than another one before."""
    first, other, *equal = (
        rs.Limit(name, concurrency=count, scope="job") for count in (1, 2, 1, 1, 1)
    )
    assert other.served_at != first.served_at
    assert {limit.served_at for limit in equal} == {first.served_at}
    async with stages(other) as (stage,):
        before = await stage.begin_all(2)
        async with stages(first) as (last,):  # from now on, one call at a time
            waiting = last.waiting()
            before[0].end()
            assert await is_not_granted(waiting)
            before[1].end()
            (await soon(waiting)).end()


# -- a driver in a process of its own --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, 5])
@pytest.mark.parametrize("relay", [True, False], ids=["relay", "none"])
async def test_a_driver_that_pauses_loses_none_of_many_workers(
    relay: bool, seconds: float, tmp_path: Path
) -> None:
    """Those that are connected, and more that connect than fitted into the queue of asyncio."""
    with temporary_in(tmp_path if relay else tmp_path / "missing"), Driver(16) as paused:
        await _many_workers(paused, seconds)


async def _many_workers(paused: Driver, seconds: float) -> None:
    async with stages(*[paused.limit] * 260) as workers:

        async def call(worker: Any) -> None:
            (await soon(worker.begin())).end()

        await asyncio.gather(*map(call, workers[:10]))
        paused.pause(seconds)
        await asyncio.gather(*map(call, workers))


async def test_a_worker_that_was_connected_waits_where_it_is_refused(name: str) -> None:
    limit = rs.Limit(name, concurrency=1, scope="job")
    with firewall(limit) as (wall, behind):
        async with stages(behind) as (stage,):
            (await soon(stage.begin())).end()
            wall.refuse()
            await asyncio.sleep(0.1)  # in which the loop hears of it
            waiting = stage.waiting()
            assert await is_not_granted(waiting, 0.5)
            wall.listen()
            await soon(waiting)


STOPS = """
import asyncio, os, pickle, signal, sys
import rstreams_fast.spark as rs

limit = pickle.loads(bytes.fromhex(sys.argv[1]))

async def main():
    begun = asyncio.Semaphore(0)

    async def hold():
        begun.release()
        await asyncio.sleep(600)

    hold = rs.Policy(limit=limit)(hold)
    calls = asyncio.gather(*(hold() for _ in range(64)))
    for _ in range(2):
        await begun.acquire()
    print("has two, and asks for more", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    for _ in range(14):
        await begun.acquire()
    print("has sixteen", flush=True)
    await calls

asyncio.run(main())
"""


@contextlib.contextmanager
def stopped_worker(limit: rs.Limit) -> Iterator[OtherProcess]:
    with OtherProcess(STOPS, pickle.dumps(limit).hex()) as worker:
        assert worker.line() == "has two, and asks for more"
        status = Path(f"/proc/{worker.pid}/stat")
        wait_until(lambda: status.read_text().split()[2] == "T", "that the worker is stopped")
        yield worker


async def test_a_stopped_worker_is_granted_no_more_than_a_share(name: str) -> None:
    limit = rs.Limit(name, concurrency=16, scope="job")
    async with stages(limit) as (stage,):
        calls = await stage.begin_all(14)
        starting = stopped_worker(limit)
        await asyncio.to_thread(starting.__enter__)
        try:
            for _ in range(10):  # what comes back is not granted to the stopped one each time
                for call in calls:
                    call.end()
                calls = await soon(asyncio.gather(*(stage.begin() for _ in range(10))))
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
        await stage.begin_all(6)  # it was killed


@pytest.mark.slow
async def test_what_a_worker_has_that_gives_no_sign_comes_back(name: str) -> None:
    """It has all permits of the limit; when it goes on it is one of the workers again."""
    limit = rs.Limit(name, concurrency=16, scope="job")
    async with stages(limit) as (stage,):
        calls = await stage.begin_all(14)
        with stopped_worker(limit) as worker:
            stopped = time.monotonic()
            calls += await soon(asyncio.gather(*(stage.begin() for _ in range(2))))
            assert time.monotonic() >= stopped + leases.LOST_SECONDS
            for call in calls:
                call.end()
            worker.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(worker.line) == "has sixteen"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limits of a process")
@pytest.mark.parametrize("leave", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_strangers_do_not_take_a_drivers_descriptors(leave: bool) -> None:
    """``leave``: the last of them is told to go when it has had its time."""
    import resource

    closing = contextlib.ExitStack()
    crowded = closing.enter_context(Driver(1))
    address = crowded.limit.served_at
    resource.prlimit(crowded.pid, resource.RLIMIT_NOFILE, (256, 256))
    begin = time.monotonic()
    strangers = []

    async def work() -> None:
        async with stages(crowded.limit) as (stage,):
            await soon(stage.begin())

    try:
        for _ in range(300):
            stranger = socket.create_connection((address.host, address.port), DEADLINE)
            strangers.append(stranger)
            stranger.send(bytes(CHALLENGE_BYTES - 1))  # a part of an answer
        assert crowded.descriptors() < 160
        asyncio.run(work())
        if leave:
            assert len(stranger.recv(CHALLENGE_BYTES)) == CHALLENGE_BYTES
            with contextlib.suppress(ConnectionResetError):
                stranger.settimeout(DEADLINE)
                assert stranger.recv(1) == b""
            assert time.monotonic() >= begin + leases.AUTHENTICATION_SECONDS - 1
            wait_until(lambda: crowded.descriptors() < 32, "that no stranger is left")
            asyncio.run(work())
    finally:
        for stranger in strangers:
            stranger.close()
        closing.close()


WHERE = """
import socket, sys
from types import SimpleNamespace as Session
from pyspark.sql import SparkSession
import rstreams_fast.spark as rs
from rstreams_fast.calls.limits import leases
from tests.spark.stages import same, values
import pyarrow as pa

class RemoteSession(Session):  # as far as one of Spark Connect is asked
    __module__ = "pyspark.sql.connect.session"

host, bound = sys.argv[1:]
conf = {"spark.driver.host": host} | ({"spark.driver.bindAddress": bound} if bound else {})
if bound == "connect":
    session = RemoteSession(client=Session(host=host))
else:
    session = Session(conf=conf)
SparkSession.active = lambda: session
limit = rs.Limit("where", concurrency=2, scope="job")
if host == "203.0.113.1":
    assert limit.served_at.host == host
    socket.create_connection((bound, limit.served_at.port), 30).close()
else:
    assert values(rs.lookup(rs.Policy(limit=limit)(same), pa.int64()), range(10)) == list(range(10))
print("served")
"""


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "bound"),
    [
        *(("[::1]", ""), ("127.0.0.1", "::"), ("::1", "[::]")),
        *((host, "connect") for host in ("::1", "localhost")),
        ("203.0.113.1", "127.0.0.1"),  # executors may know it by an address that is not its own
    ],
)
def test_a_driver_serves_where_executors_go_to(host: str, bound: str) -> None:
    """Also by an address of IPv6; the client of Connect serves where it goes to its server."""
    assert run_python("-c", WHERE, host, bound, env=worker_environment()).stdout == "served\n"


def test_a_driver_that_cannot_listen_names_the_word() -> None:
    done = run_python("-c", WHERE, "203.0.113.1", "", env=worker_environment(), check=False)
    assert "RuntimeError: " in done.stderr
    assert re.search(r"cannot be served at 203\.0\.113\.1: .*bindAddress", done.stderr)
