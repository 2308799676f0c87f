"""timeout: who was asked and does not answer in time is given up on, and nobody else is."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread, wait_for
from tests.rules.probes import (
    BrokenTimer,
    Clock,
    CountingTimer,
    HandTimer,
    ManualPublisher,
    Recorder,
    subscribed,
)
from tests.stepping import steps


class Setup:
    """A publisher and a clock in hand, ten seconds between them, and a subscriber that records."""

    def __init__(self, timer: Any = None, **options: Any) -> None:
        self.timer = timer or HandTimer()
        self.publisher = ManualPublisher()
        self.recorder = Recorder(**options)
        rsf.from_publisher(self.publisher).timeout(10, timer=self.timer).subscribe(self.recorder)

    def next(self, element: int) -> None:
        self.publisher.subscriber.on_next(element)

    def failed(self) -> BaseException:
        """The error that follows when the time is up."""
        self.recorder.wait_terminal()
        assert self.recorder.error is not None
        self.recorder.check()
        return self.recorder.error


@pytest.fixture(autouse=True)
def _no_thread_stays(no_leaked_threads: None) -> None:
    """A worker that tells of a time-out ends with its stream."""


# -- when ------------------------------------------------------------------------------------------
def test_the_first_element_that_does_not_come_in_time_is_an_error() -> None:
    setup = Setup(request=3)
    setup.timer.advance(9.99)
    assert setup.recorder.terminal is None
    setup.timer.advance(0.01)
    error = setup.failed()
    assert isinstance(error, TimeoutError)
    assert str(error) == (
        "timeout: no element came within 10 s of being asked for, after 0 had come"
    )
    assert setup.publisher.cancels == 1
    assert setup.timer.pending == 0


def test_each_element_starts_the_clock_again() -> None:
    setup = Setup(request=10)
    for x in range(5):
        setup.timer.advance(9)
        setup.next(x)
    setup.timer.advance(9)
    assert setup.recorder.terminal is None
    setup.timer.advance(1)
    assert "after 5 had come" in str(setup.failed())
    assert setup.recorder.elements == [0, 1, 2, 3, 4]


def test_without_demand_the_clock_stands_still() -> None:
    setup = Setup(request=2)
    setup.timer.advance(5)
    setup.next(1)
    setup.next(2)
    setup.timer.advance(1000)
    assert setup.recorder.terminal is None
    setup.recorder.subscription.request(1)
    setup.timer.advance(9)
    assert setup.recorder.terminal is None
    setup.next(3)
    setup.timer.advance(1000)
    setup.recorder.subscription.request(1)
    setup.timer.advance(10)
    setup.failed()


def test_further_requests_give_no_more_time() -> None:
    setup = Setup(request=1)
    setup.timer.advance(6)
    setup.recorder.subscription.request(1)
    setup.timer.advance(4)
    setup.failed()


def test_an_alarm_that_comes_while_nobody_asks_does_no_harm_later() -> None:
    setup = Setup(request=1)
    setup.timer.advance(9)
    setup.next(1)  # the alarm of the first request is still pending
    setup.timer.advance(0.5)
    setup.recorder.subscription.request(1)
    setup.timer.advance(9)
    assert setup.recorder.terminal is None
    setup.timer.advance(1)
    setup.failed()


def test_no_alarm_is_set_for_each_element() -> None:
    timer = CountingTimer()
    recorder = Recorder(request=1, on_next=lambda r, _x: r.subscription.request(1))
    rsf.range_(2000).timeout(10, timer=timer).subscribe(recorder)
    assert recorder.terminal == ("on_complete",)
    assert timer.alarms.value == 1
    assert timer.pending == 0


def test_a_slow_subscriber_is_not_upstreams_fault() -> None:
    setup = Setup(request=rsf.UNBOUNDED, on_next=lambda _r, _x: setup.timer.advance(1000))
    setup.next(1)
    setup.timer.advance(9)
    assert setup.recorder.terminal is None
    setup.timer.advance(1)
    setup.failed()


# -- where -----------------------------------------------------------------------------------------
def test_nothing_of_the_users_runs_on_the_timers_thread() -> None:
    threads: dict[str, int] = {}
    local = contextvars.ContextVar("local", default="not set")
    seen: list[str] = []

    def note(what: str) -> None:
        threads[what] = threading.get_ident()
        seen.append(local.get())

    timer = HandTimer()
    recorder = Recorder(request=1)
    local.set("where it was subscribed to")
    stream = rsf.never().do_on_cancel(lambda: note("cancel")).timeout(1, timer=timer)
    stream.do_on_error(lambda _e: note("error")).subscribe(recorder)
    local.set("changed since")
    timer.advance(1)
    recorder.wait_terminal()
    assert set(threads) == {"cancel", "error"}
    assert threading.get_ident() not in threads.values()
    assert seen == ["where it was subscribed to"] * 2


def test_it_gives_up_while_upstream_still_keeps_the_caller() -> None:
    timer = HandTimer()
    entered, leave = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        entered.set()
        wait_for(leave)
        yield 1

    recorder = subscribed(rsf.from_iterable(source()).timeout(10, timer=timer))
    asking = start_thread(lambda: recorder.subscription.request(9))
    wait_for(entered)
    timer.advance(10)
    recorder.wait_terminal()
    leave.set()
    asking.result()
    assert recorder.elements == [0]
    assert isinstance(recorder.error, TimeoutError)
    recorder.check()


class Leaping(HandTimer):
    """Its clock leaps ahead between two looks at it, as for a thread that has to wait for its
    turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaps = 0
        self.set_again = threading.Event()

    def now(self) -> float:
        now = super().now()
        if self.leaps:
            self.leaps -= 1
            self._now += 10
        return now

    def call_later(self, *args: Any) -> Any:
        if self._now:
            self.set_again.set()
        return super().call_later(*args)


