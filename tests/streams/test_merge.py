"""merge: turns, demand, bounds, errors, threads."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator

import pytest

import rstreams_fast as rsf
from tests.helpers import Counted, Element, Living, start_thread, wait_for
from tests.rules.probes import Forgetful, ManualPublisher, Recorder, send, subscribed
from tests.streams.held import Hold

UNBOUNDED = rsf.UNBOUNDED


def test_those_that_have_elements_waiting_take_turns() -> None:
    a, b, c = publishers = ManualPublisher(), ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.merge(*publishers), 1)
    send(a, "first", "a0", "a1", "a2", "a3")
    send(b, "b0", "b1")
    send(c, "c0")
    recorder.subscription.request(2)
    assert recorder.elements == ["first", "a0", "b0"]
    send(b, "b2")
    recorder.subscription.request(10)
    assert recorder.elements[3:] == ["c0", "a1", "b1", "a2", "b2", "a3"]
    recorder.check()


def test_no_synchronous_publisher_starves_another() -> None:
    endless = [rsf.from_iterable(itertools.repeat(name)) for name in "abc"]
    elements = rsf.merge(*endless, prefetch=4).take(300).to_list()
    for name in "abc":
        assert elements.count(name) >= 80


def test_a_source_that_waits_keeps_nothing_back() -> None:
    """Elements come out while the call that asked for them goes on."""
    seen = Counted()

    def source() -> Iterator[int]:
        for x in range(3):
            yield x
            seen.wait_until(x + 1, "elements delivered")

    merged = rsf.merge(rsf.from_iterable(source()), rsf.never())
    recorder = subscribed(merged.subscribe_on(), UNBOUNDED, on_next=lambda _r, _x: seen.add())
    recorder.wait_elements(3)
    recorder.subscription.cancel()


def test_what_a_source_waits_in_does_not_hold_back_the_others() -> None:
    hold, other = Hold(), ManualPublisher()
    recorder = Recorder(request=UNBOUNDED)
    stream = rsf.merge(other, rsf.from_iterable(map(hold, [1])), prefetch=4)
    thread = start_thread(lambda: stream.subscribe(recorder))
    other.wait_requested(4)
    send(other, "a", "b")
    assert recorder.elements == ["a", "b"]
    hold.leave.set()
    thread.result()
    assert recorder.elements == ["a", "b", 1]
    recorder.check()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_no_more_elements_are_alive_than_it_says(prefetch: int) -> None:
    living = Living()
    recorder = Forgetful()
    sources = [rsf.range_(50).map(living.make) for _ in range(3)]
    rsf.merge(*sources, prefetch=prefetch).subscribe(recorder)
    for _ in range(150):
        recorder.subscription.request(1)
    assert recorder.taken == 150
    assert recorder.terminal == ("on_complete",)
    assert living.most <= 3 * prefetch + 1  # and one that a source's loop still has in hand
    assert living.alive.value == 0


def test_others_are_asked_while_one_element_is_being_worked_on() -> None:
    a, b, hold = ManualPublisher(), ManualPublisher(), Hold()
    stream = rsf.merge(a, b, prefetch=4)
    recorder = subscribed(stream, 1, on_next=lambda _r, element: element == 4 and hold())
    send(a, 1, 2, 3, 4)
    worker = start_thread(lambda: recorder.subscription.request(UNBOUNDED))
    wait_for(hold.entered)
    assert a.requests == [4]
    send(b, 5)  # comes while the drain is held, and does the asking
    assert a.requests == [4, 3]
    hold.leave.set()
    worker.result()
    assert recorder.elements == [1, 2, 3, 4, 5]
    recorder.check()


def test_no_error_of_a_subscriber_keeps_an_element(
    caplog: pytest.LogCaptureFixture, dropped: list[BaseException]
) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")

    class Raising(Recorder):
        on_next = staticmethod(int)  # type: ignore[assignment]

    elements = [Element()]
    gone = weakref.ref(elements[0])
    a = ManualPublisher()
    rsf.merge(a, rsf.never()).subscribe(Raising(request=1))
    a.subscriber.on_next(elements.pop())  # no frame of ours keeps it
    assert isinstance(dropped[0], TypeError)
    assert gone() is None


def test_what_follows_a_failed_one_is_not_even_subscribed_to() -> None:
    after = ManualPublisher()
    recorder = subscribed(rsf.merge(rsf.error(ValueError("first")), after))
    assert isinstance(recorder.error, ValueError)
    assert after.subscribes == after.cancels == 0


def test_a_delayed_error_comes_after_everything_as_itself() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.merge(a, b, delay_error=True), 1)
    send(a, 0, 1)
    error = ValueError("a")
    a.subscriber.on_error(error)
    send(b, 2)
    b.subscriber.on_complete()
    recorder.subscription.request(1)
    assert recorder.terminal is None
    recorder.subscription.request(1)
    assert recorder.signals[2:] == [("on_next", 1), ("on_next", 2), ("on_error", error)]


def test_what_is_no_exception_is_never_delayed() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.merge(a, b, delay_error=True), 1)
    a.subscriber.on_error(interrupt := KeyboardInterrupt())
    assert recorder.error is interrupt
    assert b.cancels == 1


def test_several_delayed_errors_are_a_group_of_only_so_many(
    caplog: pytest.LogCaptureFixture, dropped: list[BaseException]
) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")
    errors = [ValueError(n) for n in range(100)]
    merged = rsf.merge(*map(rsf.error, errors), rsf.range_(2), delay_error=True)
    recorder = subscribed(merged, UNBOUNDED)
    assert recorder.elements == [0, 1]
    assert isinstance(recorder.error, ExceptionGroup)
    assert [*recorder.error.exceptions, *dropped] == errors
    assert len(dropped) == 36


def test_a_long_chain_of_the_method_is_no_deep_stack() -> None:
    stream: rsf.Stream[int] = rsf.range_(1)
    for n in range(1, 500):
        stream = stream.merge(rsf.range_(n, n + 1))
    assert sorted(stream.to_list()) == list(range(500))
    assert "merge of 500 publishers" in stream.describe()


def test_an_end_that_waits_to_be_seen_is_no_element_that_is_held() -> None:
    a, b, c = publishers = ManualPublisher(), ManualPublisher(), ManualPublisher()
    held = []

    def look(recorder: Recorder, element: str) -> None:
        if element == "a0":
            for one in (b, c):
                send(one, "last")
                one.subscriber.on_complete()
            a.subscriber.on_complete()
            (figures,) = rsf.metrics_of(recorder.subscription)
            held.append((figures.held, figures.max_held))

    recorder = subscribed(rsf.merge(*publishers, prefetch=1), 5, on_next=look)
    send(a, "a0")
    assert held == [(2, 3)]
    assert recorder.elements == ["a0", "last", "last"]
    assert recorder.terminal == ("on_complete",)
