"""Writing to a real socket, whose other side reads when it likes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.interop.asyncio_streams import WriterSubscriber
from tests.helpers import DEADLINE

CHUNK = b"x" * 65536


async def served(handle: Any) -> tuple[asyncio.Server, asyncio.StreamReader, asyncio.StreamWriter]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return server, reader, writer


async def test_all_is_written_in_order_and_a_slow_reader_holds_the_stream_back() -> None:
    made: list[int] = []
    total = 400  # chunks: 25 MiB, more than any socket holds
    read = asyncio.Event()
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read.wait()
        received.set_result(await reader.read(-1))
        writer.close()

    server, _, writer = await served(handle)
    subscriber = WriterSubscriber(writer, prefetch=4)
    chunks = rsf.range_(total).map(lambda n: bytes([n % 251]) * len(CHUNK))
    chunks.do_on_next(lambda _: made.append(1)).subscribe(subscriber)
    before = -1
    while len(made) != before:  # until it stands
        before = len(made)
        for _ in range(50):
            await asyncio.sleep(0)
    assert before < total
    read.set()
    await asyncio.wait_for(subscriber.run, DEADLINE)
    writer.close()
    expected = b"".join(bytes([n % 251]) * len(CHUNK) for n in range(total))
    assert await asyncio.wait_for(received, DEADLINE) == expected
    server.close()


async def test_a_lost_connection_cancels_upstream_and_is_the_runs_error() -> None:
    cancelled: list[bool] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server, _, writer = await served(handle)
    subscriber = WriterSubscriber(writer)
    endless = rsf.range_(10**9).map(lambda _: CHUNK)
    endless.do_on_cancel(lambda: cancelled.append(True)).subscribe(subscriber)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(subscriber.run, DEADLINE)
    writer.close()
    server.close()
    assert cancelled == [True]


async def test_what_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(TypeError, match="writer must be a StreamWriter, got int"):
        WriterSubscriber(3)  # type: ignore[arg-type]