def test_the_clock_stands_still_during_an_element_however_late_it_is_looked_at() -> None:
    timer, publisher = Leaping(), ManualPublisher()

    def work(_recorder: Recorder, _element: int) -> None:
        timer.leaps = 4  # twice by who sees the alarm, twice by who is to act on it
        timer.advance(10)
        wait_for(timer.set_again, "another alarm")

    recorder = subscribed(rsf.from_publisher(publisher).timeout(10, timer=timer), 2, on_next=work)
    publisher.subscriber.on_next(1)
    assert recorder.signals == [("on_subscribe",), ("on_next", 1)]
    recorder.subscription.cancel()


# -- races -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["element", "cancel", "request"])
def test_what_comes_with_the_alarm_comes_before_it_or_not_at_all(call: str) -> None:
    for step in steps():
        setup = Setup(timer=Clock(), request=1)
        recorder = setup.recorder
        if call == "request":
            setup.next(1)
            setup.timer.advance(9)
        with step.meanwhile(lambda s=setup: s.timer.advance(1 if call == "request" else 10)):
            if call == "element":
                setup.next(1)
            elif call == "cancel":
                recorder.subscription.cancel()
            else:
                recorder.subscription.request(1)
        if call == "request":  # the alarm finds that nobody asks, or that somebody just did
            assert recorder.terminal is None, step
            setup.timer.advance(10)
            setup.failed()
        elif not recorder.elements and call == "element":
            setup.failed()
        recorder.subscription.cancel()
        assert (setup.publisher.cancels, setup.timer.pending) == (1, 0), step
        recorder.check()


# -- ends ------------------------------------------------------------------------------------------


def test_what_a_subscriber_raises_stops_the_clock(dropped: list[BaseException]) -> None:
    setup = Setup(request=5, on_next=lambda _r, _x: 1 // 0)
    setup.next(1)
    assert setup.publisher.cancels == 1
    assert setup.timer.pending == 0


def test_a_timer_that_refuses_ends_the_stream() -> None:
    recorder = subscribed(rsf.never().timeout(1, timer=BrokenTimer()), 1)
    assert isinstance(recorder.error, OSError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_in_the_child_of_a_fork_its_time_ends_the_stream_all_the_same() -> None:
    setup = Setup(request=1)
    child = os.fork()
    if child == 0:
        try:
            setup.timer.advance(10)
            os._exit(7 if "forked" in str(setup.recorder.error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    setup.timer.advance(10)
    assert isinstance(setup.failed(), TimeoutError)


# -- with the real clock, and in words -------------------------------------------------------------
def test_with_the_timer_of_the_process() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        rsf.never().timeout(0.02).to_list()
    assert rsf.range_(3).timeout(100).to_list() == [0, 1, 2]
