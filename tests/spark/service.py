"""A service in a process of its own that counts: what it sees is what a limit is judged by.

A call is a connection: a number and a newline, answered by twice the number. One that the caller
hangs up is over. A second port takes what a test has to say, a line of JSON each, and tells counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

HOST: Final = "127.0.0.1"
ROOT: Final = Path(__file__).parents[2]
REFUSED: Final = b"no\n"


def tokens_of(key: int, least: float) -> float:
    """Return what a call costs of a quota: ``least``, and up to a hundred times as much."""
    return least * (1 + key * 7919 % 100)


def asking(port: int) -> Callable[[int], Awaitable[int]]:
    """Return a function that calls the service; its connection ends with the call, at once."""

    async def ask(key: int) -> int:
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, (HOST, port))
            await loop.sock_sendall(connection, b"%d\n" % key)
            answer = await loop.sock_recv(connection, 100)
        if not answer:
            raise ConnectionResetError("the service hung up")
        return int(answer)

    return ask


class Service:
    """What a test has to say to a service, and is told by it."""

    def __init__(self, port: int, control: int) -> None:
        self.port, self.control = port, control
        self._connection = socket.create_connection((HOST, control), timeout=20)
        self._answers = self._connection.makefile("r")

    def tell(self, **words: Any) -> dict[str, Any]:
        """Set ``mode`` and ``seconds``, or ``reset`` the counts; return the counts until then,
        and the ports of the ``callers`` inside.

        ``mode``: ``right``, ``wrong``, ``silent`` (what it did not answer it does when it is right
        again), ``stopped``. ``seconds``: what a call takes.
        ``quota``: tokens a minute; what is too much is refused (``REFUSED``). ``least``: what the
        lightest call costs. A ``reset`` makes the
        service's own bucket a tenth of them.
        ``stall``: keys whose first call takes so much longer. ``events``: have them told, too.
        """
        self._connection.sendall(json.dumps(words).encode() + b"\n")
        told: dict[str, Any] = json.loads(self._answers.readline())
        return told

    def close(self) -> None:
        self._answers.close()
        self._connection.close()


class ServiceProcess(Service):
    """A service that this process has started."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.service"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        super().__init__(*map(int, self._process.stdout.readline().split()))

    def close(self) -> None:
        super().close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # which ends it
        self._process.wait(20)
        self._process.stdout.close()


class _Service:
    def __init__(self) -> None:
        self.mode, self.seconds = "right", 0.005
        self.stall: dict[str, float] = {}
        self.port = 0
        self.listening: asyncio.Server | None = None
        self.open: set[_Call] = set()
        self.inside = 0
        self.quota, self.least = 0.0, 1.0
        self.reset()

    def reset(self) -> None:
        self.most = self.inside
        self.keys = Counter[int]()
        self.events: list[tuple[float, int]] = []
        self.spent: list[tuple[float, float]] = []
        self.refused = 0
        self.bucket, self.filled_at = self.quota / 10, time.monotonic()

    def admits(self, key: int) -> bool:
        """Take a call's tokens out of the bucket, which the quota fills."""
        if not self.quota:
            return True
        now, tokens = time.monotonic(), tokens_of(key, self.least)
        filled = self.bucket + (now - self.filled_at) * self.quota / 60
        self.bucket, self.filled_at = min(filled, self.quota / 10), now
        if self.bucket < tokens:
            self.refused += 1
            return False
        self.bucket -= tokens
        self.spent.append((now, tokens))
        return True

    def count(self, change: int) -> None:
        self.inside += change
        self.most = max(self.most, self.inside)
        self.events.append((time.monotonic(), change))

    async def listen(self) -> None:
        if self.mode == "stopped" and self.listening is not None:
            self.listening.close()
            self.listening = None
            for call in list(self.open):
                call.transport.abort()
        elif self.mode != "stopped" and self.listening is None:
            loop = asyncio.get_running_loop()
            self.listening = await loop.create_server(
                lambda: _Call(self), HOST, self.port, backlog=1024
            )
            self.port = self.listening.sockets[0].getsockname()[1]

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                words = json.loads(line)
                told: dict[str, Any] = {
                    "calls": self.keys.total(),
                    "most": self.most,
                    "inside": self.inside,
                }
                told["keys"] = len(self.keys)
                told["refused"] = self.refused
                told["callers"] = [
                    call.transport.get_extra_info("peername")[1] for call in self.open
                ]
                if words.pop("events", False):
                    told["events"], told["spent"] = self.events, self.spent
                reset = words.pop("reset", False)
                vars(self).update(words)
                if reset:
                    self.reset()
                await self.listen()
                if self.mode == "right":
                    for call in self.open:
                        call.answer()
                writer.write(json.dumps(told).encode() + b"\n")
        writer.close()


class _Call(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._received = b""
        self._answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(b"\n") or self in self._service.open:
            return
        service = self._service
        if not service.admits(int(self._received)):
            self.transport.write(REFUSED)
            self.transport.close()
            return
        service.open.add(self)
        service.count(1)
        service.keys[int(self._received)] += 1
        if service.mode != "silent":
            self.answer()

    def answer(self) -> None:
        """Answer in its time, if that is not under way."""
        if self._answer is None:
            service, key = self._service, int(self._received)
            seconds = service.seconds + service.stall.pop(str(key), 0.0)
            self._answer = asyncio.get_running_loop().call_later(seconds, self._end, key)

    def _end(self, key: int) -> None:
        if self._service.mode == "silent":
            self._answer = None
            return
        self._leave()
        wrong = self._service.mode == "wrong"
        self.transport.write(b"what?\n" if wrong else b"%d\n" % (2 * key))
        self.transport.close()

    def _leave(self) -> None:
        if self in self._service.open:
            self._service.open.discard(self)
            self._service.count(-1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()
        self._leave()


async def _main() -> None:
    service = _Service()
    await service.listen()
    control = await asyncio.start_server(service.control, HOST, 0)
    print(service.port, control.sockets[0].getsockname()[1], flush=True)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ended.set)  # the process that started it has closed it, or is gone
    await ended.wait()
    os._exit(0)


if __name__ == "__main__":
    with suppress(PermissionError):  # it is to note when a call arrives, not when it finds the time
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    asyncio.run(_main())
