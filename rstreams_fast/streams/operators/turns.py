"""Calls that take turns: one at a time of those that have the same key, others beside them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["InTurn"]


class InTurn:
    """``fn``, called in the order of the elements for those of one key, and for so many at once.

    ``key`` gets what ``fn`` gets. An element that waits for its turn, or for room, is a call for
    the window that calls this, and none of ``fn`` yet. A failure ends all calls. For the loop's
    thread only; each subscription has its own.
    """

    def __init__(
        self, fn: Callable[..., Awaitable[Any]], key: Callable[..., Any], concurrency: int
    ) -> None:
        self._fn = fn
        self._key = key
        self._room = asyncio.Semaphore(concurrency)
        self._lines: dict[Any, deque[asyncio.Future[None]]] = {}
        """Who waits for the call of a key to end; a key without a call has no line."""

    async def __call__(self, *element: Any) -> Any:
        key = self._key(*element)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
        else:
            turn = asyncio.get_running_loop().create_future()
            line.append(turn)
            await turn
        async with self._room:
            result = await self._fn(*element)
        if line:
            line.popleft().set_result(None)
        else:
            del self._lines[key]
        return result
