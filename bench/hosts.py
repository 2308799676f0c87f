"""``python -m bench.hosts``: how many grants one driver of a job's limit makes for many hosts.

The driver is a process with the real server. This process simulates the hosts: each has the
connection of a relay, with a channel for each worker. A worker always wants ``--calls`` permits,
and a call lasts ``--seconds``. ``--direct`` gives each worker a connection of its own. ``--pause``
stops the driver for so many seconds. ``--change`` replaces so many hosts a second, by breaks of
their connections. The last line has the figures; a fairness of 1 means the same for each host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import psutil

from rstreams_fast import Limit
from rstreams_fast.calls.limits import messages
from rstreams_fast.calls.limits.messages import ASK, GIVE_BACK, GRANT, LEFT, PROBE, SIGN, Address
from rstreams_fast.calls.limits.relay import FRAME

DRIVER: Final = """
import pickle, sys
import rstreams_fast
limit = rstreams_fast.Limit("hosts", scope="job", **pickle.loads(bytes.fromhex(sys.argv[1])))
print(pickle.dumps(limit).hex(), flush=True)
sys.stdin.read()
"""


class Host:
    """Counts the grants of its workers."""

    def __init__(self, options: argparse.Namespace, address: Address) -> None:
        self.options, self.address = options, address
        self.grants = self.breaks = 0
        self.connections: list[Connection] = []

    async def connect(self) -> None:
        loop, workers = asyncio.get_running_loop(), self.options.workers
        for _ in range(workers if self.options.direct else 1):
            make = partial(Connection, self, 0 if self.options.direct else workers)
            _, made = await loop.create_connection(make, self.address.host, self.address.port)
            self.connections.append(made)


class Worker:
    """Takes permits, and gives each of them back after a while."""

    def __init__(self, host: Host, write: Callable[[bytes], None]) -> None:
        self._host, self._write = host, write
        self._challenge = b""

    def received(self, data: bytes) -> None:
        if len(self._challenge) < messages.CHALLENGE_BYTES:
            self._challenge += data  # the server sends nothing else before the answer
            if len(self._challenge) == messages.CHALLENGE_BYTES:
                declared = messages.DECLARED.pack(secrets.token_bytes(16), 0, 0)
                answer = messages.answer_to(self._challenge, self._host.address)
                asks = ASK * self._host.options.calls
                self._write(answer + messages.DECLARE + declared + asks)
            return
        count = data.count(GRANT)
        if PROBE in data or count:
            self._write(LEFT * count + (SIGN if PROBE in data else b""))
        if count:
            self._host.grants += count
            loop = asyncio.get_running_loop()
            message = (GIVE_BACK + ASK) * count
            loop.call_later(self._host.options.seconds, self._write, message)


class Connection(asyncio.Protocol):
    """The connection of a relay with channels, or with no channels that of one worker."""

    def __init__(self, host: Host, channels: int) -> None:
        self._host, self._channels = host, channels
        self._workers: dict[int, Worker] = {}
        self._received = b""
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        messages.keep_alive(transport)
        if not self._channels:
            self._workers[0] = Worker(self._host, self._write)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.breaks += 1

    def data_received(self, data: bytes) -> None:
        if not self._channels:
            self._workers[0].received(data)
            return
        self._received += data
        if not self._workers:
            if len(self._received) < messages.CHALLENGE_BYTES:
                return
            relay = self._host.address._replace(number=messages.RELAY)
            self._write(messages.answer_to(self._received, relay))
            self._received = b""
            for number in range(1, self._channels + 1):
                self._workers[number] = Worker(self._host, partial(self._frame, number))
            return
        if self._received.startswith(messages.WELCOME):
            self._received = self._received[1:]
            for number in self._workers:
                self._frame(number, b"")
        while len(self._received) >= FRAME.size:
            number, size = FRAME.unpack_from(self._received)
            if len(self._received) < FRAME.size + size:
                return
            data = self._received[FRAME.size : FRAME.size + size]
            self._received = self._received[FRAME.size + size :]
            self._workers[number].received(data)

    def _frame(self, number: int, data: bytes) -> None:
        self._write(FRAME.pack(number, len(data)) + data)

    def _write(self, data: bytes) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(data)

    def _send(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if not self.transport.is_closing():
            self.transport.write(data)


async def simulate(options: argparse.Namespace, driver: psutil.Process, limit: Limit) -> Any:
    """Return the figures of ``options.duration`` seconds."""
    hosts = [Host(options, limit.served_at) for _ in range(options.hosts)]
    began = time.monotonic()
    for host in hosts:
        await host.connect()
    found: dict[str, Any] = {"connected in": time.monotonic() - began}
    found["connections"] = sum(len(host.connections) for host in hosts)
    await asyncio.sleep(options.warm)
    stays = {id(host): host.grants for host in hosts}
    gone, before, began = 0, sum(driver.cpu_times()[:2]), time.monotonic()
    if options.pause:
        driver.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(options.pause, driver.send_signal, signal.SIGCONT)
    while (rest := began + options.duration - time.monotonic()) > 0:
        await asyncio.sleep(min(rest, 1 / options.change) if options.change else rest)
        if options.change and rest > 1 / options.change:
            place = random.randrange(len(hosts))
            gone += hosts[place].grants - stays.pop(id(hosts[place]), 0)
            for connection in hosts[place].connections:
                connection.transport.abort()
            hosts[place] = Host(options, limit.served_at)
            await hosts[place].connect()
    seconds = time.monotonic() - began
    served = [host.grants - stays[id(host)] for host in hosts if id(host) in stays]
    new = sum(host.grants for host in hosts if id(host) not in stays)
    found["grants a second"] = (sum(served) + gone + new) / seconds
    found["driver"] = (sum(driver.cpu_times()[:2]) - before) / seconds
    mean = max(1, sum(served)) / len(served)
    found |= {"least": min(served) / mean, "most": max(served) / mean}
    found["breaks"] = sum(host.breaks for host in hosts)
    found["hosts that stayed"] = len(served)
    return found


def main() -> None:
    """Run a driver and the hosts; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__)
    for word, default in (("hosts", 300), ("workers", 16), ("calls", 4), ("concurrency", 0)):
        parser.add_argument(f"--{word}", type=int, default=default)
    for word, number in (("rate", 0), ("seconds", 0.1), ("duration", 10), ("warm", 3)):
        parser.add_argument(f"--{word}", type=float, default=number)
    for word in ("pause", "change"):
        parser.add_argument(f"--{word}", type=float, default=0.0)
    parser.add_argument("--direct", action="store_true")
    options = parser.parse_args()
    words = {word: getattr(options, word) or None for word in ("concurrency", "rate")}
    command = [sys.executable, "-c", DRIVER, pickle.dumps(words).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        try:
            limit = pickle.loads(bytes.fromhex(driver.stdout.readline().decode()))
            found = asyncio.run(simulate(options, psutil.Process(driver.pid), limit))
        finally:
            driver.kill()
    print(json.dumps({word: round(figure, 3) for word, figure in found.items()}))


if __name__ == "__main__":
    main()
