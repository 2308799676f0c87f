"""What another thread does between two steps of a drain, done there by hand."""

from __future__ import annotations

import threading

import pytest

import rstreams_fast as rsf
from rstreams_fast.streams import pull
from rstreams_fast.streams.drain import Drain
from tests.helpers import TestThread, start_thread, wait_for
from tests.rules.probes import Recorder


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
    assert isinstance(recorder.error, rsf.InvalidRequest)
    recorder.check()
