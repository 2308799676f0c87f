"""flat_map: concurrency, turns, demand, bounds, what its function may do, errors, threads."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Counted, Living
from tests.rules.probes import Forgetful, ManualPublisher, Recorder, send, subscribed

UNBOUNDED = rsf.UNBOUNDED


#: A publisher for each element, made as it is asked for.
Inners = defaultdict[Any, ManualPublisher]


def test_upstream_is_asked_for_the_concurrency_and_for_one_when_one_is_over() -> None:
    outer, inners = ManualPublisher(), Inners(ManualPublisher)
    stream = rsf.from_publisher(outer).flat_map(inners.__getitem__, concurrency=3, prefetch=2)
    recorder = subscribed(stream)
    assert outer.requests == []  # nobody has asked yet
    recorder.subscription.request(1)
    assert outer.requests == [3]
    send(outer, "a", "b", "c")
    assert [inners[name].requests for name in "abc"] == [[2], [2], [2]]
    inners["b"].subscriber.on_complete()
    assert outer.requests == [3, 1]
    send(inners["a"], 1, 2)
    inners["a"].subscriber.on_complete()
    assert outer.requests == [3, 1]  # one element of it waits
    recorder.subscription.request(1)
    assert outer.requests == [3, 1, 1]
    outer.subscriber.on_complete()
    assert recorder.terminal is None
    inners["c"].subscriber.on_complete()
    assert recorder.signals[1:] == [("on_next", 1), ("on_next", 2), ("on_complete",)]
    recorder.check()


def test_when_upstream_is_over_it_is_asked_for_nothing() -> None:
    outer, inners = ManualPublisher(), Inners(ManualPublisher)
    subscribed(rsf.from_publisher(outer).flat_map(inners.__getitem__, concurrency=2), 1)
    send(outer, "a", "b")
    outer.subscriber.on_complete()
    inners["a"].subscriber.on_complete()
    assert outer.requests == [2]


def test_of_synchronous_publishers_the_next_is_opened_when_the_one_before_was_asked() -> None:
    events: list[str] = []

    def fn(n: int) -> rsf.Stream[int]:
        events.append(f"open {n}")
        return rsf.from_iterable((n,))

    rsf.range_(3).flat_map(fn).do_on_next(lambda n: events.append(f"got {n}")).run()
    assert events == ["open 0", "got 0", "open 1", "got 1", "open 2", "got 2"]


def test_the_function_is_called_while_a_publisher_that_was_asked_waits() -> None:
    """What one waits in holds up neither the drain nor what comes by others."""
    outer, other, called = ManualPublisher(), ManualPublisher(), Counted()

    def fn(n: int) -> Any:
        called.add()
        return other if n else rsf.range_(2)

    recorder = subscribed(rsf.from_publisher(outer).flat_map(fn), UNBOUNDED)
    send(outer, 1, 0)
    send(other, "x")
    assert recorder.elements == [0, 1, "x"]
    assert called.value == 2


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 1), (2, 4), (4, 2)])
def test_no_more_elements_are_alive_than_it_says(concurrency: int, prefetch: int) -> None:
    living = Living()
    recorder = Forgetful()
    rsf.range_(20).flat_map(
        lambda _n: rsf.range_(10).map(living.make),
        concurrency=concurrency,
        prefetch=prefetch,
    ).subscribe(recorder)
    for _ in range(200):
        recorder.subscription.request(1)
    assert recorder.taken == 200
    assert recorder.terminal == ("on_complete",)
    # And one that a source's loop still has in hand.
    assert living.most <= concurrency * prefetch + 1
    assert living.alive.value == 0


def test_delayed_errors_come_after_everything_and_the_others_go_on() -> None:
    failures = [ValueError("fn"), KeyError("inner"), OSError("outer")]
    outer, inners = ManualPublisher(), Inners(ManualPublisher)

    def fn(name: str) -> Any:
        if name == "bad":
            raise failures[0]
        return inners[name]

    recorder = subscribed(rsf.from_publisher(outer).flat_map(fn, delay_error=True), UNBOUNDED)
    send(outer, "a", "bad", "b")
    inners["a"].subscriber.on_error(failures[1])
    send(outer, "c")
    outer.subscriber.on_error(failures[2])
    send(inners["b"], 1)
    inners["b"].subscriber.on_complete()
    send(inners["c"], 2)
    assert recorder.terminal is None
    inners["c"].subscriber.on_complete()
    assert recorder.elements == [1, 2]
    group = recorder.error
    assert isinstance(group, ExceptionGroup)
    assert list(group.exceptions) == failures
    recorder.check()


def test_cancelled_while_its_function_runs_it_does_not_subscribe() -> None:
    inner = ManualPublisher()
    recorder = Recorder(request=1)

    def fn(_n: int) -> Any:
        recorder.subscription.cancel()
        return inner

    rsf.range_(3).flat_map(fn).subscribe(recorder)
    assert inner.subscribes == 0
    assert recorder.signals == [("on_subscribe",)]
