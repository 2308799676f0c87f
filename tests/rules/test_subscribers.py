"""Rules 2.1 to 2.13, one by one, on every subscriber that stands inside a stream or at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, run_threads
from tests.rules.probes import ManualPublisher, Recorder

Attach = Callable[[Any, ExitStack], None]


async def _identity(x: Any) -> Any:
    return x


def _recorded(build: Callable[[Any], Any]) -> Attach:
    def attach(publisher: Any, stack: ExitStack) -> None:
        recorder = Recorder(request=1000)
        build(rsf.from_publisher(publisher)).subscribe(recorder)
        stack.callback(recorder.subscription.cancel)
        stack.callback(recorder.check)

    return attach


def _for_each(publisher: Any, stack: ExitStack) -> None:
    run = rsf.from_publisher(publisher).for_each(lambda _x: None, prefetch=4)
    stack.callback(run.cancel)


def _iterate(publisher: Any, stack: ExitStack) -> None:
    stack.enter_context(rsf.from_publisher(publisher).iterate(prefetch=4))


SUBSCRIBERS: dict[str, Attach] = {
    "from_publisher": _recorded(lambda s: s),
    "map": _recorded(lambda s: s.map(lambda x: x)),
    "filter": _recorded(lambda s: s.filter(lambda _x: True)),
    "publish_on": _recorded(lambda s: s.publish_on(prefetch=4)),
    "subscribe_on": _recorded(lambda s: s.subscribe_on()),
    "unbatch": _recorded(lambda s: s.map(lambda x: [x]).unbatch()),
    "map_async": _recorded(lambda s: s.map_async(_identity, concurrency=2)),
    "for_each": _for_each,
    "iterate": _iterate,
}


@pytest.fixture(params=list(SUBSCRIBERS))
def upstream(request: pytest.FixtureRequest) -> Iterator[ManualPublisher]:
    """A manual publisher with one of our subscribers on it that has asked for elements."""
    publisher = ManualPublisher()
    with ExitStack() as stack:
        SUBSCRIBERS[request.param](publisher, stack)
        publisher.wait_requested(1)
        yield publisher


def test_spec201_demand_is_signalled(upstream: ManualPublisher) -> None:
    assert upstream.requested >= 1
    assert all(type(n) is int and n >= 1 for n in upstream.requests)


@pytest.mark.parametrize("terminal", ["on_complete", "on_error"])
def test_spec203_204_a_terminal_signal_is_answered_by_nothing(
    upstream: ManualPublisher, terminal: str
) -> None:
    subscriber = upstream.subscriber
    before = (list(upstream.requests), upstream.cancels)
    inside: list[str] = []
    request, cancel = upstream.request, upstream.cancel
    upstream.request = lambda n, /: inside.append(f"request({n})")  # type: ignore[method-assign]
    upstream.cancel = lambda: inside.append("cancel()")  # type: ignore[method-assign]
    subscriber.on_complete() if terminal == "on_complete" else subscriber.on_error(OSError("x"))
    assert inside == []
    upstream.request, upstream.cancel = request, cancel  # type: ignore[method-assign]
    assert (list(upstream.requests), upstream.cancels) == before


def test_spec205_212_a_second_subscription_is_cancelled(upstream: ManualPublisher) -> None:
    second = ManualPublisher()
    upstream.subscriber.on_subscribe(second)
    assert second.cancels == 1
    assert second.requests == []
    assert upstream.cancels == 0


def test_spec205_two_threads_subscribing_keep_one_subscription(upstream: ManualPublisher) -> None:
    others = [ManualPublisher() for _ in range(4)]
    subscriber = upstream.subscriber
    run_threads([lambda o=o: subscriber.on_subscribe(o) for o in others])
    assert [other.cancels for other in others] == [1, 1, 1, 1]
    assert upstream.cancels == 0


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
    class Answering(ManualPublisher):
        def request(self, n: int, /) -> None:
            super().request(n)
            if len(self.requests) == 1:
                self.subscriber.on_next(7)

    publisher = Answering()
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
    recorder = Recorder()
    build[kind](rsf.from_publisher(source)).subscribe(recorder)
    recorder.wait_subscribed()

    def ask() -> None:
        for _ in range(1000):
            recorder.subscription.request(2)

    run_threads([lambda: source.deliver(1000), ask, ask])
    assert recorder.wait_terminal() == ("on_complete",)
    assert source.overlaps == 0
    recorder.check()


def test_spec208_elements_after_cancel_are_tolerated() -> None:
    publisher, recorder = ManualPublisher(), Recorder(request=10)
    rsf.from_publisher(publisher).map(lambda x: x).subscribe(recorder)
    publisher.subscriber.on_next(1)
    recorder.subscription.cancel()
    publisher.subscriber.on_next(2)
    publisher.subscriber.on_next(3)
    publisher.subscriber.on_complete()
    assert recorder.elements == [1]
    assert recorder.terminal is None
    assert publisher.cancels == 1


@pytest.mark.parametrize("kind", list(SUBSCRIBERS))
@pytest.mark.parametrize("terminal", ["on_complete", "on_error"])
def test_spec209_210_a_terminal_signal_may_come_without_any_request(
    kind: str, terminal: str
) -> None:
    class Impatient:
        def subscribe(self, subscriber: Any, /) -> None:
            subscriber.on_subscribe(ManualPublisher())
            if terminal == "on_complete":
                subscriber.on_complete()
            else:
                subscriber.on_error(OSError("refused"))

    with ExitStack() as stack:
        SUBSCRIBERS[kind](Impatient(), stack)


def test_spec213_none_is_a_type_error(upstream: ManualPublisher) -> None:
    subscriber = upstream.subscriber
    for signal in (subscriber.on_subscribe, subscriber.on_next, subscriber.on_error):
        with pytest.raises(TypeError):
            signal(None)


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

    class Raising(Recorder):
        def _signal(self, *what: Any) -> None:
            super()._signal(*what)
            if what[0] == signal:
                raise boom

    recorder = Raising(request=2 if signal == "on_next" else 100)
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
