"""Waiting in a coroutine: a future of the loop that runs here, answered from any thread.

Imported by who awaits a ring, and so by nobody who has not asyncio already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["new_bell"]


def new_bell() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Return a future, and a function for any thread that has it done soon."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def answer() -> None:
        if not future.done():
            future.set_result(None)

    def ring() -> None:
        if asyncio._get_running_loop() is loop:
            answer()
        else:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits there any more
                loop.call_soon_threadsafe(answer)

    return future, ring
