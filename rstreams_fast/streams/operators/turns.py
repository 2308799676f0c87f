"""Calls that take turns: one at a time of those that have the same key, others beside them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["InTurn"]


class InTurn:
    """``fn``, called in the order of the elements for those of one key, and for so many at once.

    An element that waits for its turn, or for room, is a call to the window it is called by, and
    none of ``fn``. For the loop's thread only; each subscription has its own.
    """

    def __init__(
        self, fn: Callable[[Any], Awaitable[Any]], key: Callable[[Any], Any], concurrency: int
    ) -> None:
        self._fn = fn
        self._key = key
        self._room = asyncio.Semaphore(concurrency)
        self._lines: dict[Any, deque[asyncio.Future[None]]] = {}
        """Who waits for the call of a key to end; a key without a call has no line."""

    async def __call__(self, element: Any) -> Any:
        key = self._key(element)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
        else:
            turn = asyncio.get_running_loop().create_future()
            line.append(turn)
            await turn
        async with self._room:
            result = await self._fn(element)
        # Not after a failure: that, and a cancellation, ends all calls.
        if line:
            line.popleft().set_result(None)
        else:
            del self._lines[key]
        return result
