"""Warns if an ``async def`` function of the user blocks the event loop and so all other calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import rstreams_fast
from rstreams_fast.spark.worker.counters import Counters

__all__ = ["LoopWatch"]

LOOP_CHECK_SECONDS: Final = 0.05
"""While the main thread waits for results: seconds between two checks for a blocked loop."""

BLOCKED_CHECKS: Final = 2
"""``LoopWatch`` warns if this many checks in a row find the loop blocked by the user's function."""

MOST_PLACES: Final = 16
"""``blocked_at`` of the metrics has at most this number of lines of code that blocked the loop."""

_PACKAGE: Final = str(Path(rstreams_fast.__file__).parent) + os.sep
_warned: Final[set[types.CodeType]] = set()


def _code_of(fn: Any) -> types.CodeType | None:
    """Return the code object of the user's function; ``None`` if it is not written in Python."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    for one in (fn, getattr(type(fn), "__call__", None)):  # noqa: B004 - only its attribute is read
        # A bound method has ``__code__``, too: the code of its function.
        code = getattr(one, "__code__", None)
        if isinstance(code, types.CodeType):
            return code
    return None


class LoopWatch:
    """Warns if the user's function blocks the event loop of a stage for a tenth of a second.

    While the main thread waits for results, it calls ``check`` twenty times a second. A check
    queues a callback on the loop. If the callback has not run by the next check, that check looks
    for the user's function in the stack of the loop's thread. This does not slow down the calls.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fn: Callable[..., Any], counters: Counters
    ) -> None:
        self._loop = loop
        self._code = _code_of(fn)
        self._label = counters.stage
        self._counters = counters
        self._thread: int | None = None
        self._answered = True
        self._checks_in_function = 0
        self._since = 0.0

    def begin(self) -> None:
        """Record the calling thread as the loop's thread."""
        self._thread = threading.get_ident()

    def seconds_until(self, moment: float) -> float:
        """Return the seconds to wait until the next check for a blocked event loop.

        The wait ends at ``moment``, a time of ``time.monotonic``, if that comes first.
        """
        return min(LOOP_CHECK_SECONDS, max(0.0, moment - time.monotonic()))

    def check(self) -> None:
        """Check whether the user's function blocks the loop. The main thread calls this method."""
        now = time.monotonic()
        if self._answered:
            self._answered = False
            self._checks_in_function = 0
            with contextlib.suppress(RuntimeError):  # RuntimeError: the loop is closed already
                self._loop.call_soon_threadsafe(self._answer)
            return
        frame = self._frame_of_function()
        if frame is None:
            self._checks_in_function = 0
            return
        if not self._checks_in_function:
            self._since = now
        self._checks_in_function += 1
        if self._checks_in_function >= BLOCKED_CHECKS:
            self._count(frame, now - self._since)
            self._since = now
            if self._code not in _warned:
                self._warn(frame)

    def _count(self, frame: types.FrameType, seconds: float) -> None:
        self._counters.blocked += seconds
        places = self._counters.blocked_at
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if place in places or len(places) < MOST_PLACES:
            places[place] = places.get(place, 0.0) + seconds

    def _answer(self) -> None:
        self._answered = True

    def _frame_of_function(self) -> types.FrameType | None:
        """Return the frame of the watched function if the loop runs this function, else ``None``.

        If the function belongs to this package, return the frame of the user code that it calls.
        """
        frame = None if self._code is None else sys._current_frames().get(self._thread or 0)
        of_user = None
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                of_user = frame
            if frame.f_code is self._code:
                return of_user or frame
            frame = frame.f_back
        return None

    def _warn(self, frame: types.FrameType) -> None:
        assert self._code is not None  # noqa: S101 - for mypy
        _warned.add(self._code)
        logging.getLogger("rstreams_fast").warning(
            "%s keeps the event loop, at %s:%d: no other call of its stage moves meanwhile. An "
            "'async def' must await what takes time; a plain 'def' is called on threads.",
            self._label,
            frame.f_code.co_filename,
            frame.f_lineno,
        )
