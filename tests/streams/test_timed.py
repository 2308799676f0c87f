"""What depends on when elements come, by a clock in hand."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for, wait_until
from tests.rules.probes import (
    BrokenTimer,
    Clock,
    CountingTimer,
    HandTimer,
    ManualPublisher,
    Recorder,
    send,
    subscribed,
)

UNBOUNDED = rsf.UNBOUNDED
OPERATORS = ["debounce", "throttle_first", "sample"]


def timed(operator: str, request: Any = UNBOUNDED) -> tuple[ManualPublisher, Recorder, HandTimer]:
    above, timer = ManualPublisher(), HandTimer()
    stream = getattr(rsf.from_publisher(above), operator)(10, timer=timer)
    return above, subscribed(stream, request), timer


def dropped(recorder: Recorder) -> int:
    return rsf.metrics_of(recorder.subscription)[0].dropped


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("debounce", [3, 4, 5]),  # at 15, 30, and the end
        ("throttle_first", [1, 4]),  # at 1 and 20
        ("sample", [3, 4, 5]),  # at 10, 30, and the end
    ],
)
def test_what_comes_when(operator: str, expected: list[int]) -> None:
    above, below, timer = timed(operator)
    assert above.requests == [UNBOUNDED]
    timer.advance(1)
    send(above, 1, 2)
    timer.advance(4)
    send(above, 3)
    timer.advance(4)
    assert below.elements == expected[:1] * (operator == "throttle_first")
    timer.advance(7)
    below.wait_elements(1)
    timer.advance(4)
    send(above, 4)
    if operator != "throttle_first":  # the thread that let 3 out may be the one to set the alarm
        wait_until(lambda: timer.pending == 1, "the alarm")
    timer.advance(10)
    below.wait_elements(2)
    if operator != "throttle_first":
        send(above, 5)
    above.subscriber.on_complete()
    assert below.wait_terminal() == ("on_complete",)
    assert below.elements == expected
    assert dropped(below) == 2
    below.check()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_newest_takes_the_place_of_what_waits_for_demand(operator: str) -> None:
    above, below, timer = timed(operator, ...)
    for n in range(3):
        send(above, n)
        timer.advance(10)
    above.subscriber.on_complete()
    assert below.terminal is None
    below.subscription.request(1)
    below.wait_terminal()
    assert (below.elements, dropped(below)) == ([2], 2)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_error_takes_the_place_of_what_waits_for_its_time(operator: str) -> None:
    above, below, _ = timed(operator)
    send(above, 1, 2)
    above.subscriber.on_error(OSError())
    assert isinstance(below.wait_terminal()[1], OSError)
    assert below.elements == [1] * (operator == "throttle_first")
    assert dropped(below) == 2 - len(below.elements)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_cancel_leaves_no_alarm(operator: str) -> None:
    above, below, timer = timed(operator)
    send(above, 1)
    below.subscription.cancel()
    assert (above.cancels, timer.pending) == (1, 0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_they_say_what_they_hold(operator: str) -> None:
    stream: Any = getattr(rsf.range_(3), operator)(0.5)
    assert f"{operator}(0.5 s): holds" in stream.describe()
    with pytest.raises(ValueError, match=rf"{operator}\(seconds\)"):
        getattr(rsf.range_(3), operator)(0)


def test_each_element_is_delayed_and_one_asked_for_ahead() -> None:
    above, timer = ManualPublisher(), HandTimer()
    stream = rsf.from_publisher(above).delay_elements(10, timer=timer)
    below = subscribed(stream, UNBOUNDED)
    assert above.requests == [1]
    assert "delay_elements(10 s): at most 1 element" in stream.describe()
    send(above, 1)
    above.wait_requested(2)
    send(above, 2)
    above.subscriber.on_complete()
    timer.advance(9)
    assert below.elements == []
    timer.advance(1)
    below.wait_elements(1)  # the clock of the next begins on another thread, after that
    wait_until(lambda: timer.advance(10) or len(below.elements) == 2, "the second element")
    assert below.wait_terminal() == ("on_complete",)
    assert below.elements == [1, 2]


def test_elements_are_stamped_with_the_time_they_come_at() -> None:
    timer = HandTimer()
    stream = rsf.range_(3).do_on_next(lambda _n: timer.advance(1)).timestamp(timer.now)
    assert stream.to_list() == [(1.0, 0), (2.0, 1), (3.0, 2)]
    ((stamp, _),) = rsf.range_(1).timestamp().to_list()
    assert stamp > 1e9


@pytest.mark.parametrize("sent", [(), (1,), (1, 2)])
def test_a_cancel_discards_what_is_delayed_and_what_waits(sent: tuple[int, ...]) -> None:
    above, timer, discarded = ManualPublisher(), HandTimer(), list[int]()
    stream = rsf.from_publisher(above).delay_elements(10, timer=timer)
    below = subscribed(stream.on_discard(discarded.append), UNBOUNDED)
    send(above, *sent)
    below.subscription.cancel()
    assert (discarded, above.cancels, timer.pending) == (list(sent), 1, 0)


def test_an_upstream_that_takes_its_time_keeps_no_element_back() -> None:
    timer, asked, go_on = HandTimer(), threading.Event(), threading.Event()

    def slowly(n: int) -> int:
        if n == 2:  # asked for when the time of 1 begins
            asked.set()
            go_on.wait(DEADLINE)
        return n

    stream = rsf.range_(3).map(slowly).delay_elements(10, timer=timer)
    below = subscribed(stream, UNBOUNDED)
    timer.advance(10)
    below.wait_elements(1)
    wait_for(asked)
    timer.advance(10)
    below.wait_elements(2)
    go_on.set()
    wait_until(lambda: timer.advance(10) or below.terminal is not None, "the end")
    assert below.elements == [0, 1, 2]


def test_delay_elements_waits_from_the_request_if_that_is_the_latest() -> None:
    timer = Clock()
    below = subscribed(rsf.range_(3).delay_elements(10, timer=timer), 1)
    timer.advance(10)
    assert below.elements == [0]
    timer.advance(100)
    below.subscription.request(1)
    timer.advance(9)
    assert below.elements == [0]
    timer.advance(1)
    assert below.elements == [0, 1]
    below.subscription.cancel()


def late(stream: rsf.Stream[Any], operator: str, timer: Any) -> rsf.Stream[Any]:
    """The operator that makes something known after ten seconds."""
    if operator == "timeout":
        return stream.timeout(10, timer=timer)
    return stream.batch(5, seconds=10, timer=timer)


EACH = pytest.mark.parametrize("operator", ["timeout", "batch"])


@EACH
@pytest.mark.usefixtures("no_leaked_threads")
def test_what_is_late_is_made_known_on_a_worker_in_the_context_of_subscribe(operator: str) -> None:
    local = contextvars.ContextVar("local", default="not set")
    seen: list[tuple[str, int, str]] = []

    def note(what: str) -> None:
        seen.append((what, threading.get_ident(), local.get()))

    above, timer = ManualPublisher(), HandTimer()
    local.set("where it was subscribed to")
    cancelled = rsf.from_publisher(above).do_on_cancel(lambda: note("cancel"))
    stream = late(cancelled, operator, timer).do_on_error(lambda _: note("error"))
    below = subscribed(stream, 1, on_next=lambda *_: note("batch"))
    local.set("changed since")
    if operator == "batch":
        send(above, 1)
    timer.advance(10)
    expected = {"batch"} if operator == "batch" else {"cancel", "error"}
    wait_until(lambda: len(seen) == len(expected), "the notes")
    whats, threads, contexts = zip(*seen, strict=True)
    assert set(whats) == expected
    assert threading.get_ident() not in threads
    assert set(contexts) == {"where it was subscribed to"}
    below.subscription.cancel()


@EACH
@pytest.mark.usefixtures("no_leaked_threads")
def test_time_passes_while_upstream_keeps_the_caller(operator: str) -> None:
    timer, entered, leave = HandTimer(), threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        entered.set()
        wait_for(leave)
        yield 1

    below = subscribed(late(rsf.from_iterable(source()), operator, timer))
    asking = start_thread(lambda: below.subscription.request(9))
    wait_for(entered)
    timer.advance(10)
    if operator == "timeout":
        assert isinstance(below.wait_terminal()[1], TimeoutError)
    else:
        below.wait_elements(1)
    leave.set()
    asking.result()
    below.wait_terminal()
    assert below.elements == ([0] if operator == "timeout" else [[0], [1]])
    below.check()


@EACH
def test_no_alarm_is_set_for_each_element_or_batch(operator: str) -> None:
    timer = CountingTimer()
    stream = late(rsf.range_(2000), operator, timer)
    below = subscribed(stream, 1, on_next=lambda r, _x: r.subscription.request(1))
    assert below.terminal == ("on_complete",)
    assert (timer.alarms.value, timer.pending) == (1, 0)


@pytest.mark.parametrize("operator", ["timeout", "retry"])
def test_a_timer_that_refuses_ends_the_stream(operator: str) -> None:
    stream = {
        "timeout": rsf.never().timeout(1, timer=BrokenTimer()),
        "retry": rsf.error(ValueError()).retry(delay=1, timer=BrokenTimer()),
    }[operator]
    assert isinstance(subscribed(stream, 1).error, OSError)
