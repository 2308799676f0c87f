"""``Bell``: wakes a coroutine that waits on its event loop. Any thread may call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["Bell"]


class Bell:
    """A callable for any thread. A call completes ``future``, and so wakes the waiting coroutine.

    The coroutine itself must create the ``Bell``, and await its ``future``. If the coroutine's loop
    was closed, a call cannot wake the coroutine, and calls ``on_lost`` instead.
    """

    __slots__ = ("_loop", "_on_lost", "future")

    def __init__(self, on_lost: Callable[[], object] | None = None) -> None:
        import asyncio  # imported here, so that a program without coroutines never loads asyncio

        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self.future: asyncio.Future[None] = self._loop.create_future()

    def __call__(self) -> None:
        import asyncio

        if asyncio._get_running_loop() is self._loop:
            self._set_result()
            return
        try:
            self._loop.call_soon_threadsafe(self._set_result)
        except RuntimeError:
            if self._on_lost is not None:
                self._on_lost()

    def is_lost(self) -> bool:
        """Whether the coroutine's loop was closed, so that the coroutine never continues."""
        return self._loop.is_closed()

    def _set_result(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
