"""What the garbage collector finds is cancelled, and never by the thread that collects."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from rstreams_fast.runtime.finalizers import _is_collecting_here, call_from_finalizer
from tests.helpers import run_python, wait_until

#: The collector runs while the thread that allocates holds the lock that ``on_cancel`` takes.
WHILE_LOCKED = """
import gc, threading
import rstreams_fast as rsf

class Cycle:
    def __init__(self, held):
        self.me, self.held = self, held

lock, released = threading.Lock(), threading.Semaphore(0)

def on_cancel():
    with lock:
        released.release()

def start(emitter):
    emitter.on_cancel(on_cancel)
    emitter.next(1)

elements = iter(rsf.create(start))
next(elements)
Cycle(elements)
del elements
with lock:
    gc.collect()
assert released.acquire(timeout=60)
"""


def test_a_collection_does_not_wait_for_a_lock_of_the_collecting_thread() -> None:
    run_python("-c", WHILE_LOCKED)


class Finalized:
    """Notes the thread that its finalizer's call is made on."""

    def __init__(self, threads: list[threading.Thread]) -> None:
        self.threads = threads

    def __del__(self) -> None:
        call_from_finalizer(self.note, self.threads)

    @staticmethod
    def note(threads: list[threading.Thread]) -> None:
        threads.append(threading.current_thread())


def test_the_collector_leaves_the_call_to_another_thread() -> None:
    threads: list[threading.Thread] = []
    cycle = Finalized(threads)
    cycle.me = cycle  # type: ignore[attr-defined]
    del cycle
    gc.collect()
    wait_until(lambda: threads, "the call")
    assert threads[0].name == "rstreams-fast-finalizers"
    threads[0].join(30)
    assert not threads[0].is_alive()  # it goes home when nothing is left


@pytest.mark.skipif(not hasattr(gc, "callbacks"), reason="here every finalizer is the collector's")
def test_a_dropped_reference_makes_the_call_at_once_on_the_same_thread() -> None:
    threads: list[threading.Thread] = []
    Finalized(threads)
    assert threads == [threading.current_thread()]


def test_what_a_late_call_raises_goes_to_the_hook(dropped: list[BaseException]) -> None:
    class Broken:
        def __del__(self) -> None:
            call_from_finalizer(int, "no number")

    cycle = Broken()
    cycle.me = cycle  # type: ignore[attr-defined]
    del cycle
    gc.collect()
    wait_until(lambda: dropped, "the error")
    assert isinstance(dropped[0], ValueError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_child_of_a_fork_makes_its_own_calls() -> None:
    run_python(
        "-c",
        """
import gc, os, threading
from rstreams_fast.runtime import finalizers
from rstreams_fast.runtime.finalizers import call_from_finalizer

class Finalized:
    def __init__(self, done):
        self.me, self.done = self, done
    def __del__(self):
        call_from_finalizer(self.done.set)

finalizers._mailbox.worker_lock.acquire()  # as if a thread of the parent were at work
if (child := os.fork()) == 0:
    done = threading.Event()
    Finalized(done)
    gc.collect()
    os._exit(0 if done.wait(60) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
    )


#: Ctrl-C as each phase of a collection begins, by a call that runs no bytecode.
INTERRUPTED = """
import ctypes, gc
import rstreams_fast

interrupt = ctypes.pythonapi["PyErr_SetInterrupt"]
interrupt.argtypes, interrupt.restype = [ctypes.py_object] * 2, None  # given and not looked at
gc.callbacks.insert(0, interrupt)
try:
    gc.collect()
    for _ in range(10):
        pass
except KeyboardInterrupt:
    print("heard")
finally:
    gc.callbacks.remove(interrupt)
"""


def test_an_interrupt_that_comes_in_a_collection_is_heard() -> None:
    assert run_python("-c", INTERRUPTED).stdout.split() == ["heard"]


def test_a_finalizer_knows_whether_the_collector_runs_it() -> None:
    made: list[bool] = []

    class Held:
        me: object = None

        def __del__(self) -> None:
            made.append(_is_collecting_here())

    for cycle in (False, True, False):
        held = Held()
        held.me = held if cycle else None
        del held
        gc.collect()
    assert made == [False, True, False]


TOLD_AT_EXIT = """
from rstreams_fast.errors import WorkDroppedError, report_dropped
from rstreams_fast.runtime.at_exit import call_at_exit

def late():
    report_dropped(WorkDroppedError("refused by the exit"), "late")
    report_dropped(ValueError("of the function"), "late")

call_at_exit(late)
report_dropped(WorkDroppedError("refused before"), "early")
"""


def test_of_what_is_dropped_at_exit_only_what_the_exit_refused_is_kept_quiet() -> None:
    """Two workers of a stream may be refused at once: only the first error has a subscriber."""
    told = run_python("-c", TOLD_AT_EXIT).stderr
    assert "refused before" in told
    assert "of the function" in told
    assert "refused by the exit" not in told


RAISES_AT_EXIT = """
from rstreams_fast.runtime.at_exit import call_at_exit

def raises():
    raise {error}

call_at_exit(lambda: print("called"))
call_at_exit(raises)
"""


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_what_one_call_at_exit_raises_is_reported_and_the_others_are_made(error: str) -> None:
    done = run_python("-c", RAISES_AT_EXIT.format(error=error))
    assert done.stdout == "called\n"
    assert "Exception ignored in the interpreter exit" in done.stderr
    assert error in done.stderr


def test_a_program_of_greenlets_ends_in_silence(patch_of_greenlets: str) -> None:
    """Its patch replaces ``threading.local`` by one that fails when greenlets are gone."""
    program = f"{patch_of_greenlets}\nimport rstreams_fast.streams"
    done = run_python("-W", "ignore", "-c", program)
    assert done.stderr == ""
