"""Yield the GIL beside an event loop that always has something to do.

Such a loop releases the GIL between two steps, but only for as long as it takes to poll its
sockets. A thread that waits for the GIL is woken by that, finds the GIL taken again, and waits
anew; as it never waits ``sys.getswitchinterval()`` (5 ms) at a stretch, it never gets to demand
the GIL. Where threads wake slowly, shorter steps lock it out for seconds. So streams that keep a
loop busy sleep now and then, for as long as a thread takes to wake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

from rstreams_fast.runtime.parking import HAS_GIL

__all__ = ["WORK_SECONDS", "yield_gil"]

#: How long a thread works before it yields: the sleep costs it less than a hundredth.
WORK_SECONDS: Final = 0.01

#: As short as can be. What a thread that sleeps really takes to come back, some 60 us on Linux, is
#: what another one takes to wake.
_SLEEP_SECONDS: Final = 1e-6

#: Not every build of Python has it; without it waiting counts as work, which costs little.
thread_time: Final[Callable[[], float]] = getattr(time, "thread_time", perf_counter)


class _Worked(threading.local):
    """How long the thread had worked when it last yielded, and when to look at that again."""

    def __init__(self) -> None:
        self.seconds = thread_time()
        self.look_at = perf_counter() + WORK_SECONDS


_worked = _Worked()


def yield_gil() -> None:
    """Let a thread that waits for the GIL have it, if this one has worked long enough since.

    For streams that have an event loop call them again at once. Waiting does not count: to a loop
    that is idle half the time, this costs as small a part of its work.
    """
    if not HAS_GIL:
        return
    worked = _worked
    now = perf_counter()
    if now < worked.look_at:
        return
    since = thread_time() - worked.seconds
    if 0 <= since < WORK_SECONDS:  # in the child of a fork the clock has begun anew
        worked.look_at = now + (WORK_SECONDS - since)  # nobody works faster than the clock
        return
    sleep(_SLEEP_SECONDS)
    worked.seconds = thread_time()
    worked.look_at = perf_counter() + WORK_SECONDS
