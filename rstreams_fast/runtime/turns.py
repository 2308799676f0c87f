"""Letting other threads run beside an event loop that always has something to do.

Such a loop gives up the GIL between two turns, but only for as long as it takes to ask whether its
sockets have news. A thread that waits for the GIL is woken by that, finds it taken again, and waits
anew; and as it never waits ``sys.getswitchinterval()`` (5 ms) at a stretch, it never gets to demand
the GIL. Where threads wake slowly, shorter turns lock it out for seconds. So whoever keeps a loop
busy sleeps now and then, for as long as a thread takes to wake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final

from rstreams_fast.runtime.parking import HAS_GIL

__all__ = ["KEEP_SECONDS", "let_threads_in"]

#: How long a thread works before it lets others in: the sleep costs it less than a hundredth.
KEEP_SECONDS: Final = 0.01

#: As short as can be. What a thread that sleeps really takes to come back, some 60 us on Linux, is
#: what another one takes to wake.
_SLEEP_SECONDS: Final = 1e-6

#: Not every build of Python has it; without it waiting counts as work, which costs little.
thread_time: Final[Callable[[], float]] = getattr(time, "thread_time", perf_counter)


class _Kept(threading.local):
    """What the thread had worked when it last let others in, and when to look at that again."""

    def __init__(self) -> None:
        self.worked = thread_time()
        self.look_at = perf_counter() + KEEP_SECONDS


_kept = _Kept()


def let_threads_in() -> None:
    """Let a thread that waits for the GIL have it, if this one has worked long enough since.

    For whoever has an event loop call it again at once. Waiting does not count: to a loop that is
    idle half the time, this costs as small a part of its work.
    """
    if not HAS_GIL:
        return
    kept = _kept
    now = perf_counter()
    if now < kept.look_at:
        return
    worked = thread_time() - kept.worked
    if 0 <= worked < KEEP_SECONDS:  # in the child of a fork the clock has begun anew
        kept.look_at = now + (KEEP_SECONDS - worked)  # nobody works faster than the clock
        return
    sleep(_SLEEP_SECONDS)
    kept.worked = thread_time()
    kept.look_at = perf_counter() + KEEP_SECONDS
