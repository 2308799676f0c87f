"""An asyncio event loop in its own thread, for implementations that need a running loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["LoopThread"]


class LoopThread:
    """Calls functions on its event loop and waits for their results. Coroutines are awaited."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="tck-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """Return the result of ``function`` on the loop. Raise its error, or ``TimeoutError``."""
        answer = asyncio.run_coroutine_threadsafe(self._run(function, args), self._loop)
        try:
            return answer.result(timeout)
        finally:
            del answer, args  # the traceback of an exception must not keep a subscriber alive

    @staticmethod
    async def _run(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            made = function(*args)
            return await made if inspect.iscoroutine(made) else made
        except (KeyboardInterrupt, SystemExit) as raised:  # these would end the asyncio loop
            raise RuntimeError(f"the call raised {raised!r}") from raised

    def close(self, timeout: float) -> None:
        """Cancel the tasks that still run on the loop, then end the loop."""

        async def finish() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        ending = finish()
        try:
            asyncio.run_coroutine_threadsafe(ending, self._loop).result(timeout)
        except TimeoutError:
            return  # a call blocks the loop: leave the thread, which is a daemon, as it is
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        self._loop.close()
