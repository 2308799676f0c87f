"""Where a scenario runs: threads, a pool, a loop, all of which are over when it is."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.helpers import DEADLINE, TestThread, start_thread
from tests.streams.loops import loop_thread


class Chance(random.Random):
    """The decisions of a scenario: the seed repeats them, as far as threads do not decide."""

    def fork(self) -> Chance:
        """One for another thread: they must not share."""
        return Chance(self.getrandbits(64))

    def one_in(self, n: int) -> bool:
        return self.randrange(n) == 0

    def size(self, most: int) -> int:
        """From 1 to ``most``, small ones as likely as large ones."""
        return min(most, (1 << self.randrange(most.bit_length())) + self.randrange(3))


class Place:
    """The threads of one scenario. What goes wrong in any of them is raised by :meth:`close`."""

    def __init__(self, chance: Chance, patience: float = DEADLINE) -> None:
        self._chance = chance
        self._patience = patience
        self._lock = threading.Lock()  # for the thread that needs the pool or the loop first
        self._threads: list[TestThread[Any]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = ExitStack()  # ends the loop
        self._wrong: list[str] = []

    def thread(self, work: Callable[..., Any], *args: Any) -> TestThread[Any]:
        thread = start_thread(lambda: work(*args), f"soak-{getattr(work, '__name__', 'work')}")
        self._threads.append(thread)
        return thread

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._chance.randint(1, 3), "soak-pool")
            return self._pool

    def loop(self) -> asyncio.AbstractEventLoop:
        """A running loop on a thread of its own."""
        with self._lock:
            if self._loop is None:
                self._loop = self._stack.enter_context(loop_thread())
                self._loop.set_exception_handler(self._told)
            return self._loop

    def _told(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._wrong.append(repr(context.get("exception", context)))

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop()).result(DEADLINE)

    def executor(self) -> Any:
        """Any resource that a boundary may run on."""
        return self._chance.choice((lambda: None, lambda: "caller", self.pool, self.loop))()

    def join(self) -> None:
        """Wait for all threads so far, and raise what they raised."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.result()

    def close(self) -> None:
        """Wait for everything; the loop must have nothing left to do."""
        try:
            self.join()
            if self._loop is not None:
                self._await_tasks(self._loop)
            if self._wrong:
                raise AssertionError(f"a loop was told: {self._wrong}")
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            self._stack.close()
            self._pool = self._loop = None

    def _await_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        until = time.monotonic() + self._patience

        async def others() -> list[str]:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            return [repr(task) for task in tasks]

        while left := asyncio.run_coroutine_threadsafe(others(), loop).result(DEADLINE):
            if time.monotonic() > until:
                raise AssertionError(f"tasks are left on the loop: {left}")
            time.sleep(0.002)
