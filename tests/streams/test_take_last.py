"""``take_last``: nothing before the end, and at the end the last elements as they are asked for."""

from __future__ import annotations

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed


def over(publisher: ManualPublisher, request: int) -> Recorder:
    return subscribed(rsf.from_publisher(publisher).take_last(2), request)


def test_it_asks_for_all_at_once_and_delivers_after_the_end() -> None:
    publisher = ManualPublisher()
    recorder = over(publisher, 1)
    assert publisher.requests == [rsf.UNBOUNDED]
    send(publisher, 1, 2, 3)
    assert recorder.elements == []
    (figures,) = rsf.metrics_of(recorder.subscription)
    assert (figures.held, figures.max_held, figures.dropped) == (2, 2, 1)
    publisher.subscriber.on_complete()
    assert recorder.elements == [2]
    assert recorder.terminal is None
    recorder.subscription.request(1)
    assert recorder.elements == [2, 3]
    assert recorder.terminal == ("on_complete",)
    recorder.check()


def test_the_error_of_too_many_names_the_argument() -> None:
    with pytest.raises(ValueError, match=r"^take_last\(n\): n must be <= 2\*\*31"):
        rsf.range_(3).take_last(2**40)
