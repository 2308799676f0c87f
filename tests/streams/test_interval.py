"""interval: when ticks come, on which thread, and what becomes of those that nobody asks for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import Overflow, WorkDroppedError
from tests.helpers import run_python, run_threads, wait_for, wait_until
from tests.rules.probes import Clock, HandTimer, Recorder, subscribed
from tests.streams.held import Hold

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


class Jumping(HandTimer):
    """Its clock can be moved over alarms, as if the process had been stopped meanwhile."""

    def stop_for(self, seconds: float) -> None:
        self._now += seconds


def ticking(
    seconds: float = 1.0,
    *,
    timer: HandTimer | None = None,
    request: int = rsf.UNBOUNDED,
    **how: Any,
) -> tuple[HandTimer, Recorder]:
    timer = timer or HandTimer()
    return timer, subscribed(rsf.interval(seconds, timer=timer, **how), request)


def test_the_first_tick_comes_after_a_period_or_after_the_delay() -> None:
    for delay, first in ((None, 2.0), (0, 0.0), (0.5, 0.5), (7, 7.0)):
        timer, recorder = ticking(2, delay=delay)
        if first:
            timer.advance(first - 0.25)
            assert recorder.elements == []
            timer.advance(0.25)
        else:
            timer.advance(0)
        recorder.wait_elements(1)
        timer.advance(4)
        recorder.wait_elements(3)
        assert recorder.elements == [0, 1, 2]
        recorder.subscription.cancel()
        recorder.check()


def test_delays_do_not_add_up() -> None:
    """Tick n is due at delay + n * seconds, however late those before it came."""
    _, recorder = ticking(1, timer=(timer := Jumping()))
    for n in range(0, 10, 2):
        timer.stop_for(1.25)
        timer.advance(0)  # the alarm is handled a quarter of a second late
        recorder.wait_elements(n + 1)
        timer.advance(0.5)
        assert timer.pending == 1
        timer.advance(0.25)  # and the next in time
        recorder.wait_elements(n + 2)
    assert timer.now() == 10.0
    assert recorder.elements == list(range(10))
    recorder.subscription.cancel()


def test_missed_ticks_are_left_out_and_the_number_tells_the_time() -> None:
    _, recorder = ticking(1, delay=0, timer=(timer := Jumping()))
    timer.advance(0)
    timer.advance(1)
    recorder.wait_elements(2)
    timer.stop_for(7.5)  # ticks 2 to 8 are due at once
    timer.advance(0)
    recorder.wait_elements(3)
    assert recorder.elements == [0, 1, 8]
    timer.advance(0.25)
    assert timer.pending == 1
    timer.advance(0.25)
    recorder.wait_elements(4)
    assert recorder.elements == [0, 1, 8, 9]  # at its own time, 9.0
    assert rsf.metrics_of(recorder.subscription)[0].dropped == 0
    recorder.subscription.cancel()
    recorder.check()


def test_periods_that_no_float_is_exact_for_lose_no_tick() -> None:
    timer, recorder = ticking(0.1, capacity=2000)
    for _ in range(1000):
        timer.advance(0.1)
    timer.advance(0.05)
    recorder.wait_elements(1000)
    assert recorder.elements == list(range(1000))
    recorder.subscription.cancel()


def test_ticks_are_delivered_on_a_worker_of_their_own() -> None:
    seen: set[str] = set()
    ticks = rsf.interval(0.001).do_on_next(lambda n: seen.add(threading.current_thread().name))
    ticks.take(5).run()
    (name,) = seen
    assert name.startswith("rstreams-fast-")
    assert not name.startswith("rstreams-fast-timer")


def test_clocks_share_their_threads() -> None:
    timer = HandTimer()
    before = threading.active_count()
    recorders = [subscribed(rsf.interval(1.0, timer=timer), 1) for _ in range(50)]
    wait_until(lambda: threading.active_count() <= before, "the end of the threads")
    for recorder in recorders:
        recorder.subscription.cancel()


def test_the_clock_starts_when_it_is_asked() -> None:
    timer = HandTimer()
    recorder = subscribed(rsf.interval(1.0, timer=timer))
    timer.advance(9.5)
    assert timer.pending == 0
    recorder.subscription.request(2)
    timer.advance(0.9)
    assert recorder.elements == []
    timer.advance(1.1)
    recorder.wait_elements(2)
    assert recorder.elements == [0, 1]
    recorder.subscription.cancel()


def test_a_boundary_that_asks_late_loses_no_tick() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(wait_for, go_on)  # the boundary asks when this is over
        timer, recorder = HandTimer(), Recorder(request=3)
        rsf.interval(0.02, timer=timer).publish_on(pool).subscribe(recorder)
        timer.advance(1.0)
        go_on.set()
        recorder.wait_subscribed()
        pool.submit(int).result(20)
        timer.advance(0.07)
        recorder.wait_elements(3)
        assert recorder.elements == [0, 1, 2]
        recorder.subscription.cancel()


def test_ticks_are_delivered_on_the_executor_or_loop() -> None:
    seen: set[str] = set()

    def look(n: int) -> None:
        seen.add(threading.current_thread().name.rpartition("_")[0])

    with ThreadPoolExecutor(2, "mine") as pool:
        rsf.interval(0.001, executor=pool).do_on_next(look).take(5).run()
    assert seen == {"mine"}

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        ticks = rsf.interval(0.001, executor=loop, overflow=Overflow.BUFFER)
        ticks = ticks.do_on_next(lambda n: threads.add(threading.current_thread()))
        return await ticks.take(5).to_list_async()

    threads: set[threading.Thread] = set()
    assert len(asyncio.run(main())) == 5
    assert threads == {threading.main_thread()}


def test_a_subscriber_that_works_long_keeps_no_other_stream_from_ticking() -> None:
    hold = Hold()
    slow = subscribed(rsf.interval(0.001, overflow=Overflow.LATEST), 1, on_next=hold)
    wait_for(hold.entered)
    assert len(rsf.interval(0.001).take(5).to_list()) == 5
    hold.leave.set()
    slow.subscription.cancel()


def test_an_executor_that_refuses_work_is_an_error_and_stops_the_clock() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    timer, recorder = ticking(executor=pool)
    assert isinstance(recorder.wait_terminal()[1], RuntimeError)
    assert timer.pending == 0
    recorder.check()


def test_a_tick_that_nobody_asked_for_is_an_error_that_says_what_to_do() -> None:
    timer, recorder = ticking(request=1)
    timer.advance(2)
    error = recorder.wait_terminal()[1]
    assert isinstance(error, rsf.BufferOverflowError)
    assert "interval(ERROR)" in str(error)
    assert "overflow=" in str(error)
    assert recorder.elements == [0]
    assert timer.pending == 0
    recorder.check()


def test_ticks_pile_up_within_the_bound_behind_a_slow_subscriber() -> None:
    timer, hold = HandTimer(), Hold()
    recorder = subscribed(rsf.interval(1, timer=timer, capacity=3), rsf.UNBOUNDED, on_next=hold)
    timer.advance(1)
    wait_for(hold.entered)
    timer.advance(4)  # 3 are held, the next is one too many
    assert timer.pending == 0
    hold.leave.set()
    assert isinstance(recorder.wait_terminal()[1], rsf.BufferOverflowError)
    assert recorder.elements == [0, 1, 2, 3]
    recorder.check()


def test_cancel_while_an_alarm_is_being_set_stops_it() -> None:
    class Cancelling(HandTimer):
        def call_later(self, *arguments: Any) -> Any:
            alarm = super().call_later(*arguments)
            if self.now() > 0:
                recorder.subscription.cancel()
            return alarm

    timer, recorder = ticking(timer=Cancelling())
    timer.advance(1)
    assert timer.pending == 0
    recorder.check()


def test_cancel_stops_the_second_alarm_though_it_was_set_before_the_first_was_known() -> None:
    class Eager(HandTimer):
        def call_later(self, *arguments: Any) -> Any:
            alarm = super().call_later(*arguments)
            if arguments[0] == 0:
                self.advance(0)
            return alarm

    timer, recorder = ticking(delay=0, timer=Eager())
    recorder.wait_elements(1)
    assert timer.pending == 1
    recorder.subscription.cancel()
    assert timer.pending == 0


def test_cancel_races_with_the_clock() -> None:
    for _ in range(30):
        timer, recorder = ticking(overflow=Overflow.DROP_OLDEST, capacity=4)
        run_threads(
            [
                partial(timer.advance, 50),
                recorder.subscription.cancel,
                partial(recorder.subscription.request, 5),
            ]
        )
        assert timer.pending == 0
        recorder.check()


def test_a_timer_that_refuses_or_drops_is_an_error() -> None:
    class Closing(HandTimer):
        told: Any = None
        left = 2

        def call_later(self, seconds: float, work: Any, when_dropped: Any = None, /) -> Any:
            self.left -= 1
            if self.left < 0:
                raise WorkDroppedError("as it should")
            self.told = when_dropped
            return super().call_later(seconds, work, when_dropped)

    _, recorder = ticking(timer=(timer := Closing()))
    timer.advance(2)
    assert isinstance(recorder.wait_terminal()[1], WorkDroppedError)
    assert recorder.elements == [0, 1]
    _, recorder = ticking(timer=(timer := Closing()))
    timer.told(WorkDroppedError("as it should"))
    assert isinstance(recorder.wait_terminal()[1], WorkDroppedError)
    recorder.check()


EXIT = r"""
import sys, threading
import rstreams_fast as rsf

