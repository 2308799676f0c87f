"""What every test shares: running threads, and waiting with a deadline.

A test never sleeps and never hopes. It waits for an event, and it fails with a sentence when the
event does not come.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Seconds a test waits for something that must happen. Generous: only a broken build uses it up.
DEADLINE = 30.0
#: The same for a program in a process of its own: less than a test may take as a whole.
PROCESS_DEADLINE = 100.0
#: Whether one thread at a time runs Python; else objects may be freed later, by other threads.
HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
#: Seconds after which a waiting test looks up.
STEP = 0.05
#: A ``python`` block of a text, and a line in it that prints what its comment says.
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^\s*print\(.*\)\s+# (?:.*: )?(.+)$", re.MULTILINE)


class TestThread(threading.Thread, Generic[T]):
    """A thread whose outcome is handed to the one that waits for it: a value, or what it raised."""

    __test__ = False

    def __init__(self, target: Callable[[], T], name: str | None = None) -> None:
        super().__init__(name=name or getattr(target, "__name__", "test-thread"), daemon=True)
        self._call = target
        self._value: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as raised:  # handed on by result(), never swallowed
            self._raised = raised

    def result(self, timeout: float = DEADLINE) -> T:
        """Wait for the end; return the value or raise what the thread raised."""
        self.join(timeout)
        if self.is_alive():
            raise AssertionError(f"thread {self.name!r} still runs after {timeout} s")
        if self._raised is not None:
            raise self._raised
        return self._value[0]


def start_thread(target: Callable[[], T], name: str | None = None) -> TestThread[T]:
    """Start ``target`` in a thread of its own; ask its ``result()`` later."""
    thread = TestThread(target, name)
    thread.start()
    return thread


def run_threads(
    targets: Sequence[Callable[[], T]], *, timeout: float = DEADLINE, together: bool = True
) -> list[T]:
    """Run every target in its own thread and return their values in the order given.

    Raises what a thread raised: the exception itself if there was one, an ``ExceptionGroup`` if
    there were several. A thread that is still running at ``timeout`` (seconds, for all of them) is
    a failure. With ``together`` all of them wait at a barrier first, to make races likely.
    """
    barrier = threading.Barrier(len(targets)) if together and targets else None

    def after_barrier(target: Callable[[], T]) -> Callable[[], T]:
        def call() -> T:
            if barrier is not None:
                barrier.wait(timeout)
            return target()

        return call

    threads = [
        start_thread(after_barrier(target), f"test-{index}-{getattr(target, '__name__', 'call')}")
        for index, target in enumerate(targets)
    ]
    deadline = time.monotonic() + timeout
    values: list[T] = []
    raised: list[BaseException] = []
    for thread in threads:
        try:
            values.append(thread.result(max(0.0, deadline - time.monotonic())))
        except BaseException as error:  # collected, raised below
            raised.append(error)
    if len(raised) == 1:
        raise raised[0]
    if raised:
        raise BaseExceptionGroup("several threads failed", raised)
    return values


def wait_for(
    event: threading.Event, what: str = "the awaited event", *, timeout: float = DEADLINE
) -> None:
    """Wait until ``event`` is set; fail, naming ``what``, when it is not set in time."""
    # In steps: without a GIL an object that another thread drops waits, to be freed, for the
    # thread that made it, and that may be this one.
    deadline = time.monotonic() + timeout
    while not event.wait(min(STEP, timeout)):
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not happen within {timeout} s")


def wait_until(holds: Callable[[], object], what: str, *, timeout: float = DEADLINE) -> None:
    """Wait until ``holds()`` is true, where nothing sets an event; fail, naming ``what``."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not happen within {timeout} s")
        time.sleep(STEP / 5)


def wait_gone(gone: weakref.ref[Any], what: str = "it", *, timeout: float = DEADLINE) -> None:
    """Wait until nothing keeps what ``gone`` refers to; garbage in cycles does not."""
    deadline = time.monotonic() + timeout
    while gone() is not None and gc.collect() >= 0 and gone() is not None:
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} is kept, after {timeout} s still")
        # Without a GIL a collection stops all threads: one that lets go must find time for it.
        time.sleep(STEP / 5)


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name a case of those that one test goes through, in the failure."""
    try:
        yield
    except Exception as raised:
        raised.add_note(f"in the case {name}")
        raise


def run_python(
    *arguments: str,
    check: bool = True,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = PROCESS_DEADLINE,
    executable: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Run Python with ``arguments`` in a process of its own, to its end; return what it printed.

    ``env``: what is other than in this process; ``None`` is not there. With ``check`` an exit
    status other than 0 is a failure, with all that was printed.
    """
    changed = {**os.environ, **(env or {})}
    done = subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        env={name: value for name, value in changed.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}")
    return done


class NoMoreThreads(ThreadPoolExecutor):
    """When ``full``, a pool that puts work in its queue, then fails to start one more thread.

    ``taken``: a thread that it has does the work before that.
    """

    full = False

    def __init__(self, threads: int, *, taken: bool) -> None:
        super().__init__(threads)
        self._is_taken = taken

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if self.full:
            if self._is_taken:
                future.result(DEADLINE)
            raise RuntimeError("can't start new thread")
        return future


def freeze() -> None:
    """Spare the collections to come what is there now: hundreds of tests collect all there is.

    Never to be undone by a part of a suite: all that ran after it would pay. Garbage goes first.
    """
    gc.collect()
    gc.freeze()


class Element:
    """An element that a weak reference can watch."""


class Living:
    """Makes elements, and counts how many are alive, and the most that ever were."""

    def __init__(self) -> None:
        self.alive = Counted()
        self.most = 0

    def make(self, _of: object = None) -> Element:
        element = Element()
        self.most = max(self.most, self.alive.add())
        weakref.finalize(element, self.alive.add, -1)
        return element


class Problem(Exception):
    """What only a test raises."""


class Counted:
    """A number with a condition: ``add`` in one thread, ``wait_until`` it is reached in another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._value = 0

    @property
    def value(self) -> int:
        with self._changed:
            return self._value

    def add(self, n: int = 1) -> int:
        with self._changed:
            self._value += n
            self._changed.notify_all()
            return self._value

    def wait_until(
        self, at_least: int, what: str = "the count", *, timeout: float = DEADLINE
    ) -> None:
        """Wait until the value is ``at_least``; fail with both figures when it is not in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._value >= at_least, timeout):
                raise AssertionError(f"{what} is {self._value} after {timeout} s, not {at_least}")


@contextmanager
def generated_after(elements: int) -> Iterator[None]:
    """Let a run take so many elements before its drain is generated, where one is."""
    if sys.implementation.name != "cpython":
        yield
        return
    fused: Any = import_module("rstreams_fast.core._cython.fused")
    before = fused.generate_after(elements)
    try:
        yield
    finally:
        fused.generate_after(before)


def calls_of(work: Callable[[], object]) -> int:
    """Do ``work``; return how many functions of Python it called."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@contextmanager
def bursts_of(elements: int) -> Iterator[None]:
    """Let a drain deliver at most so many elements before it looks at anything else."""
    drain: Any = import_module("rstreams_fast.streams.engine.drain")
    before, drain.BURST = drain.BURST, elements
    try:
        yield
    finally:
        drain.BURST = before
