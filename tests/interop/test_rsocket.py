"""Streams over RSocket: rsocket-py's own server and client, on a real TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.request_handler import BaseRequestHandler
from rsocket.rsocket_client import RSocketClient
from rsocket.rsocket_server import RSocketServer
from rsocket.transports.tcp import TransportTCP

import rstreams_fast as rsf
from rstreams_fast.errors import WorkDroppedError
from rstreams_fast.interop.rsocket import from_rsocket, to_rsocket
from tests.helpers import DEADLINE


@contextlib.asynccontextmanager
async def served(publisher: Callable[[Any], Any]) -> AsyncIterator[rsf.Stream[Any]]:
    """What a client gets for ``b"1000"`` of a server that answers with ``publisher(payload)``."""

    class Handler(BaseRequestHandler):
        async def request_stream(self, payload: Payload) -> Any:
            return to_rsocket(publisher(payload))

    servers: list[RSocketServer] = []

    def session(*connection: Any) -> None:
        servers.append(RSocketServer(TransportTCP(*connection), handler_factory=Handler))

    async with asyncio.timeout(DEADLINE):
        listening = await asyncio.start_server(session, "127.0.0.1", 0)
        try:
            port = listening.sockets[0].getsockname()[1]
            transport = TransportTCP(*await asyncio.open_connection("127.0.0.1", port))
            async with RSocketClient(single_transport_provider(transport)) as client:
                yield from_rsocket(lambda: client.request_stream(Payload(b"1000")))
            for server in servers:
                await server.close()
        finally:
            listening.close()


def payloads(n: int) -> Any:
    return rsf.range_(n).map(lambda i: Payload(str(i).encode()))


@pytest.mark.parametrize("thread", [False, True])
async def test_a_stream_goes_over_the_wire_and_back(thread: bool) -> None:
    def answer(payload: Payload) -> Any:
        stream = payloads(int(payload.data))
        return stream.subscribe_on() if thread else stream

    async with served(answer) as stream:
        numbers = await stream.map(lambda payload: int(payload.data)).to_list_async()
    assert numbers == list(range(1000))


async def test_the_server_is_asked_for_no_more_than_the_client_wants() -> None:
    made: list[int] = []
    async with served(lambda _: payloads(10**9).do_on_next(made.append)) as stream:
        taken = await stream.take(5).to_list_async()
    assert [int(payload.data) for payload in taken] == [0, 1, 2, 3, 4]
    assert len(made) <= 300  # five, and what the server's own side reads ahead


async def test_an_error_of_the_server_reaches_the_client() -> None:
    async with served(lambda _: payloads(3).concat(rsf.error(ValueError("gone")))) as stream:
        with pytest.raises(Exception, match="gone"):
            await stream.to_list_async()


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (3, "must be a Payload, got int"),
        (Payload("text"), "must have bytes, got str"),
        (Payload(b"data", 3), "must have bytes, got int"),
        (Payload(), "neither data nor metadata"),
        (Payload(b"", b""), "neither data nor metadata"),
    ],
    ids=repr,
)
async def test_what_rsocket_cannot_send_is_an_error_at_the_client(
    element: Any, message: str
) -> None:
    async with served(lambda _: rsf.from_iterable([element])) as stream:
        with pytest.raises(Exception, match=message):
            await stream.to_list_async()
    sent = [Payload(bytearray(b"a")), Payload(memoryview(b"b")), Payload(None, b"c")]
    async with served(lambda _: rsf.from_iterable(sent)) as stream:
        assert await stream.count_async() == 3


async def test_cancel_on_the_client_cancels_on_the_server() -> None:
    loop = asyncio.get_running_loop()
    cancelled = asyncio.Event()

    def answer(_: Payload) -> Any:
        return rsf.never().do_on_cancel(lambda: loop.call_soon_threadsafe(cancelled.set))

    async with served(answer) as stream:
        run = stream.for_each(print)
        await asyncio.sleep(0)
        run.cancel()
        await cancelled.wait()


async def test_what_the_request_raises_is_the_streams_error() -> None:
    def request() -> Any:
        raise LookupError("no client")

    with pytest.raises(LookupError, match="no client"):
        await from_rsocket(request).to_list_async()
    with pytest.raises(TypeError, match="request must be callable"):
        from_rsocket(3)  # type: ignore[arg-type]


class Silent:
    """Stands for a request of ``rsocket`` whose server sends one payload, and then nothing."""

    def initial_request_n(self, _n: int) -> Silent:
        return self

    def subscribe(self, subscriber: Any) -> None:
        subscriber.on_next(b"1")

    def cancel(self) -> None: ...


@pytest.mark.parametrize("closed", ["before", "while asked", "while waiting"])
def test_a_closed_loop_ends_the_stream(closed: str) -> None:
    loop, got = asyncio.new_event_loop(), list[bytes]()
    stream = from_rsocket(Silent, loop=loop)
    if closed == "before":
        loop.close()
    run = stream.for_each(got.append)
    if closed == "while waiting":
        loop.run_until_complete(asyncio.sleep(0))  # runs the request, which is in the loop's queue
    loop.close()
    with pytest.raises(WorkDroppedError, match="the event loop"):
        run.result(DEADLINE)
    assert got == ([b"1"] if closed == "while waiting" else [])


async def test_an_ended_stream_leaves_no_timer_on_the_loop() -> None:
    loop = asyncio.get_running_loop()
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for _ in range(3):
        assert [payload async for payload in from_rsocket(Silent).take(1)] == [b"1"]
    await asyncio.sleep(0)
    left = loop._scheduled[before:]  # type: ignore[attr-defined]
    assert all(timer.cancelled() for timer in left)
