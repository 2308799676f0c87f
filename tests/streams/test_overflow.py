"""on_overflow: what is held, what is dropped, how it ends, and what is told of it."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rstreams_fast as rsf
from rstreams_fast import Overflow
from tests.helpers import DEADLINE, run_threads, start_thread, wait_for
from tests.rules.probes import ManualPublisher, Recorder, raising, send, subscribed
from tests.stepping import steps

DROPPING = (Overflow.DROP_OLDEST, Overflow.DROP_LATEST, Overflow.LATEST)


def connect(
    strategy: Overflow, capacity: int | None = None, *, on_drop: Any = None, **options: Any
) -> tuple[ManualPublisher, Recorder, list[Any]]:
    """What is above, what is below, and what is dropped, unless ``on_drop`` takes it."""
    source, drops = ManualPublisher(), list[Any]()
    stream = rsf.from_publisher(source).on_overflow(
        strategy, capacity=capacity, on_drop=on_drop or drops.append
    )
    return source, subscribed(stream, **options), drops


def metrics(recorder: Recorder) -> rsf.BoundaryMetrics:
    return rsf.metrics_of(recorder.subscription)[0]


def test_error_does_not_take_an_element_being_delivered_for_demand() -> None:
    # The demand that the element being delivered uses up is spent, though nobody has had it yet.
    def more(recorder: Recorder, element: str) -> None:
        send(source, "b")

    source, recorder, drops = connect(Overflow.ERROR, on_next=more)
    recorder.subscription.request(1)
    send(source, "a")
    assert recorder.elements == ["a"]
    assert drops == ["b"]
    assert isinstance(recorder.error, rsf.BufferOverflowError)
    recorder.check()


def test_error_holds_what_was_asked_for_up_to_the_capacity() -> None:
    def more(recorder: Recorder, element: int) -> None:
        if element == 0:
            send(source, 1, 2, 3)

    source, recorder, drops = connect(Overflow.ERROR, 2, request=rsf.UNBOUNDED, on_next=more)
    send(source, 0)
    assert recorder.elements == [0, 1, 2]
    assert drops == [3]
    assert "an element came while 2 others waited" in str(recorder.error)
    assert recorder.max_depth == 1
    recorder.check()


class Model:
    """What should happen, in as few words as possible; one thread."""

    def __init__(self, strategy: Overflow, capacity: int) -> None:
        self.strategy, self.capacity = strategy, capacity
        self.held: list[int] = []
        self.delivered: list[int] = []
        self.dropped: list[int] = []
        self.demand = 0
        self.ending = self.terminal = ""
        self.over = False

    def send(self, element: int) -> None:
        if self.ending or self.over:
            return
        if self.demand:
            self.held.append(element)
        elif self.strategy is Overflow.ERROR:
            self.dropped.append(element)
            self.ending = "overflow"
        elif len(self.held) < self.capacity:
            self.held.append(element)
        elif self.strategy in (Overflow.DROP_OLDEST, Overflow.LATEST):
            self.dropped.append(self.held.pop(0))
            self.held.append(element)
        else:
            self.dropped.append(element)
            if self.strategy is Overflow.BUFFER:
                self.ending = "overflow"
        self.settle()

    def request(self, n: int) -> None:
        if not self.over:
            self.demand += n
            self.settle()

    def end(self, how: str) -> None:
        self.ending = self.ending or how
        self.settle()

    def cancel(self) -> None:
        self.over = True
        self.held.clear()

    def settle(self) -> None:
        while self.held and self.demand and not self.over:
            self.delivered.append(self.held.pop(0))
            self.demand -= 1
        if self.ending and not self.held and not self.over:
            self.over = True
            self.terminal = self.ending


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.just("request"), st.integers(1, 4)),
    st.tuples(st.just("request"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["complete", "fail", "cancel"]), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(Overflow), st.integers(1, 4), st.lists(STEPS, max_size=25))
def test_any_row_of_signals_is_handled_as_the_model_says(
    strategy: Overflow, capacity: int, steps: list[tuple[str, int]]
) -> None:
    capacity = 1 if strategy is Overflow.LATEST else capacity
    source, recorder, drops = connect(strategy, capacity)
    model = Model(strategy, capacity)
    # With ERROR, what came before the subscriber has asked could only end the stream.
    sent, asked = 0, strategy is not Overflow.ERROR
    for step, n in steps:
        if step == "send":
            for element in range(sent, sent + n):
                send(source, element)
                model.send(element)
            sent += n
        elif step == "request":
            asked |= not model.over
            recorder.subscription.request(n)
            model.request(n)
        elif step == "cancel":
            recorder.subscription.cancel()
            model.cancel()
        elif step == "complete":
            source.subscriber.on_complete()
            model.end(step)
        elif not model.ending and not model.over:  # else it would be reported
            source.subscriber.on_error(ValueError("as it should"))
            model.end(step)
        assert source.requests == [rsf.UNBOUNDED] * asked  # for everything, once
        assert recorder.elements == model.delivered
        assert drops == model.dropped
        assert metrics(recorder).held == len(model.held)
        assert metrics(recorder).dropped == len(model.dropped)
        terminal = {"": None, "complete": "on_complete"}.get(model.terminal, "on_error")
        assert (recorder.terminal or (None,))[0] == terminal
        if model.terminal == "overflow":
            assert isinstance(recorder.error, rsf.BufferOverflowError)
    recorder.check()


def test_the_bound_holds_while_another_thread_is_delivering() -> None:
    """Nothing above holds back what a second thread signals."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(recorder: Recorder, element: Any) -> None:
        inside.set()
        wait_for(go_on)

    source, recorder, drops = connect(Overflow.DROP_LATEST, 2, request=rsf.UNBOUNDED, on_next=wait)
    first = start_thread(lambda: send(source, 0))
    wait_for(inside)
    send(source, 1, 2, 3, 4)
    assert metrics(recorder).held == 2
    assert drops == [3, 4]
    go_on.set()
    first.result()
    assert recorder.elements == [0, 1, 2]
    recorder.check()


