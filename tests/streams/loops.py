"""Event loops and executors that tests of streams run on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.helpers import start_thread


async def turns(count: int = 8) -> None:
    """Let everything that is due on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = start_thread(loop.run_forever, "loop")
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.result()
    loop.close()


@contextmanager
def executor_of(kind: str) -> Iterator[Any]:
    """What an operator takes as its executor."""
    if kind == "loop":
        with loop_thread() as loop:
            yield loop
    elif kind in ("pool", "single"):
        with ThreadPoolExecutor(3 if kind == "pool" else 1) as pool:
            yield pool
    else:
        yield {"own worker": None, "caller": "caller"}[kind]
