"""From a thread to an asyncio loop. Each answers the sum of what the loop got."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiologic
import culsans
import janus
from reactivestreams.subscriber import DefaultSubscriber
from reactivestreams.subscription import Subscription
from rsocket.payload import Payload
from rsocket.streams.stream_from_generator import StreamFromGenerator

from bench.workloads import BOUND, DEADLINE


async def janus_queue(n: int) -> int:
    waiting: janus.Queue[int | None] = janus.Queue(BOUND)
    total = await _from_thread(n, waiting.sync_q.put, waiting.async_q.get)
    await waiting.aclose()
    return total


async def culsans_queue(n: int) -> int:
    waiting: culsans.Queue[int | None] = culsans.Queue(BOUND)
    return await _from_thread(n, waiting.sync_q.put, waiting.async_q.get)


async def aiologic_queue(n: int) -> int:
    waiting: aiologic.Queue[int | None] = aiologic.Queue(BOUND)
    return await _from_thread(n, waiting.green_put, waiting.async_get)


async def call_soon(n: int) -> int:
    """``call_soon_threadsafe`` into an ``asyncio.Queue``: the standard library's way, unbounded."""
    waiting: asyncio.Queue[int | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def put(element: int | None) -> None:
        loop.call_soon_threadsafe(waiting.put_nowait, element)

    return await _from_thread(n, put, waiting.get)


async def rsocket_stream(n: int) -> int:
    """A stream of the RSocket package. It has one loop and no thread, and no bound inside."""
    done = asyncio.get_running_loop().create_future()

    class Summing(DefaultSubscriber):  # type: ignore[misc]  # untyped
        total = 0

        def on_subscribe(self, subscription: Subscription) -> None:
            subscription.request(n)

        def on_next(self, value: Any, is_complete: bool = False) -> None:
            self.total += value.data
            if is_complete:
                done.set_result(None)

    subscriber = Summing()
    stream = StreamFromGenerator(lambda: ((Payload(i), i == n - 1) for i in range(n)))
    stream.subscribe(subscriber)
    async with asyncio.timeout(DEADLINE):
        await done
    return subscriber.total


async def _from_thread(
    n: int, put: Callable[[int | None], Any], get: Callable[[], Awaitable[int | None]]
) -> int:
    def produce() -> None:
        for i in range(n):
            put(i)
        put(None)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    total = 0
    while (element := await get()) is not None:
        total += element
    await asyncio.to_thread(thread.join, DEADLINE)
    return total
