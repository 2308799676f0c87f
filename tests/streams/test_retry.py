"""retry: the same stream again when it has failed, and not one element too many or too few."""

from __future__ import annotations

import contextvars
import gc
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from tests.helpers import Counted, Problem, run_threads, start_thread, wait_for, wait_gone
from tests.rules.probes import (
    BrokenTimer,
    CountingTimer,
    HandTimer,
    ManualPublisher,
    Recorder,
    send,
    subscribed,
)


class Attempts:
    """A publisher each of whose subscriptions is held in hand."""

    def __init__(self) -> None:
        self.all: list[ManualPublisher] = []

    def subscribe(self, subscriber: Any, /) -> None:
        attempt = ManualPublisher()
        self.all.append(attempt)
        attempt.subscribe(subscriber)

    @property
    def last(self) -> Any:
        return self.all[-1].subscriber


class Flaky:
    """Fails after ``each`` elements, ``failures`` times, then gives ``each`` more and completes."""

    def __init__(self, each: int, failures: float = math.inf) -> None:
        self.each = each
        self.failures = failures
        self.opened = 0
        self.closed = 0
        self.numbers = itertools.count()

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        attempt = self.opened
        try:
            for _ in range(self.each):
                yield next(self.numbers)
            if attempt <= self.failures:
                raise ValueError(attempt)
        finally:
            self.closed += 1


# -- how often -------------------------------------------------------------------------------------
@pytest.mark.parametrize("demand", ["unbounded", "one by one"])
@pytest.mark.parametrize("each", [0, 1, 3])
def test_thousands_of_retries_in_a_row_do_not_nest(each: int, demand: str) -> None:
    failures = 2 * sys.getrecursionlimit()
    source = Flaky(each, failures)
    stream = rsf.from_iterable(source).retry()
    if demand == "unbounded":
        recorder = subscribed(stream, request=rsf.UNBOUNDED)
    else:
        recorder = subscribed(stream, request=1, on_next=lambda r, _x: r.subscription.request(1))
    assert recorder.terminal == ("on_complete",)
    assert recorder.elements == list(range(each * (failures + 1)))
    assert recorder.max_depth <= 1
    assert source.opened == source.closed == failures + 1
    recorder.check()


@pytest.mark.parametrize("times", [0, 1, 4])
def test_the_error_after_the_last_retry_is_passed_on(times: int) -> None:
    source = Flaky(2)
    recorder = subscribed(rsf.from_iterable(source).retry(times), request=rsf.UNBOUNDED)
    assert source.opened == times + 1
    assert isinstance(recorder.error, ValueError)
    assert recorder.error.args == (times + 1,)
    assert recorder.elements == list(range(2 * (times + 1)))
    recorder.check()


@pytest.mark.parametrize("delay", [0.0, 0.001])
@pytest.mark.parametrize("worker", [False, True])
def test_of_a_source_that_can_be_read_once_the_error_that_ended_it_is_passed_on(
    delay: float, worker: bool, no_leaked_threads: None
) -> None:
    problem = ValueError("a bad row")

    def fails(_element: int) -> int:
        raise problem

    source = rsf.from_iterable(iter([1, 2]))
    stream = (source.subscribe_on() if worker else source).map(fails).retry(9, delay=delay)
    recorder = subscribed(stream, request=1)
    assert recorder.wait_terminal() == ("on_error", problem)
    (note,) = problem.__notes__
    assert note.startswith("retry: there was no other attempt: ")
    assert "one-shot iterator" in note
    recorder.check()


def test_an_error_is_let_go_of_when_the_next_attempt_gives_an_element() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=2)
    problem = Problem()
    gone = weakref.ref(problem)
    attempts.last.on_error(problem)
    del problem
    attempts.last.on_next(1)
    wait_gone(gone, "the error")
    assert recorder.elements == [1]
    assert recorder.terminal is None


def test_each_subscriber_has_its_own_number_of_retries() -> None:
    stream = rsf.error(ValueError()).retry(3)
    first = subscribed(stream)
    second = subscribed(stream)
    assert first.error is second.error is not None


def test_a_stream_that_completes_is_not_subscribed_to_again() -> None:
    source = Flaky(3, failures=0)
    assert rsf.from_iterable(source).retry().to_list() == [0, 1, 2]
    assert source.opened == 1


def test_when_says_what_is_worth_it() -> None:
    seen: list[BaseException] = []

    def when(error: Exception) -> bool:
        seen.append(error)
        return error.args[0] < 3

    recorder = subscribed(rsf.from_iterable(Flaky(1)).retry(when=when), request=9)
    assert [error.args[0] for error in seen] == [1, 2, 3]
    assert recorder.error is seen[-1]


