"""Ctrl-C at every point where the interpreter looks for it inside a call of a ring.

It looks where a function begins, where a loop goes round, and after a call of something that is
written in C. The compiled backend has no such point within a call: there the calls are just made.
"""

from __future__ import annotations

import asyncio
import dis
import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import rstreams_fast.core
from tests.core.conftest import MODULES
from tests.core.test_serializer import blocked
from tests.helpers import DEADLINE, start_thread

# One that is made, but interrupted before it is awaited.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

#: Whose steps count: what the rings themselves are written in, and what they may wait with.
CORE = str(Path(rstreams_fast.core.__file__).parent)
TRACED = (CORE, threading.__file__)
LOOKS = ("CALL", "JUMP_BACKWARD", "RESUME", "SEND")

instructions: dict[CodeType, dict[int, str]] = {}


def name_of(code: CodeType, offset: int) -> str:
    if code not in instructions:
        instructions[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
    return instructions[code].get(offset, "")


class Interrupt:
    """Raises an exception at one of the points in some files, and counts them on the way there."""

    def __init__(
        self,
        at: int,
        files: tuple[str, ...] = TRACED,
        raised: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.left = at
        self.files = files
        self.raised = raised
        self.before: dict[int, str] = {}  # by the frames' ids, which must not be kept

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.files):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "call":
            self.before[id(frame)] = "RESUME"
        elif event == "opcode":
            before = self.before[id(frame)]
            self.before[id(frame)] = name_of(frame.f_code, frame.f_lasti)
            if before.startswith(LOOKS):
                self.left -= 1
                if self.left == 0:
                    raise self.raised
        return self


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Whether there was such a point."""
    tracing = sys.gettrace()
    sys.settrace(Interrupt(at))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
    return False


def numbers(*elements: int) -> np.ndarray[Any, Any]:
    return np.array(elements, dtype="i8")


OBJECTS: dict[str, Callable[[Any], object]] = {
    "offer": lambda ring: ring.offer(2),
    "offer_many": lambda ring: ring.offer_many([2, 3]),
    "put": lambda ring: ring.put(2),
    "aput": lambda ring: asyncio.run(ring.aput(2)),
    "arm_producer": lambda ring: ring.arm_producer(int),
    "poll": lambda ring: ring.poll(),
    "poll_many": lambda ring: ring.poll_many(2),
    "get": lambda ring: ring.get(),
    "aget": lambda ring: asyncio.run(ring.aget()),
    "arm": lambda ring: ring.arm(int),
}
RECORDS: dict[str, Callable[[Any], object]] = {
    "write": lambda ring: ring.write(numbers(2)),
    "put": lambda ring: ring.put(numbers(2)),
    "aput": lambda ring: asyncio.run(ring.aput(numbers(2))),
    "reserve": lambda ring: len(ring.reserve(1)),
    "commit": lambda ring: (len(ring.reserve(1)), ring.commit(1)),
    "arm_producer": lambda ring: ring.arm_producer(int),
    "read": lambda ring: ring.read(),
    "read_into": lambda ring: ring.read_into(numbers(0)),
    "get": lambda ring: ring.get(),
    "aget": lambda ring: asyncio.run(ring.aget()),
    "peek": lambda ring: len(ring.peek(1)),
    "release": lambda ring: (len(ring.peek(1)), ring.release(1)),
    "arm": lambda ring: ring.arm(int),
}
#: More than any call has; reached, it means that a call never ends.
MANY = 1000


def test_the_points_are_found() -> None:
    """Else nothing below interrupts anything."""
    found = importlib.import_module(MODULES["python"])
    assert interrupt(lambda: found.SpscRing(1).offer(1), 1)


@pytest.mark.parametrize("call", OBJECTS)
def test_an_interrupted_call_leaves_the_ring_of_objects(core: Any, call: str) -> None:
    for at in range(1, MANY):
        ring = core.SpscRing(3)
        ring.offer_many([0, 1])
        again = interrupt(lambda ring=ring: OBJECTS[call](ring), at)
        left = ring.poll_many(3)
        assert left in ([0, 1], [0, 1, 2], [1], []), at
        assert ring.offer(7)
        assert ring.poll() == 7
        if not again:
            return
    raise AssertionError(f"{call} does not end")


@pytest.mark.parametrize("call", RECORDS)
def test_an_interrupted_call_leaves_the_ring_of_records(core: Any, call: str) -> None:
    for at in range(1, MANY):
        ring = core.RecordRing("i8", 3)
        ring.write(numbers(0, 1))
        again = interrupt(lambda ring=ring: RECORDS[call](ring), at)
        left = ring.read()
        assert left.tolist()[:2] in ([0, 1], [1], []), at
        assert ring.write(numbers(7)) == 1
        assert ring.read().tolist() == [7]
        if not again:
            return
    raise AssertionError(f"{call} does not end")


@pytest.mark.parametrize("waiting", ["get", "put"])
def test_who_is_parked_is_woken_by_an_interrupted_call(core: Any, waiting: str) -> None:
    for at in range(1, MANY):
        ring = core.SpscRing(1)
        call: Callable[[], object]
        if waiting == "get":
            parked, call = start_thread(ring.get), lambda ring=ring: ring.offer(1)
        else:
            ring.offer(0)
            parked, call = start_thread(lambda ring=ring: ring.put(1)), ring.poll
        wait_until_it_sleeps(parked, compiled="cython" in core.__name__)
        again = interrupt(call, at)
        # If the first one came to nothing. If it did what it is for, but woke nobody, then this
        # one does nothing, and wakes nobody either.
        call()
        parked.result()
        if not again:
            return
    raise AssertionError(f"what wakes {waiting} does not end")


@pytest.mark.parametrize("call", ["get", "put"])
def test_an_interrupted_wait_leaves_the_ring(core: Any, call: str) -> None:
    wait: Callable[[Any], object] = (
        (lambda ring: ring.get(0.01)) if call == "get" else (lambda ring: ring.put(1, 0.01))
    )
    for at in range(1, MANY):
        ring = core.SpscRing(1)
        left = ring.offer_many([] if call == "get" else [0])
        try:
            again = interrupt(lambda ring=ring: wait(ring), at)
        except TimeoutError:
            again = False
        assert len(ring.poll_many(2)) == left
        assert ring.offer(7)
        assert ring.poll() == 7
        if not again:
            return
    raise AssertionError(f"{call} does not end")


def test_an_interrupted_wait_leaves_the_serializer(core: Any) -> None:
    for at in range(1, MANY):
        subscriber, serializer, thread = blocked(core, capacity=1, on_full="wait")
        serializer.on_next(1)
        later = threading.Timer(0.01, subscriber.release.set)
        later.start()
        again = interrupt(lambda serializer=serializer: serializer.on_next(2), at)
        thread.result()
        later.join()
        start_thread(serializer.cancel).result()  # the lock is free
        if not again:
            return
    raise AssertionError("on_next does not end")


def wait_until_it_sleeps(thread: threading.Thread, *, compiled: bool) -> None:
    """Where the backend is written in Python; the compiled one shows nothing, nor needs to."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        frame = sys._current_frames().get(thread.ident or 0)
        inside = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(CORE):
                inside.append(frame.f_code.co_name)
            frame = frame.f_back
        if {"sleep", "_wait_for"} & set(inside) or (compiled and not inside):
            return
    raise AssertionError("it does not sleep")
