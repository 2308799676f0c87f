"""A look-up service in a process of its own, which takes its time to the microsecond, and a client.

It polls, on a core of its own: a service that waits for its system's timer answers calls of the
same millisecond together, and its callers then pay for each other.
"""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, cast

from examples.flights.rivals import Delay, expected

__all__ = ["LookUpClient", "client", "service"]

_KEY: Final = struct.Struct("=q")
_ANSWER: Final = struct.Struct("=qq")
"""A key, and what was found for it."""


@contextmanager
def service(delay: Delay) -> Iterator[str]:
    """Start the service; give the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        context = multiprocessing.get_context("spawn")
        listening = context.Event()
        process = context.Process(target=_serve, args=(path, delay, listening.set), daemon=True)
        process.start()
        try:
            assert listening.wait(20), "the service did not start"
            yield path
        finally:
            process.kill()
            process.join()


def _serve(path: str, delay: Delay, listening: Callable[[], None]) -> None:
    if hasattr(os, "sched_setaffinity"):  # the callers have the last core
        os.sched_setaffinity(0, {0})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listening()
        while True:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionError):
                connection.setblocking(False)
                _answer(connection, delay)


def _answer(connection: socket.socket, delay: Delay) -> None:
    due: list[tuple[float, int]] = []
    rest = answers = b""
    while True:
        with suppress(BlockingIOError):
            received = connection.recv(1 << 16)
            if not received:
                return
            rest += received
            whole = len(rest) - len(rest) % _KEY.size
            now = time.perf_counter()
            for (key,) in _KEY.iter_unpack(rest[:whole]):
                heapq.heappush(due, (now + delay(key), key))
            rest = rest[whole:]
        now = time.perf_counter()
        while due and due[0][0] <= now:
            _, key = heapq.heappop(due)
            answers += _ANSWER.pack(key, expected(key))
        if answers:
            with suppress(BlockingIOError):  # the caller is behind
                answers = answers[connection.send(answers) :]


class LookUpClient(asyncio.Protocol):
    """Calls by one connection; each key once at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._rest + data
        whole = len(received) - len(received) % _ANSWER.size
        for key, answer in _ANSWER.iter_unpack(received[:whole]):
            self._asked.pop(key).set_result(answer)
        self._rest = received[whole:]

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._asked.values():
            answer.set_exception(exc or ConnectionResetError("the service hung up"))
        self._asked.clear()

    async def look_up(self, key: int) -> int:
        """Ask the service."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._asked[key] = answer
        self._transport.write(_KEY.pack(key))
        return await answer


def client(path: str) -> Callable[[], AbstractAsyncContextManager[LookUpClient]]:
    """Return what ``using`` takes."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[LookUpClient]:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_unix_connection(LookUpClient, path)
        try:
            yield protocol
        finally:
            transport.close()

    return connect