SENDERS = 4
EACH = 400


@pytest.mark.parametrize("strategy", DROPPING)
def test_every_element_is_delivered_or_dropped_once(strategy: Overflow) -> None:
    source, recorder, drops = connect(strategy, None if strategy is Overflow.LATEST else 3)

    def ask() -> None:
        for _ in range(EACH):
            recorder.subscription.request(1)

    sent = [[(sender, n) for n in range(EACH)] for sender in range(SENDERS)]
    run_threads([*(partial(send, source, *mine) for mine in sent), ask])
    source.subscriber.on_complete()
    recorder.subscription.request(3)
    assert recorder.wait_terminal() == ("on_complete",)
    assert len(recorder.elements) <= EACH + 3
    assert metrics(recorder).dropped == len(drops)
    assert sorted(recorder.elements + drops) == list(itertools.chain(*sent))
    for mine in sent:  # each sender's elements come in its order
        came = [element for element in recorder.elements if element in mine]
        assert came == sorted(came)
    recorder.check()


@pytest.mark.parametrize("strategy", [Overflow.LATEST, Overflow.DROP_OLDEST])
def test_what_takes_a_place_that_was_seen_empty_is_delivered(strategy: Overflow) -> None:
    for step in steps():
        emitters: list[rsf.Emitter[int]] = []
        recorder = subscribed(rsf.create(emitters.append, overflow=strategy, capacity=1))
        emitters[0].next(1)
        with step.meanwhile(lambda r=recorder: r.subscription.request(1)):
            emitters[0].next(2)
        assert len(recorder.elements) == 1, step
        recorder.subscription.request(1)
        assert recorder.elements in ([2], [1, 2]), step


def test_what_on_drop_raises_is_no_part_of_the_stream(unraisable: list[Any]) -> None:
    def fail(element: int) -> None:
        raise ValueError(element)

    source, recorder, _ = connect(Overflow.DROP_OLDEST, 1, on_drop=fail)
    send(source, 1, 2, 3)
    recorder.subscription.request(5)
    assert recorder.elements == [3]
    assert [str(one.exc_value) for one in unraisable] == ["1", "2"]
    assert "on_drop" in unraisable[0].err_msg


@pytest.mark.parametrize("strategy", [Overflow.DROP_OLDEST, Overflow.DROP_LATEST, Overflow.BUFFER])
def test_an_interrupt_out_of_on_drop_leaves_and_ends_the_stream(strategy: Overflow) -> None:
    interrupt = KeyboardInterrupt()
    source, recorder, _ = connect(strategy, 1, on_drop=raising(interrupt))
    send(source, 1)
    with pytest.raises(KeyboardInterrupt):
        send(source, 2)
    assert source.cancels == 1
    assert recorder.signals == [("on_subscribe",), ("on_error", interrupt)]
    send(source, 3)
    recorder.subscription.request(5)
    recorder.check()


def test_on_drop_keeps_nobody_from_the_elements() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(element: int) -> None:
        inside.set()
        wait_for(go_on)

    source, recorder, _ = connect(Overflow.DROP_OLDEST, 2, on_drop=wait)
    sender = start_thread(lambda: send(source, 1, 2, 3))
    wait_for(inside)
    recorder.subscription.request(5)
    assert recorder.elements == [2, 3]
    send(source, 4)
    assert recorder.elements == [2, 3, 4]
    go_on.set()
    sender.result()
    recorder.check()


def test_what_was_dropped_is_seen_from_a_run_while_it_goes_on() -> None:
    emitters: list[rsf.Emitter[int]] = []
    held, go_on = threading.Event(), threading.Event()

    def hold(_element: int) -> None:
        held.set()
        assert go_on.wait(DEADLINE)

    stream = rsf.create(emitters.append, overflow=Overflow.LATEST).publish_on(prefetch=1)
    run = stream.for_each(hold)
    emitters[0].next(0)
    assert held.wait(DEADLINE)
    for n in range(9):
        emitters[0].next(n)
    assert [boundary.dropped for boundary in rsf.metrics_of(run)] in ([0, 7], [0, 8])
    emitters[0].complete()
    go_on.set()
    run.result(DEADLINE)
    assert rsf.metrics_of(run) == ()
