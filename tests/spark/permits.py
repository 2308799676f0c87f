"""Calls of a limit that go on until a test ends them: each of them has a permit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import signal
import threading
from collections.abc import Awaitable, Iterable, Iterator
from pickle import dumps
from typing import Any, TypeVar

import psutil

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE
from tests.spark.processes import OtherProcess

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """Wait with a deadline."""
    return await asyncio.wait_for(awaitable, DEADLINE)


class Call:
    """One call, which has its permit until ``end``."""

    def __init__(self) -> None:
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._retry_after = 0.0
        self.task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        self._begun.set()
        await self._ended.wait()
        seconds, self._retry_after = self._retry_after, 0.0
        if seconds:
            raise rs.RetryAfter(seconds)

    def end(self, retry_after: float = 0.0) -> None:
        """Let it end, or first ask for no call for so many seconds."""
        self._retry_after = retry_after
        self._ended.set()

    async def begun(self) -> Call:
        """Wait until it has its permit."""
        assert self.task is not None
        beginning = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({self.task, beginning}, return_when=asyncio.FIRST_COMPLETED)
            if self.task.done():
                self.task.result()
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        finally:
            beginning.cancel()
        return self


class Stage:
    """What makes calls under a limit as a stage of its own, on the loop that runs."""

    def __init__(self, limit: rs.Limit) -> None:
        self._make: Any = rs.Policy(limit=limit)(_call)
        self._tasks = list[asyncio.Task[None]]()

    async def begin(self) -> Call:
        """Begin a call; return it when it has its permit."""
        call = Call()
        call.task = asyncio.ensure_future(self._make(call))
        self._tasks.append(call.task)
        return await call.begun()

    async def begin_all(self, count: int) -> list[Call]:
        """Begin so many, with a deadline."""
        return [await soon(self.begin()) for _ in range(count)]

    def waiting(self) -> asyncio.Task[Call]:
        """Begin a call that waits for its permit meanwhile."""
        return asyncio.ensure_future(self.begin())

    async def cancel(self) -> None:
        """Cancel its calls, and let nothing of it stay but garbage."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._make = None

    async def close(self) -> None:
        """Cancel its calls, and end."""
        await self.cancel()
        await _close_garbage()


async def _close_garbage() -> None:
    gc.collect()
    await asyncio.sleep(0.02)  # in which the loop closes the gates


async def _call(call: Call) -> None:
    await call()


@contextlib.asynccontextmanager
async def stages(*limits: rs.Limit) -> Any:
    """Give a stage for each limit; close them."""
    made = [Stage(limit) for limit in limits]
    try:
        yield made
    finally:
        for stage in made:
            await stage.cancel()
        await _close_garbage()


async def is_not_granted(call: asyncio.Task[Call], seconds: float = 0.1) -> bool:
    """Whether it waits for so long."""
    await asyncio.wait([call], timeout=seconds)
    return not call.done()


HOLDER = """
import asyncio, pickle, sys
import rstreams_fast.spark as rs

limit, wanted = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])

async def main():
    begun = []

    async def hold():
        begun.append(1)
        if len(begun) == wanted:
            print("holds", flush=True)
        await asyncio.sleep(600)

    hold = rs.Policy(limit=limit)(hold)
    await asyncio.gather(*(hold() for _ in range(wanted)))

asyncio.run(main())
"""


@contextlib.contextmanager
def holder(limit: rs.Limit, permits: int = 3, **environment: str) -> Iterator[OtherProcess]:
    """Give another process, which has so many permits of the limit, and is killed at the end."""
    with OtherProcess(HOLDER, dumps(limit).hex(), str(permits), **environment) as process:
        assert process.line() == "holds"
        yield process


DRIVER = """
import os, pickle, sys
import rstreams_fast.spark as rs

limit = rs.Limit("limit", concurrency=int(sys.argv[1]), scope="job")
print(pickle.dumps(limit).hex(), flush=True)
for line in sys.stdin:  # how many descriptors are open, and can one more be had
    with open("/dev/null"):
        print(len(os.listdir("/proc/self/fd")), flush=True)
"""


class Driver(OtherProcess):
    def __init__(self, concurrency: int) -> None:
        super().__init__(DRIVER, str(concurrency))
        self.limit: rs.Limit = pickle.loads(bytes.fromhex(self.line()))

    def descriptors(self) -> int:
        return int(self.tell())

    def pause(self, seconds: float) -> None:
        """Stop the process, as a long collection of garbage does."""
        self.send_signal(signal.SIGSTOP)
        threading.Timer(seconds, self.send_signal, [signal.SIGCONT]).start()


def relays() -> list[psutil.Process]:
    """Return the relays that processes of this test have started."""
    return relays_among(psutil.Process().children(recursive=True))


def relays_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the relays, through which workers of a host reach the driver of a limit."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if any(word.endswith("limits/relay.py") for word in process.cmdline()):
                found.append(process)
    return found
