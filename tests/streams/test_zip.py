"""zip_: positions, demand, bounds, the earliest end."""

from __future__ import annotations

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, send, subscribed

UNBOUNDED = rsf.UNBOUNDED


# -- the end ---------------------------------------------------------------------------------------
def test_an_empty_one_completes_it_without_a_request_and_cancels_the_others_once() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, rsf.empty(), b))
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert (a.subscribes, a.cancels) == (1, 1)
    assert b.subscribes == 0  # by then it was over
    recorder.subscription.cancel()
    assert a.cancels == 1


def test_it_completes_as_soon_as_one_that_is_over_has_nothing_left() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, b), 2)
    send(a, 1, 2)
    a.subscriber.on_complete()
    assert b.cancels == 0
    send(b, 1)
    assert recorder.terminal is None
    send(b, 2)
    assert recorder.signals[1:] == [("on_next", (1, 1)), ("on_next", (2, 2)), ("on_complete",)]
    assert (a.cancels, b.cancels) == (0, 1)
    send(b, 3)
    b.subscriber.on_complete()
    recorder.check()


def test_the_end_of_the_one_that_is_behind_is_seen_while_the_other_waits() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, b), UNBOUNDED)
    send(a, 1, 2, 3)
    send(b, 1)
    b.subscriber.on_complete()
    assert recorder.signals[1:] == [("on_next", (1, 1)), ("on_complete",)]
    assert (a.cancels, b.cancels) == (1, 0)


# -- demand ----------------------------------------------------------------------------------------
def test_one_that_is_ahead_is_not_asked_further() -> None:
    a = ManualPublisher()
    subscribed(rsf.zip_(a, rsf.never(), prefetch=4), UNBOUNDED)
    send(a, 1, 2, 3, 4)
    assert a.requests == [4]
