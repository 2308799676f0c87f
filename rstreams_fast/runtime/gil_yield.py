"""Yields the GIL beside an event loop that is always busy.

Such a loop releases the GIL between two steps, but only while it polls its sockets. That wakes a
thread that waits for the GIL, but the thread finds the GIL taken again, and waits anew. So it never
waits ``sys.getswitchinterval()`` (5 ms) at a stretch, after which it could demand the GIL. Where
threads wake slowly, short steps keep the GIL from it for seconds. Therefore streams that keep a
loop busy sleep now and then, for as long as a thread needs to wake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

from rstreams_fast.runtime.parking import HAS_GIL

__all__ = ["WORK_SECONDS", "yield_gil"]

#: How long a thread works before it yields: the sleep takes less than a hundredth of that.
WORK_SECONDS: Final = 0.01

#: The shortest sleep. On Linux it really lasts about 60 us, as long as another thread takes to
#: wake.
_SLEEP_SECONDS: Final = 1e-6

#: Some builds of Python lack ``thread_time``: then waiting counts as work, which costs little.
thread_time: Final[Callable[[], float]] = getattr(time, "thread_time", perf_counter)


class _Worked(threading.local):
    """Per thread: its processor time at the last yield, and when to check it again."""

    def __init__(self) -> None:
        self.seconds = thread_time()
        self.look_at = perf_counter() + WORK_SECONDS


_worked = _Worked()


def yield_gil() -> None:
    """Yield the GIL if this thread has worked for ``WORK_SECONDS`` since its last yield.

    For streams that make an event loop call them again at once. Time spent waiting does not count:
    so a loop that is idle half of the time loses no larger part of its work.
    """
    if not HAS_GIL:
        return
    worked = _worked
    now = perf_counter()
    if now < worked.look_at:
        return
    since = thread_time() - worked.seconds
    if 0 <= since < WORK_SECONDS:  # negative in the child of a fork, whose clock starts anew
        worked.look_at = now + (WORK_SECONDS - since)  # processor time is no faster than the clock
        return
    sleep(_SLEEP_SECONDS)
    worked.seconds = thread_time()
    worked.look_at = perf_counter() + WORK_SECONDS
