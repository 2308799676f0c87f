"""``expect_collected``: finds references to an object that are kept too long."""

from __future__ import annotations

import gc
import threading
import types
import weakref
from typing import Any

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.outcome import RuleBroken

__all__ = ["expect_collected"]

#: The first pause between two collections, in seconds. Each later pause is twice as long.
_FIRST_PAUSE = 0.001


def expect_collected(
    environment: Environment,
    reference: weakref.ref[Any],
    rule: str,
    expected: str,
    part: float = 1,
) -> None:
    """Raise ``RuleBroken`` for ``rule`` unless the referent is garbage-collected in time.

    Another thread may need some time to drop its reference. So the garbage collector runs several
    times, with pauses. All pauses together take at most ``part`` (a fraction) of the timeout. The
    pauses get longer, because a run of the collector is slow if the process has many objects.
    """
    # The callback of a weak reference releases this lock. A threading.Event would not do: the
    # callback may run while this thread holds the event's internal lock. Then set() would wait for
    # that lock for ever.
    gone = threading.Lock()
    gone.acquire()
    watch = _watch(reference, gone)
    left = part * environment.timeout
    pause = _FIRST_PAUSE
    while reference() is not None:
        gc.collect()
        if gone.acquire(timeout=pause):
            break
        environment.verify()
        left -= pause
        referent = reference()
        if left < 0 and referent is not None:
            raise RuleBroken(rule, expected, f"it is kept alive by {_referrer_types(referent)}")
        del referent
        pause = min(2 * pause, left + _FIRST_PAUSE)
    del watch


def _watch(reference: weakref.ref[Any], gone: threading.Lock) -> object:
    referent = reference()
    if referent is None:
        return None
    return weakref.ref(referent, lambda _reference: gone.release())


def _referrer_types(referent: object) -> str:
    here = (types.FrameType, weakref.ref)
    referrers = gc.get_referrers(referent)
    names = {type(each).__name__ for each in referrers if not isinstance(each, here)}
    return ", ".join(sorted(names)) or "a frame, a traceback or C code"
