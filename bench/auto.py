"""``python -m bench.auto``: ``concurrency="auto"`` on a service whose capacity moves.

It works on so many calls at once, each for so long; as many may wait, and more are refused. It
prints which share of the capacity was in use, over time, and which share of the calls was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa

import rstreams_fast.spark as rs

SECONDS = 0.05
"""How long the service works on a call."""

PHASES = ((20, 6.0), (200, 8.0), (60, 6.0))


class Service:
    """Answers lines over a socket, on a loop of its own thread."""

    def __init__(self, capacity: int, seconds: float = SECONDS) -> None:
        self.capacity = capacity
        self.working = self.calls = self.refused = 0
        self.used = 0.0
        """Seconds times calls that it worked on."""
        self._seconds = seconds
        self._since = time.monotonic()
        self._queue: list[Callable[[], None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.1, self._loop.stop)
        self._thread.join()
        self._loop.close()

    def count(self, by: int = 0) -> None:
        now = time.monotonic()
        self.used += self.working * (now - self._since)
        self._since = now
        self.working += by

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def begin(line: bytes) -> None:
            self.count(1)
            self._loop.call_later(self._seconds, end, line)

        def end(line: bytes) -> None:
            self.count(-1)
            writer.write(b"+" + line)
            while self._queue and self.working < self.capacity:
                self._queue.pop(0)()

        while line := await reader.readline():
            self.calls += 1
            if self.working < self.capacity:
                begin(line)
            elif len(self._queue) < self.capacity:
                self._queue.append(lambda line=line: begin(line))  # type: ignore[misc]
            else:
                self.refused += 1
                writer.write(b"-" + line)
        writer.close()


class Client:
    """Calls of many over one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        reading = asyncio.ensure_future(self._read(reader))
        try:
            yield self
        finally:
            reading.cancel()
            self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            future = self._waiting.pop(int(line[1:]))
            if future.done():
                continue
            if line[:1] == b"+":
                future.set_result(None)
            else:
                future.set_exception(rs.RetryAfter(SECONDS))

    async def call(self) -> None:
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        self._writer.write(b"%d\n" % number)
        await future


def rows_until(ended: threading.Event) -> Iterator[pa.RecordBatch]:
    """Give rows until it has ended."""
    while not ended.is_set():
        yield pa.RecordBatch.from_pydict({"k": pa.array(range(100), pa.int64())})


def start(port: int, ended: threading.Event, **words: Any) -> threading.Thread:
    """Call the service on a thread until it has ended."""

    async def ask(client: Client, k: int) -> int:
        await client.call()
        return k

    stage = rs.lookup(
        rs.Policy(retry=rs.Retry(99))(ask),
        pa.int64(),
        using=lambda: Client(port).opened(),
        concurrency="auto",
        **words,
        bounds=rs.Bounds(rows=2000),
    )

    def run() -> None:
        for _ in stage.as_map_fn()(rows_until(ended)):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def main() -> None:
    service, ended = Service(PHASES[0][0]), threading.Event()
    thread = start(service.port, ended)
    while not service.calls:  # a first stage imports what it needs
        time.sleep(0.001)
    had = used = 0.0
    calls = refused = 0
    for capacity, seconds in PHASES:
        service.capacity = capacity
        service.count()
        before = service.used, service.calls, service.refused, time.monotonic()
        time.sleep(seconds)
        service.count()
        most = capacity * (time.monotonic() - before[3])
        now = service.used - before[0]
        some = service.calls - before[1], service.refused - before[2]
        had, used = had + most, used + now
        calls, refused = calls + some[0], refused + some[1]
        print(f"capacity {capacity}: {now / most:.1%} in use, {some[1]} of {some[0]} calls refused")
    print(f"together: {used / had:.1%} in use, {refused / calls:.2%} refused")
    ended.set()
    thread.join()
    service.close()


if __name__ == "__main__":
    main()
