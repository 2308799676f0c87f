"""Sequences below which an operator does the work of a subscription itself: nobody can tell."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, HAS_GIL, Element, wait_gone
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed
from tests.stepping import steps

UNBOUNDED = rsf.UNBOUNDED

Combine = Callable[[rsf.Stream[Any]], rsf.Stream[Any]]

COMBINED: dict[str, Combine] = {
    "merge": lambda s: s.merge(rsf.empty()),
    "concat": lambda s: s.concat(rsf.empty()),
    "flat_map": lambda s: rsf.range_(1).flat_map(lambda _n: s),
    "flat_map outer": lambda s: s.flat_map(lambda x: rsf.from_iterable((x,))),
    "concat_map": lambda s: rsf.range_(1).concat_map(lambda _n: s),
    "concat_map outer": lambda s: s.concat_map(lambda x: rsf.from_iterable((x,))),
    "retry": lambda s: s.retry(0),
    "repeat": lambda s: s.repeat(0),
    "switch_if_empty": lambda s: s.switch_if_empty(rsf.empty()),
    "take_until": lambda s: s.take_until(rsf.never()),
    "on_error_return": lambda s: s.on_error_return(0, on=KeyError),
    "chain": lambda s: rsf.empty().concat(s, rsf.empty()).retry(0),
}
# One publisher after another: the drain runs those that are sequences.
ONE_BY_ONE = [
    "concat",
    "retry",
    "repeat",
    "switch_if_empty",
    "take_until",
    "on_error_return",
    "chain",
]


def _add(a: int, b: int) -> int:
    return a + b


STAGES: dict[str, tuple[rsf.Stream[Any], list[Any]]] = {
    "batch": (rsf.range_(7).batch(3), [[0, 1, 2], [3, 4, 5], [6]]),
    "reduce": (rsf.range_(5).reduce(_add), [10]),
    "reduce of nothing": (rsf.from_iterable(()).reduce(_add), []),
    "seeded reduce of nothing": (rsf.from_iterable(()).reduce(_add, 7), [7]),
    "seeded scan": (rsf.range_(4).scan(_add, 10), [10, 10, 11, 13, 16]),
    "take": (rsf.range_(10**9).take(3), [0, 1, 2]),
    "take nothing": (rsf.range_(10**9).take(0), []),
    "filter": (rsf.range_(9).filter(lambda x: x % 3 == 0), [0, 3, 6]),
    "filter all": (rsf.range_(9).filter(lambda _x: False), []),
    "distinct": (rsf.from_iterable([1, 1, 2, 2, 1]).distinct_until_changed(), [1, 2, 1]),
    "text": (rsf.from_iterable("abc"), ["a", "b", "c"]),
    "callable": (rsf.from_callable(lambda: 5).map(str), ["5"]),
    "longer than a burst": (rsf.range_(1000), list(range(1000))),
}


@pytest.mark.parametrize("combined", COMBINED)
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("one_by_one", [False, True], ids=["unbounded", "one by one"])
def test_every_stage_gives_what_it_gives_alone(
    combined: str, stages: str, one_by_one: bool
) -> None:
    stream, expected = STAGES[stages]
    recorder = subscribed(
        COMBINED[combined](stream),
        1 if one_by_one else UNBOUNDED,
        on_next=lambda r, _x: one_by_one and r.subscription.request(1),
    )
    assert recorder.elements == expected
    assert recorder.terminal == ("on_complete",)
    recorder.check()


FAILING: dict[str, rsf.Stream[Any]] = {
    "none": rsf.from_iterable([1, 2, None, 3]),
    "none, with a stage": rsf.from_iterable([1, 2, None, 3]).map(int),
    "a function": rsf.range_(1, 5).map(lambda n: n // (3 - n) or n),
}


@pytest.mark.parametrize("combined", COMBINED)
@pytest.mark.parametrize("fails", FAILING)
def test_an_error_comes_after_the_elements_before_it(combined: str, fails: str) -> None:
    recorder = subscribed(COMBINED[combined](FAILING[fails]), UNBOUNDED)
    if "outer" not in combined:  # its error overtakes
        assert recorder.elements == [1, 2]
    assert isinstance(recorder.error, ZeroDivisionError if fails == "a function" else TypeError)


def noting(called: list[int]) -> Callable[[int], int]:
    def note(x: int) -> int:
        called.append(x)
        return x

    return note


@pytest.mark.parametrize("combined", ["merge", "flat_map", "concat_map", *ONE_BY_ONE])
def test_cancelled_its_stages_are_not_called_again(combined: str) -> None:
    called: list[int] = []
    numbers = rsf.range_(10**9).map(noting(called))
    stream = COMBINED[combined](numbers)
    recorder = subscribed(stream, UNBOUNDED, on_next=lambda r, _x: r.subscription.cancel())
    assert recorder.elements == called == [0]


@pytest.mark.parametrize("combined", ["concat_map", *ONE_BY_ONE])
def test_one_after_another_takes_no_more_than_was_asked_for(combined: str) -> None:
    called: list[int] = []
    numbers = rsf.range_(10**9).map(noting(called))
    recorder = subscribed(COMBINED[combined](numbers), 3)
    assert recorder.elements == called == [0, 1, 2]
    recorder.subscription.request(2)
    assert recorder.elements == called == [0, 1, 2, 3, 4]


def test_a_list_that_iterates_in_its_own_way_is_subscribed_to() -> None:
    class Waiting(list[int]):
        """Its second element depends on what became of the first."""

        def __iter__(self) -> Iterator[int]:
            yield 1
            yield len(recorder.elements)

    recorder = Recorder(request=UNBOUNDED)
    rsf.from_iterable(Waiting()).merge().subscribe(recorder)
    assert recorder.elements == [1, 1]


@pytest.mark.parametrize(
    ("combine", "first"),
    [
        (lambda a, b: a.merge(b, prefetch=4), 4),
        (lambda a, b: a.combine_latest(b, prefetch=4), 5),
        (lambda a, b: rsf.range_(1).concat(b).flat_map(lambda _: a, prefetch=4), 4),
        (lambda a, b: rsf.range_(1).concat(b).flat_map_sequential(lambda _: a, prefetch=4), 4),
    ],
    ids=["merge", "combine_latest", "flat_map", "flat_map_sequential"],
)
def test_a_list_that_becomes_shorter_ends_alone(
    combine: Callable[[Any, Any], rsf.Stream[Any]], first: int
) -> None:
    numbers, live = list(range(9)), ManualPublisher()
    recorder = subscribed(combine(rsf.from_iterable(numbers), rsf.from_publisher(live)), 1)
    if live.requested and not recorder.elements:
        send(live, "live")
    rsf.metrics_of(recorder.subscription)  # from now on, elements wait in a queue
    numbers.clear()
    recorder.subscription.request(UNBOUNDED)
    assert (len(recorder.elements), recorder.terminal) == (first, None)
    live.subscriber.on_complete()
    assert recorder.terminal == ("on_complete",)
    recorder.check()


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("size", [1000, 1200, 1536])
def test_zipped_it_may_be_asked_for_more_than_there_is(size: int, stages: bool) -> None:
    sequence = rsf.range_(size).map(str) if stages else rsf.range_(size)
    recorder = subscribed(rsf.zip_(sequence, rsf.range_(size + 3)))
    for _ in range(size):
        recorder.subscription.request(1)
    assert len(recorder.elements) == size
    assert recorder.signals[-1] == ("on_complete",)
    recorder.check()


@pytest.mark.parametrize("combined", COMBINED)
def test_cancelled_in_on_subscribe_it_keeps_nothing_of_the_publisher(combined: str) -> None:
    seed = Element()  # which the description of the stream holds
    shared = rsf.range_(9).scan(lambda kept, _x: kept, seed).replay(count=1)
    stream = COMBINED[combined](shared)
    recorder = subscribed(stream, on_subscribe=lambda r: r.subscription.cancel())
    gone = weakref.ref(seed)
    subscription = recorder.subscription
    del seed, shared, stream, recorder
    wait_gone(gone, "the seed")
    subscription.cancel()


@pytest.mark.skipif(not HAS_GIL, reason="without a GIL an element is freed by who made it alone")
def test_a_sequence_may_be_cancelled_at_any_step() -> None:
    """And elements that are dropped then take their time."""
    asking = threading.current_thread()
    for step in steps(within="streams/engine/inner_subscriber"):
        over = threading.Event()

        class Slow:
            def __del__(self, over: threading.Event = over) -> None:
                if threading.current_thread() is not asking:
                    assert over.wait(DEADLINE)

        window = rsf.range_(3).map(lambda _n, kind=Slow: kind()).window(3).first()
        inner = window.map(lambda element: element)
        recorder = subscribed(rsf.range_(1).flat_map(lambda _n, inner=inner: inner))
        with step.meanwhile(recorder.subscription.cancel):
            recorder.subscription.request(3)
            over.set()
        assert recorder.terminal is None or len(recorder.elements) == 3, step
        recorder.check()
