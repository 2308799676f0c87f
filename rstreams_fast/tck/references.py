"""Whether an object is collected: references that are kept too long."""

from __future__ import annotations

import gc
import threading
import types
import weakref
from typing import Any

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.outcome import RuleBroken

__all__ = ["expect_collected"]

#: The first pause between two collections, in seconds; each one is twice as long.
_FIRST_PAUSE = 0.001


def expect_collected(
    environment: Environment,
    reference: weakref.ref[Any],
    rule: str,
    expected: str,
    part: float = 1,
) -> None:
    """Expect that the referent is collected; ``rule`` is the one that is broken otherwise.

    Another thread may need a while to drop its reference, so collections are repeated, with pauses
    of that ``part`` of the timeout together. There are few collections: each one takes as long as
    the whole process has objects, and the check has a bound.
    """
    # A lock, not an event: its referent may die while this very thread is within the event's own
    # lock, and setting it would take that again.
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
            raise RuleBroken(rule, expected, f"it is kept alive by {_keepers(referent)}")
        del referent
        pause = min(2 * pause, left + _FIRST_PAUSE)
    del watch


def _watch(reference: weakref.ref[Any], gone: threading.Lock) -> object:
    referent = reference()
    if referent is None:
        return None
    return weakref.ref(referent, lambda _reference: gone.release())


def _keepers(referent: object) -> str:
    here = (types.FrameType, weakref.ref)
    referrers = gc.get_referrers(referent)
    names = {type(each).__name__ for each in referrers if not isinstance(each, here)}
    return ", ".join(sorted(names)) or "a frame, a traceback or C code"
