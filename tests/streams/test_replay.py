"""Replay: what is kept for those who come late, by count, weight and time."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import ReplayProcessor
from rstreams_fast.errors import ShutDownError
from tests.helpers import Element, Living
from tests.rules.probes import HandTimer, ManualPublisher, Recorder, subscribed

ALL = rsf.UNBOUNDED


def attached(**options: Any) -> tuple[ManualPublisher, ReplayProcessor[Any]]:
    publisher, processor = ManualPublisher(), ReplayProcessor[Any](**options)
    publisher.subscribe(processor)
    return publisher, processor


def feed(processor: Any, elements: Any) -> None:
    for element in elements:
        processor.on_next(element)


def late(publisher: Any) -> list[Any]:
    """What a subscriber gets who comes now and leaves again."""
    recorder = subscribed(publisher, ALL)
    recorder.subscription.cancel()
    recorder.check()
    return recorder.elements


def test_the_last_elements_are_kept_by_weight() -> None:
    _, processor = attached(max_bytes=10, weigher=len)
    subscribed(processor, ALL)
    feed(processor, ["1234", "123", "123"])
    assert late(processor) == ["1234", "123", "123"]
    processor.on_next("1")
    assert late(processor) == ["123", "123", "1"]
    processor.on_next("1" * 11)  # heavier than all that may be kept: delivered, not kept
    assert late(processor) == []
    processor.on_next("")
    assert late(processor) == [""]


def test_the_last_elements_are_kept_by_time() -> None:
    timer = HandTimer()
    _, processor = attached(seconds=10, timer=timer)
    live = subscribed(processor, ALL)
    for n in range(5):
        processor.on_next(n)
        timer.advance(3)
    assert late(processor) == [2, 3, 4]  # 9, 6 and 3 seconds old
    timer.advance(1)
    assert late(processor) == [2, 3, 4]  # just as old as they may be
    timer.advance(1)
    assert late(processor) == [3, 4]
    timer.advance(100)
    assert late(processor) == []
    processor.on_next(5)
    assert late(processor) == [5]
    assert live.elements == list(range(6))


def test_time_goes_on_after_the_end() -> None:
    timer = HandTimer()
    _, processor = attached(seconds=10, timer=timer)
    feed(processor, "ab")
    processor.on_complete()
    assert subscribed(processor, ALL).elements == ["a", "b"]
    timer.advance(11)
    assert subscribed(processor).signals == [("on_subscribe",), ("on_complete",)]


def test_all_bounds_hold_at_once() -> None:
    timer = HandTimer()
    _, processor = attached(count=4, max_bytes=6, weigher=len, seconds=10, timer=timer)
    subscribed(processor, ALL)
    feed(processor, ["a"] * 5)
    assert late(processor) == ["a"] * 4
    processor.on_next("bbbb")
    assert late(processor) == ["a", "a", "bbbb"]
    timer.advance(9)
    processor.on_next("c")
    assert late(processor) == ["a", "bbbb", "c"]
    timer.advance(2)
    assert late(processor) == ["c"]


def test_what_the_weigher_raises_ends_it() -> None:
    publisher, processor = attached(max_bytes=10, weigher=len)
    recorder = subscribed(processor, ALL)
    feed(processor, ["abc", 5])
    assert isinstance(recorder.error, TypeError)
    assert publisher.cancels == 1
    assert subscribed(processor, ALL).signals[1:] == [("on_next", "abc"), recorder.terminal]


def test_what_came_before_a_bad_weight_in_the_same_burst_is_not_lost() -> None:
    def weigh(element: int) -> int:
        return -1 if element == 300 else 1

    stream = rsf.range_(1000).replay(max_bytes=1000, weigher=weigh)
    recorder = subscribed(stream, ALL)
    assert recorder.elements == list(range(300))
    assert isinstance(recorder.error, TypeError)
    assert late(stream) == list(range(300))


def test_after_an_error_what_is_kept_still_comes_and_then_the_error() -> None:
    _, processor = attached(count=2)
    slow, error = subscribed(processor, 1), ValueError("broken")
    feed(processor, range(5))
    processor.on_error(error)
    assert slow.signals[1:] == [("on_next", 0), ("on_error", error)]  # it overtook the rest
    recorder = subscribed(processor)
    assert recorder.terminal is None
    recorder.subscription.request(2)
    assert recorder.signals[1:] == [("on_next", 3), ("on_next", 4), ("on_error", error)]


def test_a_delayed_error_comes_after_what_subscribers_have_not_had() -> None:
    _, processor = attached(count=2, delay_error=True)
    slow, error = subscribed(processor, 1), ValueError("broken")
    feed(processor, range(5))
    processor.on_error(error)
    slow.subscription.request(ALL)
    assert slow.elements == list(range(5))
    assert slow.error is error


def test_time_alone_lets_the_slow_gate() -> None:
    timer = HandTimer()
    publisher, processor = attached(seconds=1, timer=timer, buffer_size=4)
    live, slow = subscribed(processor, ALL), subscribed(processor)
    sent = 0
    while sent < publisher.requested and sent < 1000:
        processor.on_next(sent)
        sent += 1
    assert sent == 1000  # all of it in one moment: no bound but time's
    timer.advance(2)
    feed(processor, range(sent, publisher.requested))
    asked = publisher.requested
    assert len(live.elements) == asked
    slow.subscription.request(10)
    assert publisher.requested == asked  # it still lags by more than the buffer
    slow.subscription.request(ALL)
    assert publisher.requested > asked
    assert slow.elements == list(range(asked))


only_cpython = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)


@only_cpython
def test_after_a_shut_down_nothing_is_kept() -> None:
    publisher, processor = attached(count=2, on_last_cancel="shut_down")
    element = Element()
    gone = weakref.ref(element)
    processor.on_next(element)
    del element
    subscribed(processor).subscription.cancel()
    assert publisher.cancels == 1
    assert gone() is None, gc.get_referrers(gone())
    recorder = subscribed(processor, ALL)
    assert recorder.elements == []
    assert isinstance(recorder.error, ShutDownError)


@only_cpython
def test_what_is_beyond_the_bounds_is_let_go_of() -> None:
    timer, living = HandTimer(), Living()
    _, processor = attached(count=3, seconds=10, timer=timer)
    for _ in range(5):
        processor.on_next(living.make())
    assert living.alive.value == 3
    timer.advance(11)
    processor.on_next(0)
    assert living.alive.value == 0


def test_a_long_chain_is_let_go_of_without_recursion() -> None:
    processor = ReplayProcessor[int](count=200_000)
    feed(processor, range(200_000))
    recorder = subscribed(processor)
    del processor
    recorder.subscription.cancel()
    recorder.check()


def test_a_replayed_stream_runs_its_source_once() -> None:
    calls: list[int] = []
    stream = rsf.range_(10).do_on_next(calls.append).replay(count=4)
    assert subscribed(stream, ALL).elements == list(range(10))
    for _ in range(3):
        recorder = subscribed(stream, ALL)
        assert recorder.elements == [6, 7, 8, 9]
        assert recorder.terminal == ("on_complete",)
    assert calls == list(range(10))


def test_a_replayed_stream_may_shut_down_or_restart() -> None:
    publisher = ManualPublisher()
    shut = rsf.from_publisher(publisher).replay(count=4, on_last_cancel="shut_down")
    subscribed(shut, 1).subscription.cancel()
    assert publisher.cancels == 1
    assert isinstance(subscribed(shut).error, ShutDownError)

    again = rsf.range_(3).replay(count=1, on_last_cancel="restart")
    for _ in range(2):
        assert subscribed(again, ALL).elements == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "at least one of count, max_bytes and seconds"),
        ({"max_bytes": 5}, "max_bytes and weigher"),
        ({"count": 1, "weigher": len}, "max_bytes and weigher"),
        ({"count": 1, "timer": HandTimer()}, "seconds"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [ReplayProcessor, rsf.range_(3).replay])
def test_a_wrong_argument_is_named(make: Any, options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(**options)


@pytest.mark.parametrize("problem", [OSError("no time today"), KeyboardInterrupt()])
def test_who_is_told_that_the_timer_raised_may_come_again(problem: BaseException) -> None:
    class Broken(HandTimer):
        broken = True

        def now(self) -> float:
            if self.broken:
                raise problem
            return super().now()

    timer, recorder = Broken(), Recorder(request=1)
    processor = ReplayProcessor[int](seconds=1, timer=timer)
    if isinstance(problem, Exception):
        processor.subscribe(recorder)  # §1.9: nothing is raised
        assert recorder.signals == [("on_subscribe",), ("on_error", problem)]
    else:
        with pytest.raises(KeyboardInterrupt):
            processor.subscribe(recorder)
        assert recorder.signals == []
    recorder.signals.clear()
    timer.broken = False
    processor.subscribe(recorder)
    processor.on_next(1)
    assert recorder.signals == [("on_subscribe",), ("on_next", 1)]


@pytest.fixture(autouse=True)
def _no_dropped_errors(dropped: list[BaseException]) -> Iterator[None]:
    """Whatever nobody can receive fails the test."""
    yield
    assert dropped == []