def test_what_is_no_exception_is_passed_on() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=1)
    attempts.last.on_error(KeyboardInterrupt())
    assert isinstance(recorder.error, KeyboardInterrupt)
    assert len(attempts.all) == 1


@pytest.mark.parametrize("argument", ["when", "delay"])
def test_what_when_or_delay_raises_ends_the_stream_with_the_error_as_its_context(
    argument: str,
) -> None:
    def fails(_arg: Any) -> Any:
        raise ZeroDivisionError

    recorder = subscribed(
        rsf.from_iterable(Flaky(1)).retry(**{argument: fails}), request=rsf.UNBOUNDED
    )
    assert isinstance(recorder.error, ZeroDivisionError)
    assert isinstance(recorder.error.__context__, ValueError)
    assert recorder.elements == [0]
    recorder.check()


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1", None, True])
def test_a_delay_that_is_no_number_of_seconds_ends_the_stream_and_names_the_function(
    seconds: Any,
) -> None:
    def delay(_attempt: int) -> Any:
        return seconds

    recorder = subscribed(rsf.error(ValueError()).retry(delay=delay))
    assert isinstance(recorder.error, TypeError | ValueError)
    assert "retry" in str(recorder.error)
    assert "delay" in str(recorder.error)
    assert isinstance(recorder.error.__context__, ValueError)


def test_what_leaves_through_when_is_told_downstream_too() -> None:
    def when(_error: Exception) -> bool:
        raise KeyboardInterrupt

    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(when=when), request=1)
    with pytest.raises(KeyboardInterrupt):
        attempts.last.on_error(ValueError())
    assert isinstance(recorder.error, KeyboardInterrupt)
    recorder.subscription.request(1)
    recorder.subscription.cancel()
    recorder.check()


def test_an_async_delay_is_refused_at_build_time() -> None:
    async def delay(_attempt: int) -> float:
        return 1.0

    options: Any = {"delay": delay}
    with pytest.raises(TypeError, match=r"retry\(delay\): delay must be a plain function"):
        rsf.range_(3).retry(**options)


# -- demand ----------------------------------------------------------------------------------------
def test_what_has_not_come_is_asked_of_the_next_attempt() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=10)
    first = attempts.all[0]
    assert first.requests == [10]
    send(first, *range(3))
    recorder.subscription.request(2)
    first.subscriber.on_error(ValueError())
    assert first.requests == [10, 2]
    assert attempts.all[1].requests == [9]
    recorder.subscription.request(1)
    assert attempts.all[1].requests == [9, 1]
    assert first.requested == 12
    recorder.check()


def test_nothing_is_asked_of_an_attempt_that_nobody_wants_anything_of() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=1)
    attempts.last.on_next(1)
    attempts.last.on_error(ValueError())
    assert attempts.all[1].requests == []
    recorder.subscription.request(4)
    assert attempts.all[1].requests == [4]


def test_unbounded_demand_stays_so() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=rsf.UNBOUNDED)
    attempts.last.on_next(1)
    recorder.subscription.request(5)
    attempts.last.on_error(ValueError())
    recorder.subscription.request(5)
    assert [attempt.requests for attempt in attempts.all] == [[rsf.UNBOUNDED], [rsf.UNBOUNDED]]


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("worker", [False, True])
def test_requests_that_race_with_the_change_are_neither_lost_nor_met_twice(
    each: int, worker: bool, no_leaked_threads: None
) -> None:
    threads, requests = 4, 150
    stream = rsf.from_iterable(Flaky(each))
    recorder = subscribed((stream.subscribe_on() if worker else stream).retry())
    ask = lambda: [recorder.subscription.request(1) for _ in range(requests)]  # noqa: E731
    run_threads([ask] * threads)
    recorder.wait_elements(threads * requests)
    recorder.subscription.cancel()
    assert recorder.elements == list(range(threads * requests))
    recorder.check()


def test_a_request_of_nothing_ends_the_stream_at_any_moment() -> None:
    timer = HandTimer()
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(delay=3, timer=timer), request=2)
    attempts.last.on_error(ValueError())
    recorder.subscription.request(0)
    assert "§3.9" in str(recorder.error)
    assert timer.pending == 0
    recorder.check()


# -- cancelling ------------------------------------------------------------------------------------
@pytest.mark.parametrize("after", range(8))
def test_cancelled_at_any_element_nothing_is_subscribed_to_again(after: int) -> None:
    source = Flaky(3)

    def cancel(recorder: Recorder, x: int) -> None:
        if x == after:
            recorder.subscription.cancel()

    recorder = subscribed(rsf.from_iterable(source).retry(), request=rsf.UNBOUNDED, on_next=cancel)
    assert recorder.elements == list(range(after + 1))
    assert recorder.terminal is None
    assert source.opened == source.closed == after // 3 + 1
    recorder.check()


