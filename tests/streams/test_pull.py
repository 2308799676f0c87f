"""Synchronous streams: they run on the thread that asks, serially, and close their source once."""

from __future__ import annotations

import signal
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import Forgetful, ManualPublisher, Plain, Recorder, send, subscribed


class Tracked:
    """A generator that says in which thread it was closed, and how often."""

    def __init__(self, n: int = 10**9) -> None:
        self.closed_in: list[int] = []
        self.inside = False

        def generate() -> Iterator[int]:
            try:
                for x in range(n):
                    self.inside = True
                    self.before(x)
                    self.inside = False
                    yield x
            finally:
                assert not self.inside
                self.closed_in.append(threading.get_ident())

        self.generator = generate()

    def before(self, x: int) -> None:
        """Called by the source before it gives ``x``."""


def test_it_runs_on_the_thread_that_calls_request_or_subscribe() -> None:
    threads: list[int] = []
    recorder = subscribed(rsf.range_(3).map(lambda x: threads.append(threading.get_ident()) or x))
    recorder.subscription.request(1)
    other = start_thread(lambda: recorder.subscription.request(1) or threading.get_ident()).result()
    assert threads == [threading.get_ident(), other]


def test_cancel_does_not_wait_for_the_next_in_flight_and_leaves_closing_to_the_drain() -> None:
    source = Tracked()
    entered, leave = threading.Event(), threading.Event()

    def before(x: int) -> None:
        if x == 2:
            entered.set()
            assert leave.wait(DEADLINE)

    source.before = before  # type: ignore[method-assign]
    recorder = subscribed(rsf.from_iterable(source.generator))
    working = start_thread(lambda: recorder.subscription.request(10) or threading.get_ident())
    wait_for(entered)
    recorder.subscription.cancel()  # returns although the source is inside next
    recorder.subscription.cancel()
    assert source.closed_in == []
    leave.set()
    drain = working.result()
    assert source.closed_in == [drain]
    assert recorder.elements[:2] == [0, 1]
    assert len(recorder.elements) <= 3  # the one in flight may still arrive (§2.8)
    recorder.check()


@pytest.mark.parametrize("end", ["take", "error", "cancel in on_next", "subscriber raises"])
def test_leaving_early_closes_the_source_exactly_once(end: str) -> None:
    source = Tracked()
    stream: Any = rsf.from_iterable(source.generator)
    if end == "take":
        stream = stream.take(3)
    elif end == "error":
        stream = stream.map(lambda x: 1 // (2 - x))
    on_next: Any = {
        "cancel in on_next": lambda r, _x: r.subscription.cancel(),
        "subscriber raises": lambda _r, _x: 1 // 0,
    }
    recorder = subscribed(stream, 100, on_next=on_next.get(end))
    assert len(source.closed_in) == 1
    recorder.subscription.cancel()
    assert len(source.closed_in) == 1
    recorder.check()


def test_a_source_that_cancels_its_own_subscription_is_closed_afterwards() -> None:
    source, recorder = Tracked(), Recorder()
    source.before = lambda x: recorder.subscription.cancel() if x == 1 else None  # type: ignore[method-assign]
    rsf.from_iterable(source.generator).subscribe(recorder)
    recorder.subscription.request(10)
    assert recorder.elements in ([0], [0, 1])
    assert len(source.closed_in) == 1


def test_what_a_closing_generator_raises_is_made_known(dropped: list[BaseException]) -> None:
    def source() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            raise OSError("on closing")

    recorder = subscribed(rsf.from_iterable(source()), 1)
    recorder.subscription.cancel()
    assert [str(e) for e in dropped] == ["on closing"]


def test_a_file_is_left_to_its_owner(tmp_path: Any) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    with path.open() as file:
        recorder = subscribed(rsf.from_iterable(file), 1)
        recorder.subscription.cancel()
        assert not file.closed


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("where", ["source", "stage", "subscriber", "foreign stage"])
def test_what_is_no_exception_cancels_and_leaves_through_the_call(kind: Any, where: str) -> None:
    source = Tracked()

    def interrupt(x: int) -> int:
        if x == 2:
            raise kind
        return x

    publisher = ManualPublisher()
    stream: Any = rsf.from_iterable(source.generator)
    recorder = Recorder()
    if where == "source":
        source.before = lambda x: setattr(source, "inside", False) or interrupt(x)  # type: ignore[method-assign]
    elif where == "stage":
        stream = stream.map(interrupt)
    elif where == "subscriber":
        recorder = Recorder(on_next=lambda _r, x: interrupt(x))
    else:
        stream = rsf.from_publisher(publisher).map(interrupt)
    stream.subscribe(recorder)

    def work() -> None:
        recorder.subscription.request(10)
        send(publisher, *range(3))

    with pytest.raises(kind):
        work()
    if where == "foreign stage":
        assert publisher.cancels == 1
    else:
        assert len(source.closed_in) == 1
    before = list(recorder.signals)
    recorder.subscription.request(10)
    recorder.subscription.cancel()
    assert recorder.signals == before
    if where == "foreign stage":
        # It left through a call of upstream's: downstream could not have learnt of it otherwise.
        assert isinstance(recorder.error, kind)
    else:
        assert recorder.terminal is None


def test_a_signal_interrupts_a_pipeline_of_c_callables() -> None:
    class Silent(Plain):
        on_next = staticmethod(abs)  # type: ignore[assignment]  # a C function

    def interrupt(*_args: Any) -> None:
        raise KeyboardInterrupt

    subscriber = Silent()
    rsf.range_(10**15).map(abs).filter(bool).subscribe(subscriber)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            subscriber.subscription.request(rsf.UNBOUNDED)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_other_threads_run_while_an_endless_stream_does() -> None:
    recorder, ticks = Forgetful(), threading.Event()
    rsf.range_(10**15).map(abs).subscribe(recorder)
    working = start_thread(lambda: recorder.subscription.request(rsf.UNBOUNDED))
    start_thread(ticks.set)
    wait_for(ticks)
    recorder.subscription.cancel()
    working.result()


def test_an_idle_subscription_keeps_less_than_1_kib() -> None:
    stream = rsf.range_(9).map(abs).filter(bool).map(abs).filter(bool).map(abs)
    recorders = [Recorder() for _ in range(101)]
    stream.subscribe(recorders.pop())  # what all of them share
    subscriptions: list[Any] = []
    for recorder in recorders:
        recorder.on_subscribe = subscriptions.append
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for recorder in recorders:
            stream.subscribe(recorder)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(subscriptions) == 100
    assert (after - before) / 100 < 1024


def test_a_stream_with_many_boundaries_may_be_consumed_from_within_itself() -> None:
    """Its subscribers share no trampoline: the inner one would wait for the outer one's return."""
    stream = rsf.range_(2)
    for _ in range(40):
        stream = stream.do_on_cancel(lambda: None)
    inner: list[list[int]] = []
    run = stream.for_each(lambda _: inner.append(stream.to_list()))
    run.result(DEADLINE)
    assert inner == [[0, 1], [0, 1]]
