"""``python -m bench.hosts``: how many grants one driver of a job's limit makes for many hosts.

The driver is a process with the real server. This process simulates the hosts: each has the
connection of a relay, with a channel for each worker. A worker always wants ``--calls`` permits.
``--change`` replaces so many hosts a second. The figures: grants a second, the driver's share of a
processor, and the grants of the least and the most served host as shares of the mean.
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
from functools import partial
from typing import Any, Final, cast

import psutil

from rstreams_fast.calls.limits import messages
from rstreams_fast.calls.limits.messages import ALIVE, ASK, GIVE_BACK, GRANT, PROBE, SENT, Address
from rstreams_fast.calls.limits.relay import FRAME

DRIVER: Final = """
import pickle, sys
import rstreams_fast
words = pickle.loads(bytes.fromhex(sys.argv[1]))
print(pickle.dumps(rstreams_fast.Limit("hosts", scope="job", **words)).hex(), flush=True)
sys.stdin.read()
"""


class Host(asyncio.Protocol):
    """The relay of a host, and its workers: each has a channel."""

    def __init__(self, options: argparse.Namespace, address: Address) -> None:
        self._options, self._address = options, address
        self._received = b""
        self._challenges: dict[int, bytes] = {}
        self._unsent: list[bytes] = []
        self.grants = 0
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        messages.keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.broken = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._challenges:
            if len(self._received) == messages.CHALLENGE_BYTES:
                relay = self._address._replace(number=messages.RELAY)
                self.transport.write(messages.answer_to(self._received, relay))
                self._received = b""
                self._challenges = dict.fromkeys(range(1, self._options.workers + 1), b"")
            return
        if self._received[:1] == messages.WELCOME:
            self._received = self._received[1:]
            for number in self._challenges:
                self._write(number, b"")
        while len(self._received) >= FRAME.size:
            number, size = FRAME.unpack_from(self._received)
            if len(self._received) < FRAME.size + size:
                return
            self._work(number, self._received[FRAME.size : FRAME.size + size])
            self._received = self._received[FRAME.size + size :]

    def _work(self, number: int, data: bytes) -> None:
        if not self._challenges[number]:
            self._challenges[number] = data
            declared = messages.DECLARE + messages.DECLARED.pack(secrets.token_bytes(16), 0, 0)
            answer = messages.answer_to(data, self._address)
            self._write(number, answer + declared + ASK * self._options.calls)
            return
        count = data.count(GRANT)
        if said := SENT * count + ALIVE * (PROBE in data):
            self._write(number, said)
        if count:
            self.grants += count
            loop, ended = asyncio.get_running_loop(), (GIVE_BACK + ASK) * count
            loop.call_later(self._options.seconds, self._write, number, ended)

    def _write(self, number: int, data: bytes) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(FRAME.pack(number, len(data)) + data)

    def _send(self) -> None:
        if not self.broken:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()


async def simulate(options: argparse.Namespace, driver: psutil.Process, address: Address) -> Any:
    """Return the figures of ``options.duration`` seconds."""
    loop = asyncio.get_running_loop()

    async def connected() -> Host:
        make = partial(Host, options, address)
        return (await loop.create_connection(make, address.host, address.port))[1]

    hosts = [await connected() for _ in range(options.hosts)]
    await asyncio.sleep(options.warm)
    before = {host: host.grants for host in hosts}
    everybody, used, began = list(hosts), sum(driver.cpu_times()[:2]), time.monotonic()
    if options.pause:
        driver.suspend()
        loop.call_later(options.pause, driver.send_signal, signal.SIGCONT)
    while (rest := began + options.duration - time.monotonic()) > 0:
        await asyncio.sleep(min(rest, 1 / (options.change or 0.01)))
        if options.change:
            hosts.pop(random.randrange(len(hosts))).transport.abort()
            hosts.append(await connected())
            everybody.append(hosts[-1])
    seconds = time.monotonic() - began
    grants = sum(host.grants for host in everybody) - sum(before.values())
    stayed = [host.grants - before[host] for host in hosts if host in before]
    mean = max(1, sum(stayed)) / len(stayed)
    found = {"grants a second": grants / seconds, "least": min(stayed) / mean}
    found |= {"most": max(stayed) / mean, "hosts that stayed": len(stayed)}
    found["driver"] = (sum(driver.cpu_times()[:2]) - used) / seconds
    return found | {"broken": sum(host.broken for host in hosts)}


def main() -> None:
    """Run a driver and the hosts; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description=__doc__)
    for word, default in {"hosts": 300, "workers": 16, "calls": 1, "concurrency": 0}.items():
        parser.add_argument(f"--{word}", type=int, default=default)
    seconds = {"seconds": 0.05, "duration": 20, "warm": 3, "pause": 0}
    for word, number in {"rate": 0.0, "change": 0.0, **seconds}.items():
        parser.add_argument(f"--{word}", type=float, default=number)
    options = parser.parse_args()
    words = {word: getattr(options, word) or None for word in ("concurrency", "rate")}
    command = [sys.executable, "-c", DRIVER, pickle.dumps(words).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        try:
            limit = pickle.loads(bytes.fromhex(cast(Any, driver.stdout).readline().decode()))
            done = asyncio.run(simulate(options, psutil.Process(driver.pid), limit.served_at))
        finally:
            driver.kill()
    print(json.dumps({word: round(figure, 3) for word, figure in done.items()}))


if __name__ == "__main__":
    main()
