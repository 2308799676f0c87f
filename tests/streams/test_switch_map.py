"""switch_map: the newest publisher alone, and the demand that goes from one to the next."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

UNBOUNDED = rsf.UNBOUNDED


def switched(inners: Any, n: int, **options: Any) -> tuple[ManualPublisher, Recorder]:
    outer = ManualPublisher()
    stream = rsf.from_publisher(outer).switch_map(inners.__getitem__, prefetch=4)
    return outer, subscribed(stream, n, **options)


def test_the_newest_takes_the_place_of_the_one_before() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    outer, recorder = switched([a, b], 5)
    send(outer, 0)
    send(a, "a1", "a2")
    late = a.subscriber
    send(outer, 1)
    assert (a.cancels, b.subscribes) == (1, 1)
    late.on_next("a3")
    late.on_complete()
    send(b, "b1")
    outer.subscriber.on_complete()
    assert recorder.terminal is None
    b.subscriber.on_complete()
    assert recorder.elements == ["a1", "a2", "b1"]
    assert recorder.terminal == ("on_complete",)
    assert (outer.cancels, b.cancels) == (0, 0)
    recorder.check()


def test_what_was_asked_for_and_has_not_come_is_asked_of_the_next() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    outer, recorder = switched([a, b], 5)
    send(outer, 0)
    send(a, 1, 2)
    send(outer, 1)
    recorder.subscription.request(2)
    assert (a.requests, b.requests) == ([5], [3, 2])
    send(b, *range(5))
    assert len(recorder.elements) == 7


def test_what_is_above_is_asked_again_when_three_quarters_have_come_without_demand() -> None:
    inners = [ManualPublisher() for _ in range(9)]
    outer, recorder = switched(inners, 1)
    send(outer, 0)
    send(inners[0], "the only one asked for")
    send(outer, 1)
    assert outer.requests == [4]
    send(outer, 2)
    assert outer.requests == [4, 3]
    assert [inner.requests for inner in inners[:3]] == [[1], [], []]
    assert recorder.terminal is None


def test_of_elements_that_come_together_the_last_one_counts() -> None:
    called: list[int] = []

    def fn(n: int) -> rsf.Stream[int]:
        called.append(n)
        return rsf.range_(n, n + 2)

    assert rsf.range_(5).switch_map(fn).to_list() == [4, 5]
    assert called == [4]


def test_one_by_one_a_synchronous_publisher_comes_whole() -> None:
    stream = rsf.range_(3).switch_map(lambda n: rsf.range_(10 * n, 10 * n + 2), prefetch=1)
    assert stream.to_list() == [0, 1, 10, 11, 20, 21]


def test_a_publisher_that_is_over_is_no_end_while_there_is_more_above() -> None:
    outer, recorder = switched([rsf.range_(1), rsf.range_(2)], UNBOUNDED)
    send(outer, 0)
    send(outer, 1)
    assert recorder.terminal is None
    outer.subscriber.on_complete()
    assert recorder.elements == [0, 0, 1]
    assert recorder.terminal == ("on_complete",)


def test_an_error_of_one_that_was_switched_from_is_made_known(dropped: list[BaseException]) -> None:
    a, b = ManualPublisher(), ManualPublisher()
    outer, recorder = switched([a, b], 1)
    send(outer, 0)
    late = a.subscriber
    send(outer, 1)
    late.on_error(ValueError("late"))
    assert [str(error) for error in dropped] == ["late"]
    assert recorder.terminal is None


def test_a_publisher_without_end_on_the_caller_stops_when_the_next_comes() -> None:
    going = threading.Event()
    endless = rsf.range_(10**12).do_on_next(lambda n: going.set() if n else None)
    outer, recorder = switched([endless, rsf.range_(1)], 1)
    send(outer, 0)
    asking = start_thread(lambda: recorder.subscription.request(UNBOUNDED))
    wait_for(going, "the second element")
    send(outer, 1)
    outer.subscriber.on_complete()
    assert recorder.wait_terminal() == ("on_complete",)
    asking.result(DEADLINE)
    assert recorder.elements[-1] == 0
    recorder.check()


@pytest.mark.parametrize("inner", [rsf.range_(10**6), rsf.range_(10**6).map(abs)])
def test_a_sequence_stops_at_the_element_that_switches_from_it(inner: rsf.Stream[int]) -> None:
    def switch(_recorder: Recorder, element: int) -> None:
        if element == 2:
            send(outer, 2)
            outer.subscriber.on_complete()

    inners = [rsf.range_(1), inner, rsf.range_(7, 9).map(abs)]
    outer, recorder = switched(inners, 1, on_next=switch)
    send(outer, 0, 1)
    recorder.subscription.request(UNBOUNDED)
    assert recorder.elements == [0, 0, 1, 2, 7, 8]
    assert recorder.terminal == ("on_complete",)
    recorder.check()


def test_no_more_comes_than_was_asked_for_however_often_it_switches() -> None:
    """Each publisher works on a thread of its own, and is switched from while it sends."""
    rounds, each = 300, 5
    outer = ManualPublisher()
    publishers = rsf.from_publisher(outer)
    recorder = subscribed(
        publishers.switch_map(lambda _n: rsf.range_(10**9).subscribe_on(), prefetch=16)
    )
    for n in range(rounds):
        recorder.subscription.request(each)
        outer.wait_requested(n + 1)  # by another thread, perhaps, at this moment
        send(outer, n)
    recorder.wait_elements(rounds * each)
    recorder.subscription.request(1)
    recorder.wait_elements(rounds * each + 1)
    outer.subscriber.on_complete()
    recorder.subscription.cancel()
    assert len(recorder.elements) == rounds * each + 1
    recorder.check()


def test_it_measures_what_is_above() -> None:
    outer, recorder = switched([rsf.never().publish_on("caller")], 1)
    send(outer, 0)
    (current,) = rsf.metrics_of(recorder.subscription)
    assert "publish_on" in current.name
    recorder.subscription.cancel()
