"""Gives other threads the GIL while an event loop is always busy.

A busy loop releases the GIL in each iteration, but only for the short time in which it polls its
sockets. A thread that waits for the GIL then wakes up, finds that the loop has the GIL again, and
waits anew. Python lets a thread demand the GIL only after it has waited, without a break, for
``sys.getswitchinterval()`` (5 ms). Beside a busy loop a thread never waits so long without a break.
On systems where threads wake up slowly, it may not get the GIL for seconds. Therefore streams that
keep a loop busy sleep now and then, for as long as another thread needs to wake up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

from rstreams_fast.runtime.parking import HAS_GIL

__all__ = ["WORK_SECONDS", "yield_gil"]

#: Seconds of work after which ``yield_gil`` sleeps. The sleep is shorter than a hundredth of this.
WORK_SECONDS: Final = 0.01

#: Seconds for which ``yield_gil`` asks to sleep. On Linux such a sleep really lasts about 60 us, as
#: long as another thread needs to wake up.
_SLEEP_SECONDS: Final = 1e-6

#: The processor time of this thread. On builds of Python without thread_time it is the wall-clock
#: time, so that waiting counts as work.
thread_time: Final[Callable[[], float]] = getattr(time, "thread_time", perf_counter)


class _WorkTimes(threading.local):
    """For each thread: its processor time at its last sleep, and when to check the time again."""

    def __init__(self) -> None:
        self.seconds = thread_time()
        self.check_at = perf_counter() + WORK_SECONDS


_work_times = _WorkTimes()


def yield_gil() -> None:
    """Release the GIL by a short sleep, if this thread has worked for ``WORK_SECONDS``.

    Streams that work on an event loop call this again and again. Only the thread's processor time
    since its last sleep counts. So a loop that is often idle sleeps less often.
    """
    if not HAS_GIL:
        return
    times = _work_times
    now = perf_counter()
    if now < times.check_at:
        return
    since = thread_time() - times.seconds
    # ``since`` is the processor time since the last sleep. In a forked child thread_time() starts
    # at 0 again, so ``since`` may be negative. Then sleep.
    if 0 <= since < WORK_SECONDS:
        # Check again at the earliest time at which this thread can have worked for WORK_SECONDS.
        times.check_at = now + (WORK_SECONDS - since)
        return
    sleep(_SLEEP_SECONDS)
    times.seconds = thread_time()
    times.check_at = perf_counter() + WORK_SECONDS
