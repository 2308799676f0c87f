"""Waiting in a coroutine: a future of the loop that runs here, answered from any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["new_bell"]


def new_bell(
    lost: Callable[[], object] | None = None,
) -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Return a future, and a function for any thread that has it done soon.

    ``lost`` is called instead where the loop was closed: nobody waits there any more.
    """
    import asyncio  # only who awaits needs it

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def answer() -> None:
        if not future.done():
            future.set_result(None)

    def ring() -> None:
        if asyncio._get_running_loop() is loop:
            answer()
            return
        try:
            loop.call_soon_threadsafe(answer)
        except RuntimeError:
            if lost is not None:
                lost()

    return future, ring
