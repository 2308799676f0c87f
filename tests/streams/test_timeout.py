"""timeout: who was asked and does not answer in time is given up on, and nobody else is."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import wait_for
from tests.rules.probes import Clock, HandTimer, ManualPublisher, Recorder, subscribed
from tests.stepping import steps


class Setup:
    """A publisher and a clock in hand, ten seconds between them, and a subscriber that records."""

    def __init__(self, timer: Any = None, **options: Any) -> None:
        self.timer = timer or HandTimer()
        self.publisher = ManualPublisher()
        stream = rsf.from_publisher(self.publisher).timeout(10, timer=self.timer)
        self.recorder = subscribed(stream, **options)
        self.request = self.recorder.subscription.request

    def next(self, element: int) -> None:
        self.publisher.subscriber.on_next(element)

    def wait(self, seconds: float) -> None:
        """Move the clock, by which nothing has ended."""
        self.timer.advance(seconds)
        assert self.recorder.terminal is None

    def failed(self) -> BaseException:
        """The error that follows when the time is up."""
        self.recorder.wait_terminal()
        assert self.recorder.error is not None
        self.recorder.check()
        return self.recorder.error


@pytest.fixture(autouse=True)
def _no_thread_stays(no_leaked_threads: None) -> None:
    """A worker that tells of a time-out ends with its stream."""


#: How much is asked for at first; calls, and seconds that pass without harm; and the seconds by
#: which it is too late.
TOO_LATE: dict[str, tuple[int, list[Any], float]] = {
    "the first element does not come": (3, [9.99], 0.01),
    "each element starts the clock again": (10, [9, "next"] * 5 + [9], 1),
    "without demand the clock stands still": (
        2, [5, "next", "next", 1000, "request", 9, "next", 1000, "request"], 10
    ),
    "further requests give no more time": (1, [6, "request"], 4),
    "an alarm has come while nobody asked": (1, [9, "next", 0.5, "request", 9], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LATE)
def test_an_element_that_does_not_come_in_time_is_an_error(name: str) -> None:
    wanted, before, last = TOO_LATE[name]
    setup = Setup(request=wanted)
    for what in before:
        if what == "next":
            setup.next(1)
        elif what == "request":
            setup.request(1)
        else:
            setup.wait(what)
    setup.timer.advance(last)
    came = before.count("next")
    said = f"timeout: no element came within 10 s of being asked for, after {came} had come"
    error = setup.failed()
    assert (type(error), str(error)) == (TimeoutError, said)
    assert setup.recorder.elements == [1] * came
    assert (setup.publisher.cancels, setup.timer.pending) == (1, 0)


def test_a_slow_subscriber_is_not_upstreams_fault() -> None:
    setup = Setup(request=rsf.UNBOUNDED, on_next=lambda _r, _x: setup.timer.advance(1000))
    setup.next(1)
    setup.wait(9)
    setup.timer.advance(1)
    setup.failed()


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


def test_what_a_subscriber_raises_stops_the_clock(dropped: list[BaseException]) -> None:
    setup = Setup(request=5, on_next=lambda _r, _x: 1 // 0)
    setup.next(1)
    assert (setup.publisher.cancels, setup.timer.pending) == (1, 0)


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


def test_with_the_timer_of_the_process() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        rsf.never().timeout(0.02).to_list()
    assert rsf.range_(3).timeout(100).to_list() == [0, 1, 2]
