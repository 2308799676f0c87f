"""Streams whose clock is moved by hand: what is due has been delivered when ``advance`` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import add
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import wait_until
from tests.rules.probes import Clock, HandTimer, subscribed

Make = Callable[[rsf.Stream[Any], Clock], rsf.Stream[Any]]

TIMED: dict[str, tuple[Make, list[list[Any]]]] = {
    # What there is after each of three seconds, of 0 and 1 that came at once before the first.
    "debounce": (lambda s, t: s.debounce(1, timer=t), [[1], [], []]),
    "sample": (lambda s, t: s.sample(1, timer=t), [[1], [], []]),
    "throttle_first": (lambda s, t: s.throttle_first(1, timer=t), [[], [], []]),
    "delay_elements": (lambda s, t: s.delay_elements(1, timer=t), [[0], [1], []]),
    "batch": (lambda s, t: s.batch(9, seconds=2, timer=t), [[], [[0, 1]], []]),
    "window_time": (
        lambda s, t: s.window_time(2, timer=t).flat_map(lambda w: w.reduce(add)),
        [[], [1], []],
    ),
}


@pytest.mark.parametrize("name", TIMED)
def test_what_is_due_is_there_when_the_clock_has_been_moved(name: str) -> None:
    make, expected = TIMED[name]
    timer = Clock()
    emitters: list[rsf.Emitter[int]] = []
    seen: list[Any] = []
    run = make(rsf.create(emitters.append), timer).for_each(seen.append)
    emitters[0].next(0)
    emitters[0].next(1)
    seen.clear()  # what has nothing to do with the clock
    for due in expected:
        timer.advance(1)
        assert seen == due
        seen.clear()
    run.cancel()


def test_ticks_come_as_the_clock_is_moved_and_on_the_thread_that_moves_it() -> None:
    timer = Clock()
    seen: list[tuple[int, int]] = []
    ticks = rsf.interval(1, timer=timer)
    assert "on the thread of its timer" in ticks.describe()
    run = ticks.for_each(lambda tick: seen.append((tick, threading.get_ident())))
    timer.advance(3.5)
    assert seen == [(tick, threading.get_ident()) for tick in range(3)]
    run.cancel()
    assert timer.pending == 0


def test_a_stream_is_late_when_the_clock_says_so() -> None:
    timer = Clock()
    run = rsf.never().timeout(2, timer=timer).for_each(print)
    timer.advance(1)
    assert not run.done
    timer.advance(1)
    with pytest.raises(TimeoutError):
        run.result(0)


def test_a_retry_waits_for_the_clock_and_for_nothing_else() -> None:
    timer = Clock()
    failures = iter([OSError(), OSError()])

    def source() -> int:
        for failure in failures:
            raise failure
        return 7

    seen: list[int] = []
    run = rsf.from_callable(source).retry(5, delay=10, timer=timer).for_each(seen.append)
    timer.advance(10)
    assert seen == []
    timer.advance(10)
    assert seen == [7]
    run.result(0)


class _BadClock(HandTimer):
    """A timer whose clock raises at the reading number ``at``, counted from 1, and later."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def now(self) -> float:
        self._left -= 1
        if self._left <= 0:
            raise OSError("no clock today")
        return super().now()


#: How many readings each operator makes of its clock, at least, for one element.
READINGS: dict[str, tuple[int, Callable[[rsf.Stream[int], Any], rsf.Stream[Any]]]] = {
    "debounce": (4, lambda s, timer: s.debounce(1, timer=timer)),
    "throttle_first": (2, lambda s, timer: s.throttle_first(1, timer=timer)),
    "sample": (4, lambda s, timer: s.sample(1, timer=timer)),
    "batch": (4, lambda s, timer: s.batch(2, seconds=1, timer=timer)),
    "timeout": (4, lambda s, timer: s.timeout(1, timer=timer)),
    "delay_elements": (3, lambda s, timer: s.delay_elements(1, timer=timer)),
    "retry": (2, lambda s, timer: s.map(lambda n: 1 // n).retry(1, delay=1, timer=timer)),
    "interval": (4, lambda _, timer: rsf.interval(1, timer=timer)),
}
CASES = [(name, at) for name, (most, _) in READINGS.items() for at in range(1, most + 1)]


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize(("name", "at"), CASES)
def test_a_clock_that_raises_ends_the_stream(name: str, at: int, slow: bool) -> None:
    """``slow``: on the thread of the timer; otherwise on shared threads."""
    timer = _BadClock(at)
    timer.runs_slow_work = slow
    stream = READINGS[name][1](rsf.range_(1).concat(rsf.never()), timer)
    recorder = subscribed(stream, rsf.UNBOUNDED)

    def has_ended() -> bool:
        timer.advance(1)  # again: a thread may set the next alarm only now
        return recorder.terminal is not None

    wait_until(has_ended, "the end")
    recorder.check()
    assert isinstance(recorder.error, OSError)
