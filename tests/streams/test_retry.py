"""retry: the same stream again when it has failed, and not one element too many or too few."""

from __future__ import annotations

import contextvars
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Counted, Problem, run_python, wait_gone
from tests.rules.probes import Clock, CountingTimer, HandTimer, ManualPublisher, raising, subscribed
from tests.stepping import steps


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


@pytest.mark.parametrize("delay", [0.0, 0.001])
@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.usefixtures("no_leaked_threads")
def test_the_error_of_a_one_shot_source_is_passed_on(delay: float, worker: bool) -> None:
    problem = ValueError("a bad row")
    source = rsf.from_iterable(iter([1, 2]))
    failing = (source.subscribe_on() if worker else source).map(raising(problem))
    stream: rsf.Stream[int] = failing.retry(9, delay=delay)
    recorder = subscribed(stream, request=1)
    assert recorder.wait_terminal() == ("on_error", problem)
    (note,) = problem.__notes__
    assert note.startswith("retry: there was no other attempt: ")
    assert "one-shot iterator" in note
    recorder.check()


@pytest.mark.parametrize("times", [3, None])
@pytest.mark.parametrize("part", ["group", "window"])
def test_the_error_of_a_part_of_a_stream_is_passed_on(part: str, times: int | None) -> None:
    def retried(stream: rsf.Stream[int]) -> rsf.Stream[int]:
        failing: rsf.Stream[int] = stream.map(raising(ValueError("mine")))
        return failing.retry() if times is None else failing.retry(times)

    numbers = rsf.range_(4)
    parts: Any = numbers.window(2) if part == "window" else numbers.group_by(lambda n: n % 2)
    with pytest.raises(ValueError, match="mine") as caught:
        parts.concat_map(retried).to_list()
    assert "had its one subscriber" in caught.value.__notes__[0]
    # A publisher that shuts down with its last subscriber allows no other attempt, either.
    with pytest.raises(ValueError, match="mine") as caught:
        retried(numbers.multicast()).to_list()
    assert "the last subscriber cancelled" in caught.value.__notes__[-1]


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


@pytest.mark.parametrize("function", ["when", "delay", "resume"])
def test_what_a_function_raises_has_the_error_as_its_context(function: str) -> None:
    source, fails = rsf.from_iterable(Flaky(1)), raising(ZeroDivisionError())
    if function == "resume":
        stream: rsf.Stream[int] = source.on_error_resume(fails)
    else:
        stream = source.retry(**{function: fails})  # type: ignore[arg-type]
    recorder = subscribed(stream, request=rsf.UNBOUNDED)
    assert isinstance(recorder.error, ZeroDivisionError)
    assert isinstance(recorder.error.__context__, ValueError)
    assert recorder.elements == [0]
    recorder.check()


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1", None, True])
def test_a_delay_that_is_no_number_of_seconds_names_the_function(seconds: Any) -> None:
    def delay(_attempt: int) -> Any:
        return seconds

    recorder = subscribed(rsf.error(ValueError()).retry(delay=delay))
    with pytest.raises((TypeError, ValueError), match=r"(?s)retry.*delay"):
        raise recorder.error
    assert isinstance(recorder.error.__context__, ValueError)


def test_what_leaves_through_when_is_told_downstream_too() -> None:
    attempts = Attempts()
    stream = rsf.from_publisher(attempts).retry(when=raising(KeyboardInterrupt()))
    recorder = subscribed(stream, request=1)
    with pytest.raises(KeyboardInterrupt):
        attempts.last.on_error(ValueError())
    assert isinstance(recorder.error, KeyboardInterrupt)
    recorder.subscription.request(1)
    recorder.subscription.cancel()
    recorder.check()


# -- demand ----------------------------------------------------------------------------------------
def test_a_request_of_nothing_ends_the_stream_at_any_moment() -> None:
    timer = HandTimer()
    attempts = Attempts()
    recorder = subscribed(rsf.from_publisher(attempts).retry(delay=3, timer=timer), request=2)
    attempts.last.on_error(ValueError())
    recorder.subscription.request(0)
    assert "§3.9" in str(recorder.error)
    assert timer.pending == 0
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


# -- delays ----------------------------------------------------------------------------------------
def test_after_a_delay_on_the_timer_a_worker_subscribes(no_leaked_threads: None) -> None:
    subscriptions, timer, attempts = Counted(), CountingTimer(), Attempts()
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


@pytest.mark.parametrize("call", ["request", "cancel"])
def test_a_retry_that_is_due_at_that_moment_is_neither_lost_nor_left(call: str) -> None:
    for step in steps():
        timer, attempts = Clock(), Attempts()
        recorder = subscribed(rsf.from_publisher(attempts).retry(delay=3, timer=timer))
        attempts.last.on_error(ValueError())
        with step.meanwhile(lambda t=timer: t.advance(3)):
            if call == "request":
                recorder.subscription.request(1)
            else:
                recorder.subscription.cancel()
        if call == "request":
            assert [attempt.requests for attempt in attempts.all] == [[], [1]], step
            recorder.subscription.cancel()
        assert [attempt.cancels for attempt in attempts.all] in ([0], [0, 1]), step
        assert timer.pending == 0, step
        recorder.check()


def test_a_delay_of_nothing_is_none() -> None:
    timer = HandTimer()
    stream = rsf.from_iterable(Flaky(1, 3)).retry(delay=lambda _n: 0, timer=timer)
    assert stream.to_list() == [0, 1, 2, 3]


# -- the rest --------------------------------------------------------------------------------------
def test_the_figures_are_those_of_the_current_attempt() -> None:
    stream = rsf.range_(10).publish_on("caller", prefetch=4).retry()
    recorder = subscribed(stream)
    assert [figures.max_held for figures in rsf.metrics_of(recorder.subscription)] == [4]


def test_a_retry_of_calls_says_the_same_of_a_stream() -> None:
    errors: list[Exception] = []

    def fails(x: int) -> int:
        if errors:
            raise errors.pop(0)
        return x

    retry = rsf.Retry(2, backoff=0.001)
    stream = rsf.range_(3).map(fails).retry(retry)
    assert "at most 2 times" in stream.describe()
    errors += [OSError(), ValueError()]
    assert stream.to_list() == [0, 1, 2]
    for failure, given in (
        (TypeError, [OSError(), TypeError(), OSError()]),
        (OSError, [OSError()] * 4),
    ):
        errors[:] = given
        with pytest.raises(failure):
            stream.to_list()
        assert len(errors) == 1
    for words in ({"delay": 1.0}, {"when": bool}):
        with pytest.raises(ValueError, match="a Retry has words of its own"):
            stream.retry(retry, **words)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a share of calls"):
        stream.retry(rsf.Retry(1, budget=0.1))


@pytest.mark.parametrize("source", ["rsf.interval(0.001)", "rsf.range_(10).delay_elements(60)"])
def test_a_retried_clock_does_not_keep_the_interpreter_from_exiting(source: str) -> None:
    code = (
        "import rstreams_fast as rsf\n"
        f"stream = {source}.retry()\n"
        "run = stream.for_each(lambda n: None, lambda error: print(type(error).__name__))"
    )
    assert run_python("-c", code).stdout.strip() == "WorkDroppedError"