def test_cancelled_in_on_subscribe_nothing_is_subscribed_to_at_all() -> None:
    attempts = Attempts()
    recorder = subscribed(
        rsf.from_publisher(attempts).retry(), on_subscribe=lambda r: r.subscription.cancel()
    )
    assert attempts.all == []
    assert recorder.signals == [("on_subscribe",)]


def test_cancelled_by_when_the_error_is_made_known_to_nobody_and_nothing_follows() -> None:
    attempts = Attempts()
    recorder = Recorder(request=1)

    def when(_error: Exception) -> bool:
        recorder.subscription.cancel()
        return True

    rsf.from_publisher(attempts).retry(when=when).subscribe(recorder)
    attempts.last.on_error(ValueError())
    assert len(attempts.all) == 1
    assert recorder.terminal is None


def test_the_current_attempt_is_cancelled_once() -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=1)
    attempts.last.on_error(ValueError())
    recorder.subscription.cancel()
    recorder.subscription.cancel()
    assert [attempt.cancels for attempt in attempts.all] == [0, 1]


def test_cancelling_while_it_changes_over_leaves_nothing_running() -> None:
    for _ in range(200):
        source = Flaky(1)
        recorder = subscribed(rsf.from_iterable(source).subscribe_on("caller").retry())
        run_threads(
            [
                lambda r=recorder: r.subscription.request(5),
                lambda r=recorder: r.subscription.cancel(),
            ]
        )
        assert source.opened == source.closed
        recorder.check()


# -- publishers that keep no rule ------------------------------------------------------------------
def test_what_an_attempt_signals_after_its_end_has_no_effect(dropped: list[BaseException]) -> None:
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(), request=3)
    first = attempts.last
    first.on_error(ValueError())
    first.on_next(1)
    first.on_complete()
    first.on_error(OSError())
    assert recorder.elements == []
    assert len(attempts.all) == 2
    assert attempts.all[1].requests == [3]
    assert [type(error) for error in dropped] == [OSError]
    attempts.last.on_next(2)
    attempts.last.on_complete()
    assert recorder.signals[1:] == [("on_next", 2), ("on_complete",)]


@pytest.mark.parametrize("how", ["raises", "none", "too many", "no subscription"])
def test_what_breaks_the_rules_is_a_failure_like_others(how: str) -> None:
    class Lying:
        subscribed = 0

        def subscribe(self, subscriber: Any, /) -> None:
            self.subscribed += 1
            if self.subscribed == 3:
                rsf.range_(2).subscribe(subscriber)
            elif how == "raises":
                raise OSError(how)
            elif how == "no subscription":
                subscriber.on_error(OSError(how))
            else:
                subscriber.on_subscribe(ManualPublisher())
                if how == "too many":
                    for x in range(50):
                        subscriber.on_next(x)
                else:
                    with pytest.raises(TypeError):
                        subscriber.on_next(None)

    lying = Lying()
    errors: list[BaseException] = []
    recorder = subscribed(rsf.from_publisher(lying).do_on_error(errors.append).retry(2), request=9)
    recorder.wait_terminal()
    assert lying.subscribed == 3
    assert len(errors) == 2
    assert recorder.elements[-2:] == [0, 1]
    recorder.check()


# -- delays ----------------------------------------------------------------------------------------
def test_a_delay_is_waited_for_on_the_timer_and_then_a_worker_subscribes(
    no_leaked_threads: None,
) -> None:
    subscriptions = Counted()

    timer = CountingTimer()
    attempts = Attempts()
    threads: list[str] = []
    local = contextvars.ContextVar("local", default="not set")
    seen: list[str] = []

    class Observed:
        def subscribe(self, subscriber: Any, /) -> None:
            attempts.subscribe(subscriber)
            threads.append(threading.current_thread().name)
            seen.append(local.get())
            subscriptions.add()

    local.set("where it was subscribed to")
    asked: list[int] = []
    stream = rsf.from_publisher(Observed()).retry(
        delay=lambda attempt: asked.append(attempt) or 10.0 * attempt, timer=timer
    )
    recorder = subscribed(stream, request=5)
    local.set("changed since")
    attempts.last.on_next(1)
    attempts.last.on_error(ValueError())
    timer.advance(9.5)
    assert len(attempts.all) == 1
    recorder.subscription.request(1)
    timer.advance(0.5)
    subscriptions.wait_until(2)
    attempts.all[1].wait_requested(5)
    attempts.all[1].subscriber.on_error(ValueError())
    timer.alarms.wait_until(2)
    timer.advance(20)
    subscriptions.wait_until(3)
    attempts.all[2].wait_requested(5)
    attempts.last.on_complete()
    assert recorder.wait_terminal() == ("on_complete",)
    assert asked == [1, 2]
    assert all(name.startswith("rstreams-fast-shared-") for name in threads[1:])  # some worker's
    assert seen == ["where it was subscribed to"] * 3
    assert timer.pending == 0
    recorder.check()


