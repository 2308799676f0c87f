"""combine_latest, with_latest_from, race, take_until: what comes of others beside the stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

UNBOUNDED = rsf.UNBOUNDED
Manual = ManualPublisher
Beside = Callable[[rsf.Stream[Any], Any], rsf.Stream[Any]]

OPERATORS: dict[str, Beside] = {
    "combine_latest": lambda s, other: s.combine_latest(other, prefetch=4),
    "with_latest_from": lambda s, other: s.with_latest_from(other),
    "race": lambda s, other: s.race(other),
    "take_until": lambda s, other: s.take_until(other),
}
EACH = pytest.mark.parametrize("name", OPERATORS)


def beside(name: str, n: int = 0) -> tuple[Manual, Manual, Recorder]:
    above, other = Manual(), Manual()
    stream = OPERATORS[name](rsf.from_publisher(above), other)
    return above, other, subscribed(stream, n) if n else subscribed(stream)


@EACH
def test_nothing_above_is_asked_for_before_the_subscriber_has_asked(name: str) -> None:
    above, other, recorder = beside(name)
    send(other, *range({"with_latest_from": 1}.get(name, 0)))
    assert above.requests == []
    recorder.subscription.request(3)
    assert above.requests == [{"with_latest_from": 3, "take_until": 3}.get(name, 1)]


@EACH
def test_it_describes_itself_and_measures_what_is_above(name: str) -> None:
    stream = OPERATORS[name](rsf.never(), rsf.never().publish_on("caller"))
    assert name in stream.describe()
    recorder = subscribed(stream, 1)
    names = [metrics.name for metrics in rsf.metrics_of(recorder.subscription)]
    assert any("publish_on" in each for each in names) is (name != "race")  # not decided
    recorder.subscription.cancel()


@EACH
def test_threads_that_signal_at_once_break_nothing(name: str) -> None:
    """Whatever comes first, signals are serial, and no more come than were asked for."""
    for _ in range(20):
        above, other = (rsf.range_(300).subscribe_on() for _ in range(2))
        recorder = Recorder(request=7, on_next=lambda r, _x: r.subscription.request(1))
        OPERATORS[name](above, other).subscribe(recorder)
        assert recorder.wait_terminal() == ("on_complete",)
        recorder.check()


def test_combine_latest_asks_for_one_until_each_has_begun_and_then_ahead() -> None:
    above, other, recorder = beside("combine_latest", UNBOUNDED)
    assert (above.requests, other.requests) == ([1], [1])
    send(above, "a")
    assert recorder.elements == []
    send(other, 1)
    assert (above.requests, other.requests) == ([1, 4], [1, 4])
    send(above, "b", "c", "d")
    assert above.requests == [1, 4, 3]
    send(other, 2)
    assert recorder.elements == [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("d", 2)]


def test_combine_latest_keeps_what_waits_in_the_order_in_which_it_came() -> None:
    above, other, recorder = beside("combine_latest", 1)
    send(above, "a")
    send(other, 1)
    send(other, 2)
    send(above, "b")
    send(other, 3)
    other.subscriber.on_complete()
    above.subscriber.on_complete()
    assert recorder.elements == [("a", 1)]
    (metrics,) = rsf.metrics_of(recorder.subscription)
    assert (metrics.held, metrics.max_held) == (3, 8)
    recorder.subscription.request(3)
    assert recorder.elements[1:] == [("a", 2), ("b", 2), ("b", 3)]
    assert recorder.terminal == ("on_complete",)


def test_with_latest_from_counts_what_was_replaced_before_it_left() -> None:
    above, other, recorder = beside("with_latest_from", 2)
    assert (above.requests, other.requests) == ([], [UNBOUNDED])
    send(other, 1, 2, 3)
    assert above.requests == [2]
    send(above, "a", "b")
    send(other, 4, 5)
    assert recorder.elements == [("a", 3), ("b", 3)]
    (metrics,) = rsf.metrics_of(recorder.subscription)
    assert (metrics.held, metrics.max_held, metrics.dropped) == (1, 1, 3)


def test_race_is_for_the_first_to_signal_alone() -> None:
    above, other, recorder = beside("race", 3)
    assert (above.requests, other.requests) == ([1], [1])
    late = above.subscriber
    send(other, "o")
    assert (above.cancels, other.requests) == (1, [1, 2])
    late.on_next("late")
    late.on_complete()
    send(other, "p")
    other.subscriber.on_complete()
    assert recorder.signals[1:] == [("on_next", "o"), ("on_next", "p"), ("on_complete",)]


def test_race_is_decided_by_an_end_and_leaves_the_rest_alone() -> None:
    third = Manual()
    recorder = subscribed(rsf.never().race(rsf.empty(), third))
    assert recorder.signals[1:] == [("on_complete",)]
    assert third.subscribes == 0


def test_race_asks_the_winner_for_everything_where_everything_is_asked_for() -> None:
    above, other, recorder = beside("race", UNBOUNDED)
    send(above, 1)
    assert (above.requests, other.requests) == ([1, UNBOUNDED], [1])
    recorder.subscription.request(1)
    assert above.requests == [1, UNBOUNDED]


@pytest.mark.parametrize("signal", ["on_next", "on_complete"])
def test_take_until_ends_when_the_other_signals(signal: str) -> None:
    above, other, recorder = beside("take_until", 2)
    assert (above.requests, other.requests) == ([2], [1])
    send(above, 1)
    getattr(other.subscriber, signal)(*["now"] * (signal == "on_next"))
    assert recorder.signals[1:] == [("on_next", 1), ("on_complete",)]
    assert (above.cancels, other.cancels) == (1, int(signal == "on_next"))


@pytest.mark.parametrize(
    "sequence", [rsf.range_(10**12).map(abs), rsf.range_(10**12), rsf.range_(9)]
)
def test_take_until_stops_within_a_sequence(sequence: rsf.Stream[int]) -> None:
    other = Manual()
    stream = sequence.take_until(other)
    recorder = subscribed(stream, UNBOUNDED, on_next=lambda _r, n: n == 2 and send(other, "now"))
    assert recorder.signals[1:] == [*(("on_next", n) for n in range(3)), ("on_complete",)]


def test_take_until_what_has_come_leaves_what_is_above_alone() -> None:
    above = Manual()
    assert rsf.from_publisher(above).take_until(rsf.range_(3)).to_list() == []
    assert above.subscribes == 0


def test_take_until_ends_a_publisher_without_end_on_the_caller() -> None:
    going, other = threading.Event(), Manual()
    endless = rsf.range_(10**12).do_on_next(lambda n: going.set() if n else None)
    recorder = subscribed(endless.take_until(other))
    asking = start_thread(lambda: recorder.subscription.request(UNBOUNDED))
    wait_for(going, "the second element")
    send(other, "now")
    assert recorder.wait_terminal() == ("on_complete",)
    asking.result(DEADLINE)
    recorder.check()
