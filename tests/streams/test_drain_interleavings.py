"""What another thread does between two steps of a drain, done there by hand."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.streams.engine import pull
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.operators import concat_map, flat_map, unbatch
from tests.helpers import TestThread, start_thread, wait_for, wait_gone
from tests.rules.probes import ManualPublisher, Recorder, subscribed


def test_an_error_left_while_the_drain_looks_for_it_is_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped, looked = threading.Event(), threading.Event()
    requests: list[TestThread[None]] = []
    slot = Drain.__dict__["_failure"]

    class Subscription(pull._PullSubscription):
        __slots__ = ()

        @property
        def _failure(self) -> BaseException | None:
            failure: BaseException | None = slot.__get__(self)
            if stopped.is_set() and not looked.is_set():
                looked.set()
                requests[0].result()  # leaves its error
            return failure

        @_failure.setter
        def _failure(self, failure: BaseException | None) -> None:
            slot.__set__(self, failure)

        def _stop(self) -> None:
            stopped.set()
            wait_for(looked)
            super()._stop()

    def bad_request(recorder: Recorder, _element: object) -> None:
        requests.append(start_thread(lambda: recorder.subscription.request(-1)))
        wait_for(stopped)

    monkeypatch.setattr(pull, "_PullSubscription", Subscription)
    recorder = Recorder(request=9, on_next=bad_request)
    rsf.range_(3).subscribe(recorder)
    assert recorder.elements == [0]
    assert isinstance(recorder.error, rsf.InvalidRequestError)
    recorder.check()


def test_an_iterable_that_comes_while_everything_is_let_go_of_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Element(list[int]):
        pass

    takes = unbatch._UnbatchSubscription._takes

    def cancelled_after(self: Any, element: Any) -> bool:
        taken = takes(self, element)
        recorder.subscription.cancel()
        return taken

    monkeypatch.setattr(unbatch._UnbatchSubscription, "_takes", cancelled_after)
    publisher, recorder = ManualPublisher(), Recorder(request=1)
    stream: rsf.Stream[list[int]] = rsf.from_publisher(publisher)
    stream.unbatch().subscribe(recorder)
    element = Element()
    gone = weakref.ref(element)
    publisher.subscriber.on_next(element)
    del element
    wait_gone(gone, "the iterable")
    assert recorder.subscription is not None


@pytest.mark.parametrize(
    ("operator", "subscription"),
    [
        ("concat_map", concat_map._ConcatMapSubscription),
        ("flat_map", flat_map.FlatMapSubscription),
    ],
)
def test_an_element_that_comes_while_everything_is_let_go_of_is_not_kept(
    operator: str, subscription: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Element:
        pass

    outer = ManualPublisher()
    stream: Any = rsf.from_publisher(outer)
    recorder = subscribed(getattr(stream, operator)(lambda _x: rsf.empty()), 1)
    take_burst = subscription._inner_burst

    def cancelled_before(self: Any, inner: Any, burst: Any, over: bool = False, /) -> None:
        start_thread(recorder.subscription.cancel).result()
        take_burst(self, inner, burst, over)

    monkeypatch.setattr(subscription, "_inner_burst", cancelled_before)
    element = Element()
    gone = weakref.ref(element)
    outer.subscriber.on_next(element)
    del element
    wait_gone(gone, "the element")
    assert recorder.signals == [("on_subscribe",)]