def wait():
    try:
        rsf.interval(3600).do_on_subscribe(lambda _: subscribed.set()).to_list()
    except RuntimeError:
        sys.stdout.write("told\n")

subscribed, ticked = threading.Event(), threading.Event()
threading.Thread(target=wait).start()
assert subscribed.wait(20)
rsf.interval(0.01).for_each(
    lambda n: ticked.set(), lambda error: sys.stdout.write(f"ticking: {type(error).__name__}\n")
)
assert ticked.wait(20)
"""


def test_ticks_do_not_keep_the_interpreter_from_exiting_and_who_waits_is_told() -> None:
    printed = run_python("-c", EXIT).stdout
    assert sorted(printed.splitlines()) == ["ticking: WorkDroppedError", "told"]


LATE = """
import threading
import rstreams_fast as rsf

def begin():
    threading.main_thread().join()
    ticked = threading.Event()
    rsf.interval(0.01).for_each(lambda n: ticked.set())
    assert ticked.wait(20)
    print("ticked")

{before}
threading.Thread(target=begin).start()
"""


@pytest.mark.parametrize("before", ["", "rsf.range_(3).publish_on().to_list()"])
def test_the_first_ticks_after_the_main_thread_has_ended_do_not_keep_it_either(before: str) -> None:
    assert run_python("-c", LATE.format(before=before)).stdout.split() == ["ticked"]


def test_a_tick_that_nobody_needs_any_more_is_no_error(dropped: list[BaseException]) -> None:
    timer, hold = Clock(), Hold()
    recorder = subscribed(
        rsf.interval(1, timer=timer).publish_on().map(hold).take(3), rsf.UNBOUNDED
    )

    def has_failed() -> bool:
        timer.advance(1)
        return hold.entered.is_set() and timer.pending == 0  # the clock ends with the overflow

    wait_until(has_failed, "the overflow")
    hold.leave.set()
    assert recorder.wait_terminal() == ("on_complete",)
    assert len(recorder.elements) == 3
    assert dropped == []
