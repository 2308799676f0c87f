"""Workers that look for more for a while before they park: nothing is lost, nobody stays."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.runtime.executors import Worker, resource, spinning
from tests.helpers import DEADLINE, start_thread, wait_for, wait_gone

SPINS = (1e-6, 20e-6, 0.001)
spins = pytest.mark.parametrize("spin", SPINS)


@spins
@pytest.mark.parametrize("prefetch", [1, 2, 64, 1024])
def test_every_element_comes_once_and_in_order(spin: float, prefetch: int) -> None:
    stream = rsf.range_(3000).subscribe_on(spin=spin).publish_on(prefetch=prefetch, spin=spin)
    assert stream.map(abs).to_list() == list(range(3000))


def test_many_workers_in_a_row() -> None:
    stream = rsf.range_(2000).subscribe_on(spin=20e-6)
    for _ in range(5):
        stream = stream.publish_on(prefetch=16, spin=20e-6).map(lambda x: x + 1)
    assert stream.to_list() == list(range(5, 2005))


def test_a_parked_side_and_a_spinning_one() -> None:
    above = rsf.range_(2000).subscribe_on().publish_on(prefetch=8, spin=20e-6)
    assert above.publish_on(prefetch=8).to_list() == list(range(2000))


@spins
def test_a_source_that_waits_keeps_nothing_back(spin: float) -> None:
    """Each element gets there while its source waits for that, within one burst."""
    came = threading.Semaphore(0)

    def numbers() -> Any:
        for i in range(20):
            yield i
            assert came.acquire(timeout=DEADLINE)

    def arrive(x: int) -> int:
        came.release()
        return x

    stream = rsf.from_iterable(numbers()).subscribe_on(spin=spin).publish_on(spin=spin)
    assert stream.map(arrive).to_list() == list(range(20))


def test_errors_come_through() -> None:
    def fail(x: int) -> int:
        if x == 100:
            raise OSError("at 100")
        return x

    stream = rsf.range_(1000).map(fail).subscribe_on(spin=20e-6).publish_on(spin=20e-6)
    with pytest.raises(OSError, match="at 100"):
        stream.to_list()


@spins
def test_a_cancel_ends_the_workers(spin: float) -> None:
    before = set(threading.enumerate())
    stream = rsf.range_(10**9).subscribe_on(spin=spin).publish_on(prefetch=4, spin=spin)
    assert stream.take(1000).to_list() == list(range(1000))
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.mark.parametrize("how", ["close", "collect"])
def test_a_worker_that_waits_is_sent_home(how: str) -> None:
    worker = resource(spinning(None, 0.001), "spinning")
    assert isinstance(worker, Worker)
    threads: list[threading.Thread] = []
    done = threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    worker.execute(work, lambda _error: None)
    wait_for(done)
    gone = weakref.ref(worker)
    if how == "close":
        worker.close()
    del worker
    gc.collect()
    threads[0].join(DEADLINE)
    assert not threads[0].is_alive()
    wait_gone(gone, "the worker")


def test_work_that_raises_still_gives_the_turn() -> None:
    """A worker that ends by an error, with another one's turn to give, does so."""
    other = Worker("other", 0.001)
    done = threading.Event()
    hooked: list[Any] = []
    hook, threading.excepthook = threading.excepthook, hooked.append

    def raising() -> None:
        other.execute(done.set, lambda _error: None)
        raise SystemError("on purpose")

    first = Worker("first", 0.001)
    try:
        first.execute(raising, lambda _error: None)
        wait_for(done)
        assert first.join(DEADLINE)
    finally:
        threading.excepthook = hook
    assert [type(each.exc_value) for each in hooked] == [SystemError]
    other.close()
    assert other.join(DEADLINE)
    first.close()


def test_two_workers_that_call_each_other() -> None:
    workers = Worker("ping", 20e-6), Worker("pong", 20e-6)
    rounds: list[int] = []
    done = threading.Event()

    def play() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 2000:
            done.set()
        else:
            workers[len(rounds) % 2].execute(play, lambda _error: None)

    workers[0].execute(play, lambda _error: None)
    wait_for(done)
    assert rounds == list(range(2000))
    for worker in workers:
        worker.close()
        assert worker.join(DEADLINE)


def test_work_from_many_threads_is_all_done() -> None:
    worker = Worker("busy", 20e-6)
    done: list[int] = []

    def post() -> None:
        for i in range(1000):
            worker.execute(lambda i=i: done.append(i), lambda _error: None)  # type: ignore[misc]

    posting = [start_thread(post) for _ in range(3)]
    for thread in posting:
        thread.result()
    worker.close()
    assert worker.join(DEADLINE)
    assert sorted(done) == sorted(list(range(1000)) * 3)


@pytest.mark.parametrize("operator", ["publish_on", "subscribe_on"])
class TestArguments:
    def apply(self, operator: str, *args: Any, **options: Any) -> Any:
        call: Callable[..., Any] = getattr(rsf.range_(3), operator)
        return call(*args, **options)

    @pytest.mark.parametrize("spin", [True, "20", None, 1j])
    def test_must_be_a_number(self, operator: str, spin: Any) -> None:
        with pytest.raises(TypeError, match="spin must be a number of seconds"):
            self.apply(operator, spin=spin)

    @pytest.mark.parametrize("spin", [-1, 0.0011, 20, float("nan")])
    def test_must_be_short(self, operator: str, spin: float) -> None:
        with pytest.raises(ValueError, match=r"spin must be 0 to 0\.001 seconds"):
            self.apply(operator, spin=spin)

    def test_is_for_a_worker_of_ones_own(self, operator: str) -> None:
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(ValueError, match="with an executor, leave it out"),
        ):
            self.apply(operator, pool, spin=20e-6)
        with pytest.raises(ValueError, match="executor=caller"):
            self.apply(operator, "caller", spin=20e-6)

    def test_none_at_all_is_none(self, operator: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert self.apply(operator, pool, spin=0).to_list() == [0, 1, 2]

    def test_is_described(self, operator: str) -> None:
        assert "own worker thread, spinning 20 us" in self.apply(operator, spin=20e-6).describe()
