"""Stops a thread at each of its steps in the package, and lets another one work there.

``for step in steps()`` builds a fresh scene each time. ``with step.meanwhile(call)`` runs its body
traced: at the step of that turn the thread stops, and ``call`` runs in another thread. The product
knows nothing of it. The loop is over when the body has fewer steps than the turn's number.

A call that waits for the thread that stopped is left behind, and ends after the body: its effects
then come late, which is one more order that the scene has to bear.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rstreams_fast
from tests.helpers import TestThread, start_thread, wait_for

PACKAGE = str(Path(rstreams_fast.__file__).parent)

#: Seconds that a stopped thread stands still for a call that may be waiting for it.
PATIENCE = 0.02


@functools.cache
def _looks(code: CodeType) -> frozenset[int]:
    """Where ``code`` reads, writes or calls what another thread may have changed."""
    return frozenset(
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_ATTR", "_METHOD", "_SUBSCR", "CALL"))
    )


class Step:
    """The ``number``-th step of a body; the other call stops at its own step ``until``, if any,
    until the body is over.
    """

    def __init__(self, number: int, fine: bool, within: str, until: int | None = None) -> None:
        self.number, self.until = number, until
        self.came = self.stopped = False
        self._where = "after the end"
        self._body = _Trace(number, fine, within, self._reached)
        self._other = None if until is None else _Trace(until, fine, within, self._stop)
        self._call: Callable[[], object] = lambda: None
        self._thread: TestThread[object] | None = None
        self._paused, self._over = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        return f"<step {self.number}: {self._where}, until {self.until}>"

    @contextmanager
    def meanwhile(self, call: Callable[[], object]) -> Iterator[None]:
        """Run ``call`` in another thread at this step of the body, or else after the body."""
        self._call = call
        try:
            with self._body:
                yield
        except BaseException as raised:
            raised.add_note(repr(self))
            raise
        finally:
            self._over.set()
        if self._thread is None:
            self._start()
        assert self._thread is not None
        self._thread.result()

    def _reached(self, where: str) -> None:
        self.came, self._where = True, where
        self._start()

    def _start(self) -> None:
        self._thread = start_thread(self._run, "meanwhile")
        self._paused.wait(PATIENCE)

    def _run(self) -> object:
        try:
            with self._other or nullcontext():
                return self._call()
        finally:
            self._paused.set()

    def _stop(self, _where: str) -> None:
        self.stopped = True
        self._paused.set()
        wait_for(self._over, "the end of the body")


class _Trace:
    """Traces the thread that enters it, and calls ``then`` at its ``number``-th step."""

    def __init__(self, number: int, fine: bool, within: str, then: Callable[[str], object]) -> None:
        self._left = number
        self._is_fine = fine
        self._within = within
        self._then = then

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def __exit__(self, *_raised: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if self._left < 0 or not frame.f_code.co_filename.startswith(self._within):
            return None
        frame.f_trace_opcodes = self._is_fine
        frame.f_trace_lines = not self._is_fine
        return self._trace

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" or (event == "opcode" and frame.f_lasti in _looks(frame.f_code)):
            self._left -= 1
            if self._left == -1:
                self._then(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        return self._trace if self._left >= 0 else None


def steps(*, fine: bool = False, within: str = "streams") -> Iterator[Step]:
    """Every step of the bodies in the part ``within`` of the package: each line, or each look."""
    for number in itertools.count():
        yield (step := Step(number, fine, f"{PACKAGE}/{within}"))
        if not step.came:
            return


def pairs_of_steps(*, fine: bool = False, within: str = "streams") -> Iterator[Step]:
    """Every step of the bodies, with every step at which the other call may stop meanwhile."""
    for number in itertools.count():
        for until in itertools.count():
            yield (step := Step(number, fine, f"{PACKAGE}/{within}", until))
            if not step.came:
                return
            if not step.stopped:
                break
