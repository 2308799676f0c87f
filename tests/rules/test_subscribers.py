"""Rules 2.1 to 2.13, one by one, on every subscriber that stands inside a stream or at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, run_threads
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed


async def _identity(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda s: s.take(1).to_list(), id="take"),
        pytest.param(lambda s: s.first(), id="first"),
        pytest.param(lambda s: next(iter(s)), id="next"),
        pytest.param(lambda s: s.take_while(lambda x: x < 0).to_list(), id="take_while"),
    ],
)
def test_spec206_what_is_no_longer_needed_is_cancelled_once(leave: Callable[[Any], Any]) -> None:
    publisher = ManualPublisher(lambda me: send(me, 7) if len(me.requests) == 1 else None)
    leave(rsf.from_publisher(publisher))
    publisher.wait_cancelled()
    assert publisher.cancels == 1


class _OverlapDetector:
    """A publisher of endless elements whose subscription notices overlapping calls (§2.7)."""

    def __init__(self) -> None:
        self.overlaps = 0
        self.delivered = 0
        self._busy = threading.Lock()
        self._demand = 0
        self._more = threading.Condition()
        self._stop = False

    def subscribe(self, subscriber: Any, /) -> None:
        self.subscriber = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int, /) -> None:
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            with self._more:
                self._demand += n
                self._more.notify_all()
        finally:
            self._busy.release()

    def cancel(self) -> None:
        with self._more:
            self._stop = True
            self._more.notify_all()

    def deliver(self, total: int) -> None:
        while self.delivered < total:
            with self._more:
                assert self._more.wait_for(lambda: self._demand or self._stop, DEADLINE)
                if self._stop:
                    return
                self._demand -= 1
            self.subscriber.on_next(self.delivered)
            self.delivered += 1
        self.subscriber.on_complete()


@pytest.mark.parametrize("kind", ["map", "filter", "publish_on", "map_async", "unbatch"])
def test_spec207_requests_are_made_serially(kind: str) -> None:
    build: dict[str, Callable[[Any], Any]] = {
        "map": lambda s: s.map(lambda x: x),
        "filter": lambda s: s.filter(lambda x: x % 2 == 0),
        "publish_on": lambda s: s.publish_on(prefetch=8),
        "map_async": lambda s: s.map_async(_identity, concurrency=2),
        "unbatch": lambda s: s.map(lambda x: [x, x]).unbatch(),
    }
    source = _OverlapDetector()
    recorder = subscribed(build[kind](rsf.from_publisher(source)))
    recorder.wait_subscribed()

    def ask() -> None:
        for _ in range(1000):
            recorder.subscription.request(2)

    run_threads([lambda: source.deliver(1000), ask, ask])
    assert recorder.wait_terminal() == ("on_complete",)
    assert source.overlaps == 0
    recorder.check()


@pytest.mark.parametrize("signal", ["on_subscribe", "on_next", "on_error", "on_complete"])
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: rsf.range_(5), id="range"),
        pytest.param(lambda: rsf.range_(5).map(lambda x: x), id="map"),
        pytest.param(lambda: rsf.from_iterable(x for x in range(5)), id="generator"),
        pytest.param(lambda: rsf.range_(5).publish_on(), id="publish_on"),
        pytest.param(lambda: rsf.range_(5).subscribe_on(), id="subscribe_on"),
        pytest.param(lambda: rsf.range_(5).map_async(_identity), id="map_async"),
        pytest.param(lambda: rsf.from_publisher(rsf.range_(5)).map(lambda x: x), id="foreign"),
    ],
)
def test_spec213_a_subscriber_that_raises_is_cancelled_and_the_error_is_made_known(
    build: Callable[[], Any], signal: str
) -> None:
    boom = RuntimeError("the subscriber's own")
    seen: list[BaseException] = []
    known = threading.Event()

    def hook(error: BaseException) -> None:
        seen.append(error)
        known.set()

    recorder = Recorder(request=2 if signal == "on_next" else 100, raises=(signal, boom))
    stream = build()
    if signal == "on_error":
        stream = stream.map(lambda x: 1 // 0)
    previous = rsf.on_dropped_error(hook)
    try:
        stream.subscribe(recorder)
        assert known.wait(DEADLINE), recorder.signals
    finally:
        rsf.on_dropped_error(previous)
    assert seen == [boom]
    assert recorder.signals[-1][0] == signal  # nothing came after it
    if signal == "on_next":
        assert len(recorder.elements) == 1
