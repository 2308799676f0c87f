"""batch by number, time and weight: each batch leaves when it should, and nothing more is held."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread, wait_for
from tests.rules.probes import (
    Clock,
    CountingTimer,
    HandTimer,
    ManualPublisher,
    Recorder,
    raising,
    send,
    subscribed,
)
from tests.stepping import steps


class Setup:
    """A publisher and a clock in hand, and a subscriber that records."""

    def __init__(
        self,
        n: int,
        *,
        request: Any = ...,
        seconds: float | None = 10,
        on_next: Any = None,
        **options: Any,
    ) -> None:
        self.timer = Clock()
        self.publisher = ManualPublisher()
        self.recorder = Recorder(request=request, on_next=on_next)
        if seconds is not None:
            options |= {"seconds": seconds, "timer": self.timer}
        rsf.from_publisher(self.publisher).batch(n, **options).subscribe(self.recorder)

    def next(self, *elements: Any) -> None:
        send(self.publisher, *elements)

    def request(self, n: int) -> None:
        self.recorder.subscription.request(n)

    def pass_time(self, seconds: float, batches: int) -> None:
        """Move the clock, by which so many batches have left."""
        self.timer.advance(seconds)
        assert len(self.recorder.elements) == batches

    @property
    def batches(self) -> list[list[Any]]:
        return self.recorder.elements


@pytest.fixture(autouse=True)
def _no_thread_stays(no_leaked_threads: None) -> None:
    """A worker that hands over batches ends with its stream."""


def weigh(element: int) -> int:
    return element


# -- demand ----------------------------------------------------------------------------------------


def test_with_more_demand_more_is_asked_for_as_batches_leave() -> None:
    setup = Setup(3, request=rsf.UNBOUNDED)
    setup.next(1, 2)
    assert setup.publisher.requests == [3]
    setup.next(3)
    setup.next(4, 5, 6)
    assert setup.publisher.requests == [3, 3, 3]
    assert setup.batches == [[1, 2, 3], [4, 5, 6]]


def test_without_demand_no_more_than_one_batch_is_held() -> None:
    setup = Setup(4, request=1)
    setup.next(1)
    setup.pass_time(10, 1)
    setup.next(2, 3, 4)  # they were asked for
    setup.timer.advance(100)
    assert setup.batches == [[1]]
    assert setup.publisher.requests == [4]
    setup.request(1)
    assert setup.batches == [[1], [2, 3, 4]]  # its time was up long ago
    setup.request(1)
    assert setup.publisher.requested == 8  # all 4 that have left came out of 4, and 4 more
    setup.recorder.subscription.cancel()
    setup.recorder.check()


# -- time ------------------------------------------------------------------------------------------
def test_a_batch_leaves_when_its_time_is_up() -> None:
    setup = Setup(5, request=9)
    setup.timer.advance(100)
    setup.next(1)
    setup.timer.advance(4)
    setup.next(2)
    setup.timer.advance(5.9)
    assert setup.batches == []
    setup.pass_time(0.1, 1)  # ten seconds after the first, whenever the others came
    assert setup.batches == [[1, 2]]
    setup.next(3)
    setup.pass_time(10, 2)
    assert setup.batches == [[1, 2], [3]]
    setup.recorder.subscription.cancel()
    setup.recorder.check()


def test_a_batch_that_left_early_leaves_its_time_to_nobody() -> None:
    setup = Setup(2, request=9)
    setup.next(1)
    setup.timer.advance(9)
    setup.next(2)
    setup.next(3)  # its ten seconds begin here
    setup.timer.advance(9)
    assert setup.batches == [[1, 2]]
    setup.pass_time(1, 2)
    assert setup.batches == [[1, 2], [3]]
    setup.recorder.subscription.cancel()


def test_a_batch_asked_for_has_its_time_though_an_element_comes_at_that_moment() -> None:
    for step in steps():
        setup = Setup(5, request=1)
        setup.next(1)
        setup.pass_time(10, 1)
        setup.next(2)
        with step.meanwhile(lambda s=setup: s.next(3)):
            setup.request(1)
        assert setup.timer.pending == 1, step
        setup.pass_time(10, 2)
        assert setup.batches == [[1], [2, 3]], step
        setup.recorder.subscription.cancel()


@pytest.mark.parametrize("call", ["elements", "request", "cancel"])
def test_what_comes_with_the_alarm_is_neither_lost_nor_doubled(call: str) -> None:
    for step in steps():
        setup = Setup(10, request=1)
        setup.next(0)
        with step.meanwhile(lambda s=setup: s.timer.advance(10)):
            if call == "elements":
                setup.next(1, 2, 3)
            elif call == "request":
                setup.request(1)
            else:
                setup.recorder.subscription.cancel()
        if call == "cancel":
            assert setup.batches in ([], [[0]]), step
            assert setup.timer.pending == 0, step
            assert setup.publisher.cancels == 1, step
        else:
            setup.request(9)
            setup.publisher.subscriber.on_complete()
            sent = list(range(4 if call == "elements" else 1))
            assert [x for batch in setup.batches for x in batch] == sent, step
            assert all(setup.batches), step
            assert setup.recorder.terminal == ("on_complete",), step
        setup.recorder.check()


def test_time_passes_also_while_upstream_keeps_the_caller() -> None:
    timer = HandTimer()
    entered, leave = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        entered.set()
        wait_for(leave)
        yield 1

    recorder = subscribed(rsf.from_iterable(source()).batch(5, seconds=10, timer=timer))
    asking = start_thread(lambda: recorder.subscription.request(9))
    wait_for(entered)
    timer.advance(10)
    recorder.wait_elements(1)
    leave.set()
    asking.result()
    assert recorder.wait_terminal() == ("on_complete",)
    assert recorder.elements == [[0], [1]]
    recorder.check()


def test_time_counts_from_when_an_element_came_not_from_when_it_was_asked_for() -> None:
    setup = Setup(2, request=1)
    setup.next(1)
    setup.pass_time(10, 1)
    setup.next(2)
    setup.timer.advance(7)
    setup.request(1)
    setup.timer.advance(2.9)
    assert setup.batches == [[1]]
    setup.pass_time(0.1, 2)
    assert setup.batches == [[1], [2]]
    setup.recorder.subscription.cancel()


def test_batches_that_are_due_leave_on_a_worker_in_the_context_of_subscribe() -> None:
    local = contextvars.ContextVar("local", default="not set")
    seen: list[tuple[int, str]] = []
    local.set("where it was subscribed to")
    publisher, timer = ManualPublisher(), HandTimer()
    recorder = subscribed(
        rsf.from_publisher(publisher).batch(3, seconds=10, timer=timer),
        9,
        on_next=lambda _r, _x: seen.append((threading.get_ident(), local.get())),
    )
    local.set("changed since")
    send(publisher, 1)
    timer.advance(10)
    recorder.wait(lambda: bool(seen), "the subscriber's note")
    assert seen[0][0] != threading.get_ident()
    assert seen[0][1] == "where it was subscribed to"
    recorder.subscription.cancel()


def test_no_alarm_is_set_for_each_batch() -> None:
    timer = CountingTimer()
    assert len(rsf.range_(2000).batch(2, seconds=10, timer=timer).to_list()) == 1000
    assert timer.alarms.value == 1
    assert timer.pending == 0


# -- weight ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("demand", ["unbounded", "three", "one by one"])
@pytest.mark.parametrize(
    ("elements", "batches"),
    [
        ([1, 2, 3, 4], [[1, 2, 3], [4]]),
        ([4, 3, 6, 1], [[4], [3], [6], [1]]),
        ([6, 6], [[6], [6]]),
        ([9, 1, 20, 2], [[9], [1], [20], [2]]),
        ([0, 0, 0, 0, 0, 0], [[0, 0, 0, 0], [0, 0]]),
        ([3, 3, 1], [[3, 3], [1]]),
        ([5, 1, 1], [[5, 1], [1]]),
    ],
)
def test_no_batch_weighs_more_than_max_bytes_but_one_of_one_element(
    elements: list[int], batches: list[list[int]], demand: str
) -> None:
    if demand == "unbounded":
        recorder = Recorder(request=rsf.UNBOUNDED)
    else:
        more = 3 if demand == "three" else 1
        recorder = Recorder(request=more, on_next=lambda r, _x: r.subscription.request(more))
    stream = rsf.from_iterable(elements).batch(4, max_bytes=6, weigher=weigh)
    stream.subscribe(recorder)
    assert recorder.terminal == ("on_complete",)
    assert recorder.elements == batches
    recorder.check()


def test_no_more_than_max_bytes_and_one_element_is_held() -> None:
    setup = Setup(100, request=1, seconds=None, max_bytes=10, weigher=weigh)
    assert setup.publisher.requests == [1]
    setup.next(4)
    setup.next(4)
    assert setup.publisher.requested == 3  # while the batch has room, one after the other
    setup.next(9)
    assert setup.batches == [[4, 4]]
    assert setup.publisher.requested == 3  # nobody has asked for the batch that the third begins
    setup.request(1)
    assert setup.publisher.requested == 4
    setup.next(5)
    assert setup.batches == [[4, 4], [9]]
    setup.publisher.subscriber.on_complete()
    assert setup.recorder.terminal is None  # the last one waits to be asked for
    setup.request(1)
    assert setup.batches == [[4, 4], [9], [5]]
    assert setup.recorder.terminal == ("on_complete",)
    setup.recorder.check()


@pytest.mark.parametrize("demand", [1, 2, 3, 5, 400])
def test_what_is_held_is_bounded_whatever_the_weights_and_the_demand(demand: int) -> None:
    setup = Setup(8, request=demand, max_bytes=20, weigher=weigh)
    weights = [3, 19, 20, 25, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 30, 2, 18]
    given: list[int] = []
    asked = demand
    while len(given) < 400:
        while setup.publisher.requested > len(given):
            weight = weights[len(given) % len(weights)]
            given.append(weight)
            setup.next(weight)
            held = given[sum(map(len, setup.batches)) :]
            assert len(held) <= 8
            assert sum(held[:-1]) <= 20
            if len(given) % 5 == 0 and held and len(setup.batches) < asked:
                count = len(setup.batches)
                setup.pass_time(10, count + 1)
        if len(setup.batches) == asked:
            setup.request(demand)
            asked += demand
    setup.recorder.subscription.cancel()
    flat = [x for batch in setup.batches for x in batch]
    assert flat == given[: len(flat)]
    assert any(len(batch) > 1 for batch in setup.batches)
    assert all(len(batch) == 1 or sum(batch) <= 20 for batch in setup.batches)
    setup.recorder.check()


def test_what_a_weigher_raises_ends_the_stream() -> None:
    recorder = Recorder(request=rsf.UNBOUNDED)
    rsf.range_(9).batch(2, max_bytes=99, weigher=lambda x: 1 // (5 - x)).subscribe(recorder)
    assert recorder.elements == [[0, 1], [2, 3]]
    assert isinstance(recorder.error, ZeroDivisionError)
    recorder.check()


# -- ends ------------------------------------------------------------------------------------------


def test_what_leaves_through_a_request_to_upstream_is_told_downstream_too() -> None:
    publisher = ManualPublisher(raising(KeyboardInterrupt()))
    recorder = subscribed(rsf.from_publisher(publisher).batch(3, seconds=1))
    with pytest.raises(KeyboardInterrupt):
        recorder.subscription.request(1)
    assert isinstance(recorder.error, KeyboardInterrupt)
    recorder.check()
