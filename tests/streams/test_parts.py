"""Streams within a stream: windows, lists that overlap, and what becomes of those nobody reads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from operator import add
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Element, Living, calls_of, wait_until
from tests.rules.probes import Clock, HandTimer, ManualPublisher, Plain, Recorder, send, subscribed

UNBOUNDED = rsf.UNBOUNDED


def divided(
    divide: Callable[[rsf.Stream[Any]], rsf.Stream[Any]], request: int = UNBOUNDED
) -> tuple[ManualPublisher, Recorder]:
    above = ManualPublisher()
    return above, subscribed(divide(rsf.from_publisher(above)), request)


@pytest.mark.parametrize("operator", ["batch", "window"])
def test_what_fills_the_windows_that_are_asked_for_is_asked_for(operator: str) -> None:
    above, below = divided(lambda s: getattr(s, operator)(4, skip=3), 2)
    assert above.requests == [7]
    send(above, *range(7))
    below.subscription.request(1)
    assert above.requests == [7, 3]
    below.subscription.request(UNBOUNDED)
    assert above.requested == UNBOUNDED
    below.check()


def test_a_window_comes_with_its_first_element_and_is_read_as_they_come() -> None:
    above, below = divided(lambda s: s.window(2))
    send(above, 0)
    window = subscribed(below.elements[0], 2)
    assert window.elements == [0]
    send(above, 1)
    assert (window.elements, window.terminal) == ([0, 1], ("on_complete",))
    assert below.terminal is None


def test_a_window_that_nobody_reads_holds_its_elements_and_nobody_waits() -> None:
    unread: list[Any] = []
    assert rsf.range_(9).window(3).do_on_next(unread.append).count() == 3
    assert unread[1].to_list() == [3, 4, 5]


INNER: dict[str, Callable[[Any], Any]] = {
    "flat_map": lambda of: rsf.range_(1).flat_map(lambda _n: of),
    "concat_map": lambda of: rsf.range_(1).concat_map(lambda _n: of),
    "merge": lambda of: of.merge(rsf.empty()),
}


@pytest.mark.parametrize("within", INNER)
@pytest.mark.parametrize("stage", [lambda s: s, lambda s: s.map(str)])
def test_a_full_window_has_one_subscriber_as_inner_stream_too(within: str, stage: Any) -> None:
    inner = INNER[within]
    window = rsf.range_(2).window(2).first()
    read = inner(stage(window))
    assert len(read.to_list()) == 2
    for again in (read, window):
        with pytest.raises(RuntimeError, match="one subscriber"):
            again.to_list()
    window = rsf.range_(2).window(2).first()
    window.to_list()
    with pytest.raises(RuntimeError, match="one subscriber"):
        inner(window).to_list()


@pytest.mark.parametrize("within", INNER)
def test_a_window_that_was_read_as_inner_stream_keeps_nothing(within: str) -> None:
    window = rsf.range_(2).map(lambda _n: Element()).window(2).first()
    seen = INNER[within](window).map(weakref.ref).to_list()
    gc.collect()
    assert [one() for one in seen] == [None, None]
    del window


@pytest.mark.parametrize("stage", [lambda s: s, lambda s: s.map(lambda element: element)])
def test_a_window_that_is_not_wanted_any_more_is_not_kept(stage: Callable[[Any], Any]) -> None:
    living = Living()
    window = rsf.range_(9).map(living.make).window(9).first()
    assert living.alive.value == 9
    winner = subscribed(rsf.never().start_with(1).race(stage(window)), 1)
    gc.collect()
    assert winner.elements == [1]
    assert living.alive.value == 0


def test_a_cancel_within_the_delivery_of_a_window_lets_the_window_be_filled() -> None:
    above, below = divided(lambda s: s.window(4, skip=1).take(2), 1)
    send(above, *range(4))
    below.subscription.request(1)
    assert below.terminal == ("on_complete",)
    assert above.requests == [4, 1]
    windows = [subscribed(window, UNBOUNDED) for window in below.elements]
    send(above, 4)
    assert [window.elements for window in windows] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert [window.terminal for window in windows] == [("on_complete",)] * 2
    above.wait_cancelled()


@pytest.mark.parametrize("within", [rsf.Stream.flat_map, rsf.Stream.concat_map])
def test_overlapping_windows_that_are_taken_are_filled(within: Any) -> None:
    stream = rsf.range_(20).multicast().window(4, skip=1).take(2)
    seen: list[int] = []
    within(stream, lambda window: window).for_each(seen.append).result(timeout=30)
    assert seen == [0, 1, 2, 3, 1, 2, 3, 4]


def test_an_error_comes_after_what_an_open_window_holds() -> None:
    above, below = divided(lambda s: s.window(3))
    send(above, 0, 1)
    error = OSError()
    above.subscriber.on_error(error)
    window = subscribed(below.elements[0], 1)
    assert (window.elements, window.terminal) == ([0], None)
    window.subscription.request(1)
    assert (window.elements, window.terminal) == ([0, 1], ("on_error", error))
    assert below.terminal == ("on_error", error)


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(
    ("compose", "expected"),
    [
        (lambda s: s.map(str), ["0", "1", "2", "3"]),
        (lambda s: s.filter(parity), [1, 3]),
        (lambda s: s.skip(1).take(2), [1, 2]),
        (lambda s: s.take(0), []),
        (lambda s: s.take(3).batch(2), [[0, 1], [2]]),
        (lambda s: s.scan(add, 9), [9, 9, 10, 12, 15]),
        (lambda s: s.reduce(add), [6]),
    ],
)
def test_stages_of_a_window_give_what_is_asked_for(
    compose: Callable[[Any], Any], expected: list[Any], burst: bool
) -> None:
    above, below = divided(lambda s: s.window(4))
    send(above, *range(4 if burst else 1))
    window = subscribed(compose(below.elements[0]))
    for came in range(len(expected) + 1):
        assert window.elements == expected[:came]
        window.subscription.request(1)
        send(above, *range(1, 4) if came == 0 and not burst else ())
    window.check()
    assert (window.elements, window.terminal) == (expected, ("on_complete",))


def test_a_group_whose_stages_have_enough_gives_its_places_back_at_once() -> None:
    timer = HandTimer()
    above, below = divided(lambda s: s.group_by(parity, prefetch=4, timer=timer))
    send(above, 0, 2, 4, 6)
    even = subscribed(below.elements[0].take(1).batch(2), 1)
    assert (even.elements, above.requests) == ([[0]], [4, 4])
    send(above, 8)
    assert [group.key for group in below.elements] == [0, 0]


def test_what_a_stage_of_a_group_raises_ends_that_group_alone() -> None:
    above, below = divided(lambda s: s.group_by(parity, prefetch=4))
    send(above, 0, 1)
    even, odd = (subscribed(group.map(lambda n: 1 // n), UNBOUNDED) for group in below.elements)
    assert isinstance(even.terminal[1], ZeroDivisionError)
    assert (odd.elements, odd.terminal, below.terminal, above.cancels) == ([1], None, None, 0)


@pytest.mark.parametrize("end", ["on_complete", "on_error", "cancel", "drop"])
def test_windows_that_are_open_go_on_after_a_cancel(end: str) -> None:
    above, below = divided(lambda s: s.window(3))
    send(above, 0)
    window = None if end == "drop" else subscribed(below.elements[0], UNBOUNDED)
    below.subscription.cancel()
    assert above.cancels == 0
    send(above, 1)
    if window is None:
        below.signals.clear()
        gc.collect()
    elif end == "cancel":
        window.subscription.cancel()
    else:
        getattr(above.subscriber, end)(*[OSError()] * (end == "on_error"))
        assert window.terminal is not None
        assert window.terminal[0] == end
    if window is not None:
        assert window.elements == [0, 1]
    assert above.cancels == (end in ("cancel", "drop"))


@pytest.mark.parametrize("reader", ["cancels", "is not there", "has enough"])
def test_an_error_that_no_window_delivers_is_reported_once(reader: str, dropped: list[Any]) -> None:
    above, below = divided(lambda s: s.window(4, skip=1))
    send(above, 0, 1)
    enough = reader == "has enough"
    read = [window.take(1) if enough else window for window in below.elements]
    readers = [] if reader == "is not there" else [subscribed(window, ...) for window in read]
    del read
    below.subscription.cancel()
    error = OSError()
    above.subscriber.on_error(error)
    assert dropped == []
    below.signals.clear()
    for each in readers:
        if enough:
            each.subscription.request(1)
        else:
            each.subscription.cancel()
    wait_until(lambda: dropped, "the report")
    assert dropped == [error]


def test_an_error_that_one_reader_receives_is_not_reported(dropped: list[BaseException]) -> None:
    above, below = divided(lambda s: s.window(4, skip=1))
    send(above, 0, 1)
    first, second = (subscribed(window, ...) for window in below.elements)
    below.subscription.cancel()
    error = OSError()
    above.subscriber.on_error(error)
    first.subscription.request(2)
    second.subscription.cancel()
    assert first.terminal == ("on_error", error)
    assert dropped == []


def test_what_windows_hold_is_in_the_metrics() -> None:
    above, below = divided(lambda s: s.window(3, skip=2))
    send(above, 0, 1, 2)
    (metrics,) = rsf.metrics_of(below.subscription)
    assert (metrics.held, metrics.max_held) == (1, 6)
    assert "window(3, skip=2): at most 3 elements in each, 2 open at once" in metrics.name


# -- group_by --------------------------------------------------------------------------------------
def parity(n: int) -> int:
    return n % 2


def test_all_groups_share_the_places_and_give_them_back() -> None:
    above, below = divided(lambda s: s.group_by(parity, prefetch=4))
    assert above.requests == [4]
    send(above, 0, 1, 2)
    (even, odd) = (subscribed(group, 1) for group in below.elements)
    assert (even.elements, odd.elements) == ([0], [1])
    even.subscription.request(1)
    assert above.requests == [4, 3]
    even.subscription.cancel()
    send(above, 3, 4)
    assert [group.key for group in below.elements] == [0, 1, 0]
    for recorder in (below, even, odd):
        recorder.check()


def impatient() -> tuple[ManualPublisher, Recorder, HandTimer]:
    """Groups of two places, and a clock, by which five seconds are too long."""
    timer = HandTimer()
    how: Any = {"prefetch": 2, "patience": 5, "timer": timer}
    return *divided(lambda s: s.group_by(parity, **how)), timer


def test_groups_that_nobody_reads_end_all_after_their_time() -> None:
    above, below, timer = impatient()
    send(above, 0)
    timer.advance(100)
    even = subscribed(below.elements[0], UNBOUNDED)
    send(above, 1, 3)
    timer.advance(4.9)
    assert below.terminal is None
    timer.advance(0.2)
    assert even.wait_terminal() == below.wait_terminal()
    assert isinstance(below.error, rsf.BufferOverflowError)
    assert above.cancels == 1


def test_a_group_that_is_read_late_but_in_time_goes_on() -> None:
    above, below, timer = impatient()
    send(above, 1, 3)
    timer.advance(4.9)
    odd = subscribed(below.elements[0], UNBOUNDED)
    assert above.requests == [2, 2]
    timer.advance(100)
    assert (odd.elements, below.terminal, timer.pending) == ([1, 3], None, 0)
    above.subscriber.on_complete()
    assert odd.terminal == below.terminal == ("on_complete",)


def test_a_group_whose_subscriber_does_not_ask_ends_all_where_another_waits() -> None:
    above, below, timer = impatient()
    send(above, 0)
    even = subscribed(below.elements[0], 1)
    send(above, 1)
    odd = subscribed(below.elements[1], UNBOUNDED)
    send(above, 2, 4)
    timer.advance(4.9)
    assert below.terminal is None
    timer.advance(0.2)
    assert odd.wait_terminal() == below.wait_terminal()
    assert isinstance(below.error, rsf.BufferOverflowError)
    assert "those of the key 0; ask for more" in str(below.error)
    even.subscription.request(UNBOUNDED)
    assert even.wait_terminal() == below.terminal
    assert even.elements == [0, 2, 4]
    assert above.cancels == 1


@pytest.mark.parametrize("slow", ["zip", "iterator", "alone"])
def test_a_group_whose_subscriber_is_slow_is_waited_for(slow: str) -> None:
    above, below, timer = impatient()
    send(above, 0)
    stream = below.elements[0]
    if slow == "zip":  # with a clock, say, that is in no group
        ticks = rsf.from_publisher(ManualPublisher())
        subscribed(rsf.zip_(stream, ticks, prefetch=1), UNBOUNDED)
    elif slow == "iterator":
        iterator = stream.iterate(prefetch=1)
        assert next(iterator) == 0
    else:
        subscribed(stream, 1)
    sent = 1
    if slow != "alone":
        send(above, 1)
        subscribed(below.elements[1], UNBOUNDED)
        sent = 2
    while above.requested > sent:  # even numbers, as long as any are asked for
        assert sent < 100
        send(above, 2 * sent)
        sent += 1
    timer.advance(100)
    assert (below.terminal, above.cancels) == (None, 0)


def test_one_group_too_many_is_an_error() -> None:
    with pytest.raises(rsf.BufferOverflowError, match="max_groups="):
        rsf.range_(9).group_by(lambda n: n, max_groups=8).flat_map(lambda g: g).run()


def test_what_the_key_raises_ends_the_groups_too() -> None:
    above, below = divided(lambda s: s.group_by(lambda n: 1 // n))
    send(above, 1)
    group = subscribed(below.elements[0], 1)
    send(above, 0)
    assert isinstance(below.terminal[1], ZeroDivisionError)
    assert group.terminal == below.terminal
    assert above.cancels == 1


def test_groups_that_are_open_go_on_after_a_cancel_and_no_other_is_opened() -> None:
    above, below = divided(lambda s: s.group_by(parity, prefetch=2))
    send(above, 0)
    even = subscribed(below.elements[0], UNBOUNDED)
    below.subscription.cancel()
    send(above, 1, 2, 3, 4)
    assert (even.elements, above.cancels) == ([0, 2, 4], 0)
    even.subscription.cancel()
    assert above.cancels == 1


def test_open_groups_are_not_looked_through_for_each_other() -> None:
    def calls(n: int) -> int:
        groups = rsf.range_(n).group_by(str, max_groups=n)
        return calls_of(lambda: found.append(groups.flat_map(lambda g: g, concurrency=n).count()))

    found: list[int] = []
    assert calls(1000) < 20 * calls(100)
    assert found == [1000, 100]


# -- window_time -----------------------------------------------------------------------------------
def test_a_window_ends_by_its_time_and_the_next_begins_with_an_element() -> None:
    timer = HandTimer()
    above, below = divided(lambda s: s.window_time(10, prefetch=4, timer=timer))
    assert above.requests == [4]
    send(above, 0)
    first = subscribed(below.elements[0], UNBOUNDED)
    timer.advance(9)
    send(above, 1)
    assert first.terminal is None
    timer.advance(1)
    assert first.wait_terminal() == ("on_complete",)
    timer.advance(50)
    send(above, 2)
    assert first.elements == [0, 1]
    second = subscribed(below.elements[1], 1)
    above.subscriber.on_complete()
    assert (second.elements, second.terminal) == ([2], ("on_complete",))
    assert below.terminal == ("on_complete",)
    assert timer.pending == 0


def test_a_window_that_is_over_gives_its_places_back_to_who_takes_nothing_of_it() -> None:
    timer = Clock()
    above, below = divided(lambda s: s.window_time(1, prefetch=4, timer=timer))
    send(above, 0, 1, 2, 3)
    window = below.elements[0]
    timer.advance(1)
    assert above.requests == [4]
    subscribed(window.take(0).reduce(add, 100))
    assert above.requests == [4, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("leaves", [None, KeyboardInterrupt, RecursionError])
def test_upstream_is_cancelled_before_the_last_window_ends(leaves: Any) -> None:
    timer = HandTimer()
    above, below = divided(lambda s: s.window_time(10, timer=timer))
    cancels: list[int] = []

    class Reader(Recorder):
        def on_complete(self) -> None:
            cancels.append(above.cancels)
            if leaves is not None:
                raise leaves

    send(above, 0)
    reader = Reader()
    below.elements[0].subscribe(reader)
    reader.subscription.request(9)
    below.subscription.cancel()
    assert above.cancels == 0
    timer.advance(10)
    wait_until(lambda: bool(cancels), "the end of the window")
    assert cancels == [1]


@pytest.mark.parametrize(
    "divide",
    [
        lambda s: s.batch(1, skip=1),
        lambda s: s.window(1, skip=1),
        lambda s: s.group_by(str, max_groups=9),
    ],
)
def test_a_subscription_that_is_kept_keeps_nobody_after_an_error(divide: Any) -> None:
    def fail(_a: int, _b: int) -> int:
        raise LookupError

    subscriber = Plain()
    alive = weakref.ref(subscriber)
    # The error is raised within subscribe, where frames know the subscriber, and waits for demand.
    divide(rsf.range_(12).scan(fail).on_overflow(rsf.Overflow.BUFFER)).subscribe(subscriber)
    kept = subscriber.subscription
    kept.request(9)
    assert isinstance(subscriber.error, LookupError)
    subscriber.error = None
    del subscriber
    gc.collect()
    assert alive() is None  # §3.13
    kept.cancel()


@pytest.mark.parametrize("given", [False, True], ids=["waiting", "given and let go of"])
def test_groups_that_nobody_can_read_make_room_after_a_cancel(given: bool) -> None:
    above, below = divided(lambda s: s.group_by(lambda key: key, prefetch=8), 1 + given)
    send(above, "a", *["b"] * 7)
    read = subscribed(below.elements[0], UNBOUNDED)
    below.signals.clear()
    gc.collect()
    below.subscription.cancel()
    above.wait_requested(8 + 7)
    send(above, "a", "a")
    assert read.elements == ["a"] * 3
    above.subscriber.on_complete()


BLOCKED: dict[str, Callable[[rsf.Stream[int]], object]] = {
    "window, to_list": lambda s: s.window(10).map(lambda w: w.to_list()).to_list(),
    "window, for": lambda s: s.window(10).map(sum).run(),
    "window, in time": lambda s: s.window_time(60.0).map(lambda w: w.count()).to_list(),
    "groups": lambda s: s.group_by(lambda n: n % 3).map(lambda g: g.count()).run(),
    "below stages": lambda s: s.window(10).map(lambda w: w.map(str).filter(bool).last()).run(),
    "for_each": lambda s: s.window(10).for_each(lambda w: w.run()).result(),
}


@pytest.mark.parametrize("on_a_worker", [False, True])
@pytest.mark.parametrize("blocked", BLOCKED.values(), ids=BLOCKED)
def test_who_would_wait_for_his_own_thread_is_told(blocked: Any, on_a_worker: bool) -> None:
    numbers = rsf.range_(30)
    with pytest.raises(RuntimeError, match="use flat_map there, or publish_on"):
        blocked(numbers.subscribe_on() if on_a_worker else numbers)


def test_a_function_may_wait_for_a_part_whose_elements_are_there_or_come_from_others() -> None:
    windows = rsf.range_(30).window(10)
    expected = [list(range(start, start + 10)) for start in (0, 10, 20)]
    assert windows.map(lambda window: window.first()).to_list() == [0, 10, 20]
    assert windows.publish_on().map(lambda window: window.to_list()).to_list() == expected
    assert windows.map_blocking(lambda window: window.to_list()).to_list() == expected
    assert [window.to_list() for window in windows] == expected


def test_no_window_is_empty_though_each_is_over_before_the_next_element_comes() -> None:
    timer = HandTimer()

    def late(window: rsf.Stream[int]) -> rsf.Stream[int]:
        timer.advance(1.0)
        return window

    windows = rsf.range_(5).window_time(0.5, timer=timer).map(late)
    found = [window.to_list() for window in windows]
    assert all(found)
    assert [n for window in found for n in window] == list(range(5))
