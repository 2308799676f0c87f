"""A call of a plain function that an exception of a signal handler ends at any point."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.calls.test_plain_functions import limit_threads
from tests.helpers import case, start_thread, wait_until

Make = Callable[[str], dict[str, Any]]


class Interrupt(BaseException):
    """Ends a call, as ``KeyboardInterrupt`` does."""


def interrupt(call: Callable[[], object], nth: int) -> str:
    """Make ``call``, and raise an ``Interrupt`` at its ``nth`` point; return where that was.

    The points are those where CPython runs signal handlers: where a Python function begins, and
    after a call of a C function. The result is empty if ``call`` has fewer points.
    """
    points, place = 0, ""

    def strike(frame: FrameType, event: str, arg: object) -> None:
        nonlocal points, place
        code = frame.f_code
        # The locks of ``threading`` are not safe: an interrupted ``Condition`` may stay locked.
        if event not in ("call", "c_return") or code.co_filename == threading.__file__:
            return
        points += 1
        if points == nth:
            sys.setprofile(None)
            file = Path(code.co_filename).name
            place = f"{event} {file}:{frame.f_lineno} {getattr(arg, '__name__', code.co_name)}"
            raise Interrupt

    sys.setprofile(strike)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return place


UNITS: dict[str, Any] = {"units": {"tokens": rsf.per_second(1e6)}, "weigh": abs}
POLICIES: dict[str, Make] = {
    "cache": lambda _: {"cache": rsf.Cache(entries=5)},
    "limit": lambda name: {"limit": rsf.Limit(name, concurrency=1, scope="process")},
    "limit of the host": lambda name: {"limit": rsf.Limit(name, concurrency=1)},
    "units": lambda name: {"limit": rsf.Limit(name, concurrency=1, scope="process", **UNITS)},
}


# An exception may come between the creation of a coroutine and its first step.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", POLICIES)
def test_calls_go_on_after_an_exception_of_a_signal(kind: str, name: str) -> None:
    """Only one call may run under the limits, so a lost permit would stop the next call."""
    for nth in count(1):
        call: Any = rsf.Policy(**POLICIES[kind](f"{name} {nth}"))(abs)
        places: list[str] = []

        def work(call: Any = call, nth: int = nth, places: list[str] = places) -> list[int]:
            for x in range(6):  # the cache is full
                call(x)
            places.append(interrupt(lambda: call(6), nth))
            return [call(x) for x in range(10, 20)]

        with case(places):
            assert start_thread(work).result() == list(range(10, 20))
        if not places[0]:
            assert nth > 20
            break
    wait_until(lambda: not limit_threads(), "the end of the limits' threads")
