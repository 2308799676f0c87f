"""Lets other threads get the GIL while streams keep an event loop busy.

A busy loop releases the GIL in each iteration, but only for the short time in which it polls its
sockets. The release wakes a thread that waits for the GIL. But when this thread runs, the loop has
the GIL again, and the thread must start a new wait. Python forces the loop to give up the GIL only
after a single wait of ``sys.getswitchinterval()`` (5 ms). Beside a busy loop, no wait lasts so
long. On systems where threads wake up slowly, a thread may not get the GIL for seconds. Therefore
streams that keep a loop busy sleep now and then, for as long as another thread needs to wake up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

from rstreams_fast.runtime.parking import HAS_GIL

__all__ = ["WORK_SECONDS", "yield_gil"]

#: Seconds of work after which ``yield_gil`` sleeps. The sleep takes less than 1 % of this time.
WORK_SECONDS: Final = 0.01

#: The argument of ``time.sleep`` in ``yield_gil``, in seconds. On Linux the shortest sleep lasts
#: about 60 us. This is about the time that another thread needs to wake up.
_SLEEP_SECONDS: Final = 1e-6

#: Returns the processor time of the calling thread, in seconds. If this Python has no
#: ``time.thread_time``, it returns the wall-clock time. Then the time of waiting counts as work.
thread_time: Final[Callable[[], float]] = getattr(time, "thread_time", perf_counter)


class _WorkTimes(threading.local):
    """For each thread: its processor time at its last sleep, and the earliest time of the next."""

    def __init__(self) -> None:
        self.seconds = thread_time()
        self.check_at = perf_counter() + WORK_SECONDS


_work_times = _WorkTimes()


def yield_gil() -> None:
    """Release the GIL by a short sleep, if this thread has worked for ``WORK_SECONDS``.

    Streams that work on an event loop call this function again and again. Only the processor time
    since the thread's last sleep counts as work. So an event loop that is often idle sleeps rarely.
    """
    if not HAS_GIL:
        return
    times = _work_times
    now = perf_counter()
    if now < times.check_at:
        return
    since = thread_time() - times.seconds
    # ``since`` is the processor time since the last sleep. It may be negative in a forked child,
    # where thread_time() starts at 0 again. Then sleep, which stores a new ``times.seconds``.
    if 0 <= since < WORK_SECONDS:
        # The thread can have worked for WORK_SECONDS at this time at the earliest.
        times.check_at = now + (WORK_SECONDS - since)
        return
    sleep(_SLEEP_SECONDS)
    times.seconds = thread_time()
    times.check_at = perf_counter() + WORK_SECONDS
