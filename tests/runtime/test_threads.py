"""The threads of the runtime: how they start, come and go; and what the child of a fork finds.

While a thread is being started, Ctrl-C may come, when it runs already and its starter does not
know; or a collection, whose finalizers may use the very same worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from rstreams_fast.runtime.executors import Resource, WorkDroppedError, Worker
from rstreams_fast.runtime.loops import PrivateLoop
from rstreams_fast.runtime.shared_threads import SharedThreads
from tests.helpers import DEADLINE, run_python, start_thread, wait_for, wait_until


def refused(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("make", [Worker, PrivateLoop, lambda _name: SharedThreads()])
def test_a_thread_whose_start_is_interrupted_ends(
    make: Callable[[str], Resource], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    held = make("interrupted")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        held.execute(lambda: None, lambda _error: None)
    (thread,) = started
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize("what", ["close", "execute"])
def test_a_finalizer_may_use_a_worker_that_is_being_started(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker("collected")
    done: list[str] = []
    threads: list[threading.Thread] = []
    begun: list[Worker] = []
    make = threading.Thread

    def collecting(*args: object, **options: object) -> threading.Thread:
        if threads or worker in begun:
            return make(*args, **options)  # type: ignore[arg-type]
        begun.append(worker)
        if what == "close":
            worker.close()
        else:
            worker.execute(lambda: done.append("nested"), refused)
        threads.append(make(*args, **options))  # type: ignore[arg-type]
        return threads[-1]

    def use() -> None:
        monkeypatch.setattr(threading, "Thread", collecting)
        if what == "close":
            with pytest.raises(WorkDroppedError):
                worker.execute(lambda: done.append("outer"), refused)
        else:
            worker.execute(lambda: done.append("outer"), refused)
            worker.close()

    start_thread(use).result()
    (thread,) = threads
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert done == ([] if what == "close" else ["nested", "outer"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_can_end_whatever_its_parent_was_doing_to_a_worker() -> None:
    program = """
import os, signal, sys, threading, warnings
from rstreams_fast.runtime.executors import Worker

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
worker, works = Worker("forked"), threading.Event()
worker.execute(works.set, print)
works.wait()
held, leave = threading.Event(), threading.Event()

def hold():
    with worker._lock:  # as it is while work is handed over
        held.set()
        leave.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
leave.set()
worker.close()
"""
    done = run_python("-c", program, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_stream_may_still_be_run_when_the_interpreter_exits() -> None:
    program = """
import atexit
import rstreams_fast as rsf
atexit.register(lambda: print(*rsf.range_(3).publish_on().to_list()))
"""
    done = run_python("-c", program)
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2"], "")


def test_a_stream_that_the_interpreters_exit_cuts_off_says_so() -> None:
    script = """
import threading
import rstreams_fast as rsf

begun = threading.Event()


def note(_element):
    begun.set()


rsf.range_(10**9).publish_on().for_each(note, on_error=print)
begun.wait()
"""
    assert "is closed: the interpreter exits" in run_python("-c", script).stdout


# -- threads that streams share --------------------------------------------------------------------
def running() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("rstreams-fast-shared")]


@pytest.mark.usefixtures("no_leaked_threads")
def test_works_that_wait_for_each_other_are_done_at_once() -> None:
    threads = SharedThreads()
    met = threading.Barrier(4)
    for _ in range(3):
        threads.execute(lambda: met.wait(DEADLINE) and None, refused)
    met.wait(DEADLINE)


@pytest.mark.usefixtures("no_leaked_threads")
def test_who_waits_is_given_the_next_work() -> None:
    threads = SharedThreads(idle_seconds=2)
    names = set()
    for _ in range(10):
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            names.add(threading.current_thread().name)
            done.set()

        threads.execute(work, refused)
        wait_for(done)
    assert len(names) < 10


@pytest.mark.usefixtures("no_leaked_threads")
def test_who_comes_too_late_for_a_work_goes_home() -> None:
    """As ``SimpleQueue.get`` does not in CPython before 3.13: woken in vain as its time is over, it
    waits for ever, and the interpreter for it.
    """
    threads = SharedThreads(idle_seconds=0.001)
    done = threading.Event()

    def work(left: int) -> None:
        if left:
            threads.execute(lambda: work(left - 1), refused)  # who waits is called, and
            return  # finds that this thread does it
        done.set()

    for _ in range(3):
        threads.execute(lambda: work(2000), refused)
    wait_for(done)
    wait_until(lambda: not running(), "the end of the threads")


# -- a lock of the process -------------------------------------------------------------------------

FORK = """
import os, threading
from rstreams_fast.runtime.fork_lock import ForkLock

lock, held, over = ForkLock(), threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    with lock, lock:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
thread.join()
with lock:
    print("free")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_the_lock_free() -> None:
    done = run_python("-W", "ignore", "-c", FORK, timeout=30)
    assert done.stdout.split() == ["7", "free"]
