"""Threads for work that comes by the clock: they come, and they go."""

from __future__ import annotations

import threading

import pytest

from rstreams_fast.runtime.shared_threads import SharedThreads
from tests.helpers import DEADLINE, wait_for, wait_until


def running() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("rstreams-fast-shared")]


def refused(error: BaseException) -> None:
    raise error


@pytest.mark.usefixtures("no_leaked_threads")
def test_works_that_wait_for_each_other_are_done_at_once() -> None:
    threads = SharedThreads()
    met = threading.Barrier(4)
    for _ in range(3):
        threads.execute(lambda: met.wait(DEADLINE) and None, refused)
    met.wait(DEADLINE)


@pytest.mark.usefixtures("no_leaked_threads")
def test_who_waits_is_given_the_next_work() -> None:
    threads = SharedThreads(linger=2)
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
    threads = SharedThreads(linger=0.001)
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
