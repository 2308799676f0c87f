"""Whatever a publisher does to an operator, a processor or an end, what is below sees a correct
one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, wait_gone
from tests.rules.probes import HandTimer, Recorder
from tests.streams.liars import LIARS, AfterComplete, Liar, NextBeforeOnSubscribe, TwoSubscriptions


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")  # it reports what was dropped


async def same(x: int) -> int:
    return x


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

#: What stands below a liar; it may hold any number of elements that it asked for.
BELOW: dict[str, Callable[[Any], Any]] = {
    "from_publisher": guarded,
    "map": lambda liar: guarded(liar).map(lambda x: x),
    "filter": lambda liar: guarded(liar).filter(lambda x: x % 2),
    "batch": lambda liar: guarded(liar).batch(2),
    "timed batch": lambda liar: guarded(liar).batch(2, seconds=99, timer=HandTimer()),
    "unbatch": lambda liar: guarded(liar).map(lambda x: [x, x]).unbatch(),
    "timeout": lambda liar: guarded(liar).timeout(99, timer=HandTimer()),
    "resume": lambda liar: rsf.error(OSError()).on_error_resume(lambda _e: liar),
    "publish_on": lambda liar: guarded(liar).publish_on(prefetch=2),
    "publish_on caller": lambda liar: guarded(liar).publish_on("caller", delay_error=True),
    "publish_on weighed": lambda liar: guarded(liar).publish_on(max_bytes=2, weigher=lambda _x: 1),
    "subscribe_on": lambda liar: guarded(liar).subscribe_on(),
    "map_async": lambda liar: guarded(liar).map_async(same, prefetch=4, concurrency=2),
    "on_overflow": lambda liar: guarded(liar).on_overflow(rsf.Overflow.LATEST),
    "multicast": lambda liar: guarded(liar).multicast(),
    "replay": lambda liar: guarded(liar).replay(count=2),
    "MulticastProcessor": lambda liar: Via(rsf.MulticastProcessor(), liar),
    "processor": lambda liar: Via(rsf.processor(lambda s: s.map(lambda x: x)), liar),
}


@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", BELOW)
def test_a_subscriber_never_sees_a_broken_rule(name: str, kind: type[Liar]) -> None:
    def again(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.request(1)

    for recorder in (Recorder(request=rsf.UNBOUNDED), Recorder(request=1, on_next=again)):
        liar = kind()
        BELOW[name](liar).subscribe(recorder)
        recorder.wait_terminal()
        recorder.check()
        assert recorder.max_depth <= 1
        assert liar.cancels <= 1
        if kind is TwoSubscriptions:
            assert liar.second.cancels == 1  # type: ignore[attr-defined]
        if kind not in (NextBeforeOnSubscribe, AfterComplete):
            error = recorder.error
            assert (None if error is None else type(error)) in LIARS[kind]


def wait_for_anything(recorder: Recorder) -> None:
    recorder.wait(lambda: bool(recorder.elements or recorder.terminal), "a signal")


@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", BELOW)
def test_a_cancelled_one_sees_nothing_more_and_is_forgotten(name: str, kind: type[Liar]) -> None:
    def stop(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.cancel()

    recorder = Recorder(request=rsf.UNBOUNDED, on_next=stop)
    BELOW[name](kind()).subscribe(recorder)
    wait_for_anything(recorder)
    recorder.check()
    assert len(recorder.elements) <= 1
    subscription, gone = recorder.subscription, weakref.ref(recorder)
    del recorder
    wait_gone(gone)  # a worker may be at it, and an error of the liar's keep frames in a cycle
    subscription.request(1)
    subscription.cancel()


@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.__name__)
def test_the_ends_end(kind: type[Liar]) -> None:
    for end in (
        lambda liar: rsf.from_publisher(liar).to_list(),
        lambda liar: rsf.from_publisher(liar).run(),
        lambda liar: list(rsf.from_publisher(liar).iterate(prefetch=2)),
        lambda liar: rsf.from_publisher(liar).first(default=0),
        lambda liar: (
            rsf.from_publisher(liar).for_each(lambda _x: None, prefetch=1).result(DEADLINE)
        ),
    ):
        try:
            end(kind())
        except Exception as raised:
            assert isinstance(raised, tuple(one for one in LIARS[kind] if one is not None))  # noqa: PT017 - it need not raise


class OnlyElements(Liar):
    """As one writes the first publisher: it knows of no subscription."""

    def subscribe(self, subscriber: Any, /) -> None:
        for element in range(3):
            subscriber.on_next(element)


#: What takes elements without a subscription: nobody waits for ever with these.
TAKE = {"resume", "on_overflow", "multicast", "replay", "MulticastProcessor", "processor"}


@pytest.mark.parametrize("name", [name for name in BELOW if name not in TAKE])
def test_elements_before_on_subscribe_are_an_error_and_nobody_waits_for_ever(name: str) -> None:
    recorder = Recorder(request=rsf.UNBOUNDED)
    BELOW[name](OnlyElements()).subscribe(recorder)
    recorder.wait(lambda: recorder.terminal is not None, "the error")
    recorder.check()
    assert recorder.elements == []
    assert "§1.9: the publisher called on_next before on_subscribe" in str(recorder.terminal)
