"""A burst that never ends, over callables that never run a Python instruction."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections import deque
from collections.abc import Generator
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from tests.helpers import start_thread, wait_for

#: Elements until the loop has looked at everything it looks at in the beginning.
WARM_UP = 10_000


class Sent(BaseException):
    """What is sent to a thread from outside."""


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs CPython's C API")
def test_the_interpreter_looks_around_within_a_loop_of_c_callables(core: Any) -> None:
    """Where it looks for what was sent to the thread, it also hands over the GIL on request.

    Merely to release the GIL now and then is not enough: it starved threads that waited for it.
    """
    demand = core.DemandCounter(UNBOUNDED)
    started = threading.Event()

    def begin() -> Generator[int, None, None]:
        started.set()
        yield 1

    # Not resumed nor closed while the loop runs: that would be Python, and take what is sent.
    beginning = begin()
    source = itertools.chain(
        itertools.repeat(1, WARM_UP), itertools.islice(beginning, 1), itertools.repeat(1)
    )
    run = core.FusedRun(source, (("map", abs),), deque[int](maxlen=1).append, demand)
    thread = start_thread(lambda: run.drain(UNBOUNDED))
    try:
        wait_for(started, "the first element")
        sent = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Sent)
        )
        assert sent == 1
        with pytest.raises(Sent):
            thread.result()
    finally:
        demand.cancel()
        beginning.close()
