"""start_with, default_if_empty, switch_if_empty, on_error_return: given elements in their place."""

from __future__ import annotations

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, send, subscribed


def test_start_with_subscribes_above_when_its_elements_are_over() -> None:
    above = ManualPublisher()
    recorder = subscribed(rsf.from_publisher(above).start_with(0, 1), 1)
    assert above.subscribes == 0
    recorder.subscription.request(3)
    assert (recorder.elements, above.requests) == ([0, 1], [2])


def test_the_default_waits_for_demand() -> None:
    recorder = subscribed(rsf.empty().default_if_empty(7))
    assert recorder.signals == [("on_subscribe",)]
    recorder.subscription.request(1)
    assert recorder.signals[1:] == [("on_next", 7), ("on_complete",)]


def test_switch_if_empty_asks_the_other_for_what_was_asked_for() -> None:
    above, other = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.from_publisher(above).switch_if_empty(other), 3)
    assert (above.requests, other.subscribes) == ([3], 0)
    above.subscriber.on_complete()
    assert other.requests == [3]
    send(other, 1)
    recorder.subscription.cancel()
    assert (recorder.elements, above.cancels, other.cancels) == ([1], 0, 1)
    recorder.check()


def test_after_an_element_the_other_is_left_alone() -> None:
    above, other = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.from_publisher(above).switch_if_empty(other), 3)
    send(above, 1)
    above.subscriber.on_complete()
    assert (recorder.terminal, other.subscribes) == (("on_complete",), 0)
