"""Whatever a publisher does to an operator, a processor or an end, what is below sees a correct
one.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import case, start_thread, wait_for, wait_gone
from tests.operators import ENDS, Use, apart, uses
from tests.operators.entry import same
from tests.rules.probes import ManualPublisher, Recorder, subscribed
from tests.streams.held import Hold
from tests.streams.liars import (
    COMBINED,
    LIARS,
    AfterComplete,
    Liar,
    NextBeforeOnSubscribe,
    TwoSubscriptions,
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")  # it reports what was dropped


class Via:
    """A processor between a liar and the subscriber."""

    def __init__(self, processor: Any, liar: Liar) -> None:
        self._processor = processor
        self._liar = liar

    def subscribe(self, subscriber: Any, /) -> None:
        self._processor.subscribe(subscriber)
        try:
            self._liar.subscribe(self._processor)
        except (TypeError, ValueError) as raised:  # as a correct publisher would have signalled
            self._processor.on_error(raised)


guarded = rsf.from_publisher


def over(use: Use) -> Callable[[Any], Any]:
    return lambda liar: use.over(guarded(liar))


#: What stands below a liar; it may hold any number of elements that it asked for.
BELOW: dict[str, Callable[[Any], Any]] = {
    "from_publisher": guarded,
    "MulticastProcessor": lambda liar: Via(rsf.MulticastProcessor(), liar),
    "processor": lambda liar: Via(rsf.processor(lambda s: s.map(same)), liar),
    **{name: over(use) for name, use in apart().items()},
    **COMBINED,
}


@pytest.mark.parametrize("name", BELOW)
def test_a_subscriber_never_sees_a_broken_rule(name: str) -> None:
    def again(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.request(1)

    for kind, step in itertools.product(LIARS, (rsf.UNBOUNDED, 1)):
        with case(f"{kind.__name__}, {step} at a time"):
            liar = kind()
            recorder = subscribed(BELOW[name](liar), step, on_next=again if step == 1 else None)
            recorder.wait_terminal()
            recorder.check()
            assert recorder.max_depth <= 1
            assert liar.cancels <= 1
            if kind is TwoSubscriptions or (name in COMBINED and hasattr(liar, "second")):
                assert liar.second.cancels == 1  # type: ignore[attr-defined]
            if name in COMBINED or kind not in (NextBeforeOnSubscribe, AfterComplete):
                error = recorder.error
                assert (None if error is None else type(error)) in LIARS[kind]


def wait_for_anything(recorder: Recorder) -> None:
    recorder.wait(lambda: bool(recorder.elements or recorder.terminal), "a signal")


@pytest.mark.parametrize("name", BELOW)
def test_a_cancelled_one_sees_nothing_more_and_is_forgotten(name: str) -> None:
    def stop(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.cancel()

    for kind in LIARS:
        with case(kind.__name__):
            recorder = subscribed(BELOW[name](kind()), rsf.UNBOUNDED, on_next=stop)
            wait_for_anything(recorder)
            recorder.check()
            assert len(recorder.elements) <= 1
            subscription, gone = recorder.subscription, weakref.ref(recorder)
            del recorder
            wait_gone(gone)  # a worker may be at it, and an error of the liar's has a cycle
            subscription.request(1)
            subscription.cancel()


@pytest.mark.parametrize("name", ENDS)
def test_an_end_ends(name: str) -> None:
    for kind, errors in LIARS.items():
        expected = tuple(error for error in errors if error is not None)
        with case(kind.__name__), suppress(*expected):
            ENDS[name].read(ENDS[name].call(guarded(kind())))


class OnlyElements(Liar):
    """As one writes the first publisher: it knows of no subscription."""

    def subscribe(self, subscriber: Any, /) -> None:
        for element in range(3):
            subscriber.on_next(element)


#: What takes elements without a subscription: nobody waits for ever with these.
TAKE = {"MulticastProcessor", "processor", *uses(lambda use: use.takes_early)}


@pytest.mark.parametrize("name", [name for name in BELOW if name not in TAKE | COMBINED.keys()])
def test_elements_before_on_subscribe_are_an_error_and_nobody_waits_for_ever(name: str) -> None:
    recorder = subscribed(BELOW[name](OnlyElements()), rsf.UNBOUNDED)
    recorder.wait_terminal()
    recorder.check()
    assert recorder.elements == []
    assert "§1.9: the publisher called on_next before on_subscribe" in str(recorder.terminal)


@pytest.mark.parametrize(
    ("requested", "below"),
    [
        (1, lambda stream: stream),
        (4, lambda stream: stream.filter(lambda _: True)),
        (4, lambda stream: stream.batch(2).unbatch()),
    ],
)
def test_elements_beyond_the_demand_end_the_stream_while_one_is_delivered(
    requested: int, below: Callable[[Any], Any]
) -> None:
    """The publisher sends them on other threads than the one that is in ``on_next``."""
    hold, publisher = Hold(), ManualPublisher()
    recorder = subscribed(below(guarded(publisher)), requested, on_next=hold)
    sent = itertools.count()

    def send() -> None:
        while not hold.entered.is_set():
            publisher.subscriber.on_next(next(sent))

    sender = start_thread(send)
    wait_for(hold.entered)
    while publisher.cancels == 0 and next(sent) < 100:
        publisher.subscriber.on_next(0)
    assert publisher.cancels == 1
    assert next(sent) <= requested + 2  # no more than were requested are held
    hold.leave.set()
    sender.result()
    recorder.wait_terminal()
    recorder.check()
    assert isinstance(recorder.error, rsf.DemandExceededError)
