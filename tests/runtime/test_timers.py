"""Timers: order, cancelling, what is kept, and the life of the shared thread."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rstreams_fast as rf
from rstreams_fast.runtime import timers
from rstreams_fast.runtime.executors import WorkDroppedError
from rstreams_fast.runtime.timers import ManualTimer, ThreadTimer, check_timer, default_timer
from tests.helpers import Counted, Element, run_python, run_threads, wait_for

HOUR = 3600.0


def nothing() -> None:
    """Do nothing."""


def fail(*_: object) -> None:
    raise IndexError("as it should")


# -- moved by hand ---------------------------------------------------------------------------------
def test_work_may_cancel_what_is_due_at_the_same_time() -> None:
    timer = ManualTimer()
    seen: list[str] = []
    cancelled: list[timers.Alarm] = []
    timer.call_later(1, lambda: [alarm.cancel() for alarm in cancelled])
    for seconds in (1, 1.5):
        cancelled.append(timer.call_later(seconds, lambda: seen.append("cancelled")))
    timer.advance(5)
    assert seen == []
    assert timer.now() == 5.0


def test_the_clock_is_moved_by_one_at_a_time() -> None:
    timer = ManualTimer()
    refused: list[BaseException] = []

    def move() -> None:
        try:
            timer.advance(1)
        except RuntimeError as error:
            refused.append(error)

    timer.call_later(1, move)
    timer.advance(1)
    assert "overlaps" in str(refused[0])
    timer.advance(1)
    assert timer.now() == 2.0


MOVES = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 20)),
    st.tuples(st.just("set"), st.integers(0, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("advance"), st.integers(0, 10)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(MOVES, max_size=150))
def test_any_row_of_alarms_is_run_as_a_sorted_list_says(moves: list[tuple[str, int]]) -> None:
    timer = ManualTimer()
    alarms: list[timers.Alarm] = []
    waiting: list[tuple[float, int]] = []
    run: list[tuple[float, int]] = []
    expected: list[tuple[float, int]] = []
    for move, n in moves:
        if move == "set":
            number = len(alarms)
            waiting.append((timer.now() + n, number))
            alarms.append(
                timer.call_later(n, lambda number=number: run.append((timer.now(), number)))
            )
        elif move == "cancel" and alarms:
            number = n % len(alarms)
            alarms[number].cancel()
            waiting = [one for one in waiting if one[1] != number]
        elif move == "advance":
            timer.advance(n)
            expected += sorted(one for one in waiting if one[0] <= timer.now())
            waiting = [one for one in waiting if one[0] > timer.now()]
        assert run == expected
        assert timer.pending == len(waiting)


# -- what is kept ----------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [ManualTimer, ThreadTimer])
@pytest.mark.usefixtures("no_leaked_threads")
def test_a_cancelled_alarm_keeps_nothing_alive(make: type[Any]) -> None:
    timer = make()
    thing = Element()
    gone = weakref.ref(thing)
    alarm = timer.call_later(HOUR, lambda thing=thing: None, lambda error, thing=thing: None)
    del thing
    assert gone() is not None
    alarm.cancel()
    gc.collect()
    assert gone() is None
    assert timer.pending == 0


def test_cancelled_alarms_do_not_pile_up() -> None:
    timer = ManualTimer()
    kept = [timer.call_later(HOUR, nothing) for _ in range(100)]
    before = sys.getallocatedblocks()
    for _ in range(10_000):
        timer.call_later(HOUR, nothing).cancel()
    assert sys.getallocatedblocks() - before < 5000
    assert timer.pending == len(kept)
    timer.advance(HOUR)
    assert timer.pending == 0


# -- the thread ------------------------------------------------------------------------------------
@pytest.fixture
def timer(no_leaked_threads: None) -> ThreadTimer:
    return ThreadTimer()


def _thread_of(timer: ThreadTimer) -> threading.Thread | None:
    return timer._timer_thread._thread


def _wait_for_end(timer: ThreadTimer) -> None:
    thread = _thread_of(timer)
    if thread is not None:
        thread.join(30)
        assert not thread.is_alive()
    assert _thread_of(timer) is None


def test_works_are_done_on_one_thread_in_order_and_not_early(timer: ThreadTimer) -> None:
    seen: list[tuple[int, float, str]] = []
    done = Counted()
    begun = timer.now()

    def note(n: int) -> Callable[[], None]:
        def work() -> None:
            seen.append((n, timer.now() - begun, threading.current_thread().name))
            done.add()

        return work

    def begin() -> None:  # on the thread: then none can be done before all are set
        for n in (3, 1, 2):
            timer.call_later(n / 100, note(n))

    timer.call_later(0, begin)
    done.wait_until(3)
    assert [n for n, _, _ in seen] == [1, 2, 3]
    assert all(at >= n / 100 for n, at, _ in seen)
    assert {name for _, _, name in seen} == {"rstreams-fast-timer"}


def test_the_thread_lives_on_when_work_raises(
    timer: ThreadTimer, dropped: list[BaseException]
) -> None:
    done = threading.Event()

    def leave() -> None:
        raise SystemExit(3)

    def begin() -> None:
        threads.append(threading.current_thread())
        timer.call_later(0, leave)
        timer.call_later(0, fail)
        timer.call_later(0, finish)

    def finish() -> None:
        threads.append(threading.current_thread())
        done.set()

    threads: list[threading.Thread] = []
    timer.call_later(0, begin)
    wait_for(done)
    assert threads[0] is threads[1]
    assert [type(error) for error in dropped] == [SystemExit, IndexError]


def test_a_hook_that_ends_the_thread_loses_no_alarm(
    timer: ThreadTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    ended: list[threading.Thread] = []

    def hook(error: BaseException) -> None:
        ended.append(threading.current_thread())
        raise SystemExit(4)

    previous = rf.on_dropped_error(hook)
    try:
        done = threading.Event()
        timer.call_later(0, fail)
        timer.call_later(0.05, done.set)
        wait_for(done)
        ended[0].join(30)
    finally:
        rf.on_dropped_error(previous)


def test_the_thread_ends_soon_after_the_last_alarm_and_another_one_is_started(
    timer: ThreadTimer,
) -> None:
    assert _thread_of(timer) is None
    for _ in range(2):
        done = threading.Event()
        timer.call_later(0, done.set)
        wait_for(done)
        _wait_for_end(timer)


def test_the_thread_ends_when_the_last_alarm_is_cancelled(timer: ThreadTimer) -> None:
    timer.call_later(HOUR, nothing).cancel()
    _wait_for_end(timer)
    first, second = timer.call_later(HOUR, nothing), timer.call_later(HOUR, nothing)
    first.cancel()
    thread = _thread_of(timer)
    assert thread is not None
    thread.join(3 * timers.IDLE_SECONDS)
    assert thread.is_alive()  # as there is one left
    second.cancel()
    _wait_for_end(timer)


def test_it_sleeps_and_does_not_poll(timer: ThreadTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    real = timers.acquire

    def acquire(event: threading.Lock, seconds: float) -> bool:
        sleeps.append(seconds)
        return real(event, seconds)

    monkeypatch.setattr(timers, "acquire", acquire)
    done = threading.Event()
    timer.call_later(0.2, done.set)
    wait_for(done)
    _wait_for_end(timer)
    # One for the alarm, one to linger; each may end a moment early and be repeated.
    assert len(sleeps) <= 4
    assert sum(sleeps) < 0.2 + timers.IDLE_SECONDS + 0.01


def test_one_alarm_after_the_other_wakes_and_starts_the_thread_rarely(
    timer: ThreadTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[None] = []
    real = timers._TimerThread._wake
    monkeypatch.setattr(timers._TimerThread, "_wake", lambda self: (woken.append(None), real(self)))
    begun = time.monotonic()
    for _ in range(2000):
        timer.call_later(30, nothing).cancel()
    took = time.monotonic() - begun
    assert len(woken) <= 3 + 3 * took / timers.IDLE_SECONDS
    _wait_for_end(timer)


def test_every_alarm_is_run_or_cancelled_however_threads_race(timer: ThreadTimer) -> None:
    run = Counted()

    def set_and_cancel() -> int:
        kept = 0
        for n in range(300):
            alarm = timer.call_later(n % 3 / 1000, run.add)
            if n % 2:
                alarm.cancel()
            else:
                kept += 1
        return kept

    kept = sum(run_threads([set_and_cancel] * 4))
    run.wait_until(kept)
    _wait_for_end(timer)
    assert timer.pending == 0
    # An alarm cancelled right after it was set may have been run before that.
    assert kept <= run.value <= 1200


def test_a_thread_that_cannot_be_started_is_an_error_and_leaves_nothing(
    timer: ThreadTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            timer.call_later(0, nothing)
    assert timer.pending == 0
    done = threading.Event()
    timer.call_later(0, done.set)
    wait_for(done)


def test_a_closed_timer_says_so_to_all_who_wait(dropped: list[BaseException]) -> None:
    timer = ThreadTimer()
    told: list[BaseException] = []
    done = threading.Event()
    timer.call_later(HOUR, nothing, told.append)
    timer.call_later(HOUR, nothing)
    timer.call_later(2 * HOUR, nothing, fail)
    timer.call_later(3 * HOUR, nothing, lambda error: done.set())
    timer._timer_thread.close()
    wait_for(done)
    thread = _thread_of(timer)
    if thread is not None:
        thread.join(30)
    assert isinstance(told[0], WorkDroppedError)
    assert [type(error) for error in dropped] == [IndexError]
    with pytest.raises(WorkDroppedError, match="exiting"):
        timer.call_later(0, nothing)


# -- the process -----------------------------------------------------------------------------------
def _python(script: str) -> str:
    return run_python("-c", textwrap.dedent(script)).stdout


def test_an_alarm_does_not_keep_the_interpreter_and_who_waits_is_told() -> None:
    out = _python("""
        from rstreams_fast.runtime.timers import default_timer
        default_timer().call_later(3600, print, lambda error: print(type(error).__name__))
    """)
    assert out == "WorkDroppedError\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_the_child_of_a_fork_has_a_thread_of_its_own() -> None:
    out = _python("""
        import os, threading
        from rstreams_fast.runtime.timers import default_timer

        timer = default_timer()
        thing = timer.call_later(3600, print)
        lock = timer._timer_thread._lock
        with lock:  # as another thread may hold it at that moment
            child = os.fork()
            if child == 0:
                done = threading.Event()
                cancelling = threading.Thread(target=thing.cancel)
                cancelling.start()
                cancelling.join(30)
                threading.Thread(target=timer.call_later, args=(0, done.set)).start()
                alive = done.wait(30)
                alive = alive and not cancelling.is_alive()
                print("pending in the child:", timer.pending, alive, flush=True)
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("pending in the parent:", timer.pending)
    """)
    assert out == "pending in the child: 0 True\npending in the parent: 1\n"


# -- arguments -------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [ManualTimer, ThreadTimer])
def test_seconds_are_checked(make: type[Any]) -> None:
    timer = make()
    for wrong in ("1", None, True):
        with pytest.raises(TypeError, match="seconds must be a number of seconds"):
            timer.call_later(wrong, nothing)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be >= 0 and <= "):
            timer.call_later(wrong, nothing)
    assert timer.pending == 0


def test_timers_are_checked() -> None:
    check_timer(None)
    check_timer(ManualTimer())
    check_timer(default_timer())
    with pytest.raises(TypeError, match="timer must have the methods now and call_later"):
        check_timer(time)


def test_an_alarm_that_is_set_while_the_queue_is_swept_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = ManualTimer()
    done: list[int] = []
    pending: Any = timers._Alarm.pending

    def interrupted(alarm: timers._Alarm) -> bool:  # by a signal handler, say
        monkeypatch.setattr(timers._Alarm, "pending", pending)
        timer.call_later(1, lambda: done.append(1))
        return pending.fget(alarm)  # type: ignore[no-any-return]

    for _ in range(timers.SWEEP_AT):
        timer.call_later(2, lambda: done.append(2))
    monkeypatch.setattr(timers._Alarm, "pending", property(interrupted))
    timer.call_later(2, lambda: done.append(2))
    timer.advance(3)
    assert done == [1] + [2] * (timers.SWEEP_AT + 1)