def test_a_retry_that_is_due_while_somebody_asks_is_not_lost(
    no_leaked_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, attempts, subscriptions = HandTimer(), Attempts(), Counted()
    here, due = threading.get_ident(), threading.Event()
    looked: list[object] = []
    slot = SubscriptionArbiter.__dict__["_publisher"]

    class Watched:
        def __get__(self, owner: Any, _kind: type) -> Any:
            found = slot.__get__(owner)
            if recorder.subscription is owner and threading.get_ident() == here and not looked:
                looked.append(found)
                timer.advance(3)  # a worker leaves what is to be subscribed to
                wait_for(due)
            return found

        def __set__(self, owner: Any, publisher: Any) -> None:
            slot.__set__(owner, publisher)
            if publisher is not None:
                due.set()

    class Observed:
        def subscribe(self, subscriber: Any, /) -> None:
            attempts.subscribe(subscriber)
            subscriptions.add()

    recorder = subscribed(rsf.from_publisher(Observed()).retry(delay=3, timer=timer))
    attempts.last.on_error(ValueError())
    monkeypatch.setattr(SubscriptionArbiter, "_publisher", Watched())
    recorder.subscription.request(1)
    assert looked == [None]
    subscriptions.wait_until(2)
    attempts.all[1].wait_requested(1)
    recorder.subscription.cancel()


def test_a_delay_of_nothing_is_none() -> None:
    timer = HandTimer()
    stream = rsf.from_iterable(Flaky(1, 3)).retry(delay=lambda _n: 0, timer=timer)
    assert stream.to_list() == [0, 1, 2, 3]


def test_cancelling_does_without_the_delay_and_keeps_nobody() -> None:
    timer = HandTimer()
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(delay=3, timer=timer), request=2)
    attempts.last.on_error(ValueError())
    assert timer.pending == 1
    subscription = recorder.subscription
    subscription.cancel()
    assert timer.pending == 0
    timer.advance(5)
    assert len(attempts.all) == 1
    if sys.implementation.name == "cpython":
        gone = weakref.ref(recorder)
        attempts.all.clear()
        del recorder
        assert gone() is None, gc.get_referrers(gone())
    assert subscription is not None


def test_cancelling_races_with_the_alarm(no_leaked_threads: None) -> None:
    for _ in range(100):
        timer = HandTimer()
        source = Flaky(1)
        recorder = subscribed(rsf.from_iterable(source).retry(delay=1, timer=timer), request=9)
        run_threads([lambda t=timer: t.advance(1), lambda r=recorder: r.subscription.cancel()])
        recorder.check()
        assert timer.pending == 0
        assert len(recorder.elements) <= 2


def test_a_timer_that_refuses_ends_the_stream() -> None:
    recorder = subscribed(rsf.error(ValueError()).retry(delay=1, timer=BrokenTimer()))
    assert isinstance(recorder.error, OSError)


def test_it_waits_on_the_timer_of_the_process(no_leaked_threads: None) -> None:
    source = Flaky(2, failures=3)
    assert rsf.from_iterable(source).retry(5, delay=0.001).to_list() == list(range(8))


# -- the rest --------------------------------------------------------------------------------------
def test_a_subscriber_need_not_wait_for_a_source_on_another_thread(no_leaked_threads: None) -> None:
    asked, go = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        asked.set()
        wait_for(go)
        yield 1

    recorder = subscribed(rsf.from_iterable(source()).subscribe_on().retry(), request=1)
    wait_for(asked)
    start_thread(lambda: recorder.subscription.request(1)).result()
    start_thread(recorder.subscription.cancel).result()
    go.set()
    recorder.check()


def test_the_figures_are_those_of_the_current_attempt() -> None:
    stream = rsf.range_(10).publish_on("caller", prefetch=4).retry()
    recorder = subscribed(stream)
    assert [figures.max_held for figures in rsf.metrics_of(recorder.subscription)] == [4]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda s: s.retry(), "retry(for ever): holds no elements"),
        (lambda s: s.retry(3, delay=0.5), "retry(at most 3 times, after 0.5 s)"),
        (lambda s: s.retry(when=bool, delay=abs), "retry(for ever, when bool, after abs)"),
    ],
)
def test_it_describes_itself(build: Callable[[Any], Any], words: str) -> None:
    assert words in build(rsf.range_(3)).describe()
