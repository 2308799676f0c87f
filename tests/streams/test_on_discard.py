"""on_discard: each element is delivered, or the hook is called for it, once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

NUMBERS = rsf.from_iterable([10, 11, 12, 13, 14, 15])


def hooked(stream: rsf.Stream[Any], request: Any = ...) -> tuple[Recorder, list[Any]]:
    """A subscriber that has asked for so much, and what is discarded above it."""
    discarded: list[Any] = []
    return subscribed(stream.on_discard(discarded.append), request), discarded


def test_the_inner_publishers_leftovers_are_discarded_when_it_ends_and_not_later() -> None:
    outer, a = ManualPublisher(), ManualPublisher()
    recorder, discarded = hooked(rsf.from_publisher(outer).switch_map(lambda s: s), 9)
    send(outer, rsf.from_publisher(a).batch(3))
    send(a, 1, 2)
    send(outer, rsf.never())
    assert sorted(discarded) == [1, 2]
    recorder.subscription.cancel()
    assert sorted(discarded) == [1, 2]


@pytest.mark.parametrize("strategy", rsf.Overflow)
def test_what_comes_to_an_overflow_after_the_end_is_discarded(strategy: rsf.Overflow) -> None:
    source = ManualPublisher()
    recorder, discarded = hooked(rsf.from_publisher(source).on_overflow(strategy), 9)
    send(source, 1)
    recorder.subscription.cancel()
    send(source, 2)  # which was under way
    assert recorder.elements == [1]
    assert discarded == [2]


def test_the_hook_below_gets_what_leaves_the_one_above() -> None:
    above: list[int] = []
    below: list[int] = []
    stream = NUMBERS.filter(lambda x: x > 11).on_discard(above.append).filter(lambda x: x > 13)
    assert stream.on_discard(below.append).to_list() == [14, 15]
    assert (above, below) == ([10, 11], [12, 13])


def test_what_a_hook_raises_is_made_known_and_ends_nothing(unraisable: list[Any]) -> None:
    stream = NUMBERS.filter(lambda x: x > 12).on_discard(lambda x: 1 // 0)
    assert stream.to_list() == [13, 14, 15]
    assert [given.exc_type for given in unraisable] == [ZeroDivisionError] * 3


def test_an_element_that_is_cancelled_while_a_function_uses_it_waits_for_the_function() -> None:
    """The hook may free what the function reads."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(_x: int) -> bool:
        inside.set()
        wait_for(go_on)
        assert discarded == []
        return True

    recorder, discarded = hooked(NUMBERS.filter(slow))
    asking = start_thread(lambda: recorder.subscription.request(1))
    wait_for(inside)
    recorder.subscription.cancel()
    go_on.set()
    asking.result(DEADLINE)
    assert (recorder.elements, discarded) == ([], [10])


def test_an_element_that_comes_several_times_is_discarded_as_often() -> None:
    same, source = object(), ManualPublisher()
    recorder, discarded = hooked(rsf.from_publisher(source).on_overflow(rsf.Overflow.BUFFER), 1)
    send(source, same, same, same)
    recorder.subscription.cancel()
    send(source, same)
    assert (recorder.elements, discarded) == ([same], [same] * 3)


@pytest.mark.parametrize("seed", [["seed"], []])
def test_a_seed_is_no_element(seed: list[str]) -> None:
    recorder, discarded = hooked(rsf.from_iterable("abc").reduce(fails, *seed), 1)
    assert isinstance(recorder.error, LookupError)
    assert discarded == (["a"] if seed else ["a", "b"])


def fails(*_: object) -> Any:
    raise LookupError


async def fails_later(_: object) -> Any:
    raise LookupError


#: What drops elements that others use, too.
DROPS: dict[str, Callable[[rsf.Stream[Any]], rsf.Stream[Any]]] = {
    "filter": lambda s: s.filter(lambda n: n == 12),
    "skip": lambda s: s.skip(2),
    "distinct": lambda s: s.distinct(lambda n: n % 2, max_keys=9),
    "map": lambda s: s.map(fails),
    "scan": lambda s: s.scan(fails),
    "flat_map": lambda s: s.flat_map(fails),
    "map_async": lambda s: s.map_async(fails_later),
    "map_blocking": lambda s: s.map_blocking(fails),
    "merge": lambda s: s.merge(rsf.never()).take(1),
    "on_discard": lambda s: s.on_discard(print).filter(lambda n: n == 12),
    "publish_on": lambda s: s.publish_on("caller").take(1),
}


@pytest.mark.parametrize("name", DROPS)
@pytest.mark.parametrize("of", ["multicast", "window"])
def test_elements_that_others_use_are_not_discarded(name: str, of: str) -> None:
    if of == "multicast":
        shared = NUMBERS.multicast(min_subscribers=2)
        recorder, discarded = hooked(DROPS[name](shared), rsf.UNBOUNDED)
        assert shared.to_list() == NUMBERS.to_list()
    else:
        windows = NUMBERS.take(3).window(3, skip=1).flat_map(DROPS[name])
        recorder, discarded = hooked(windows, rsf.UNBOUNDED)
    if name != "merge" or of == "multicast":
        recorder.wait_terminal()
    recorder.subscription.cancel()
    assert discarded == []


#: The first part of a stream that goes on when no other part is wanted.
FIRST_PART: dict[str, Callable[[rsf.Stream[int]], rsf.Stream[Any]]] = {
    "window": lambda s: s.window(3),
    "overlapping windows": lambda s: s.window(3, skip=1),
    "window_time": lambda s: s.window_time(DEADLINE),
    "group_by": lambda s: s.group_by(bool),
}


@pytest.mark.parametrize("name", FIRST_PART)
def test_functions_above_an_open_part_are_called_though_no_other_part_is_wanted(name: str) -> None:
    odd = NUMBERS.map(lambda n: n + 1).filter(lambda n: n % 2)
    stream = FIRST_PART[name](odd).take(1).flat_map(lambda part: part)
    recorder, discarded = hooked(stream, rsf.UNBOUNDED)
    recorder.wait_terminal()
    assert recorder.elements == [11, 13, 15]
    assert discarded in ([12, 14], [12, 14, 16])  # a window is full before the last number


def test_what_waits_above_an_open_window_is_discarded_when_its_subscriber_leaves() -> None:
    source = ManualPublisher()
    buffer = rsf.from_publisher(source).publish_on("caller")
    windows = buffer.window(9).take(1).flat_map(lambda window: window, prefetch=1)
    recorder, discarded = hooked(windows, 1)
    send(source, 1)
    assert (recorder.elements, discarded) == ([1], [])
    recorder.subscription.cancel()
    send(source, 2)  # which was under way
    assert (recorder.elements, discarded) == ([1], [2])


@pytest.mark.parametrize("collection", [list, iter])
def test_the_items_of_what_others_use_are_not_discarded(collection: Any) -> None:
    shared = rsf.from_iterable([collection([1, 2, 3])]).multicast(min_subscribers=2)
    recorder, discarded = hooked(shared.unbatch(), 1)
    subscribed(shared, 1)
    recorder.subscription.cancel()
    assert (recorder.elements, discarded) == ([1], [])


@pytest.mark.parametrize(
    "collection",
    [
        *(list, tuple, set, frozenset, deque, dict.fromkeys),
        lambda items: dict.fromkeys(items).keys(),
        lambda items: dict(enumerate(items)).values(),
    ],
)
def test_the_rest_of_a_collection_is_discarded_if_unbatch_stops_within_it(collection: Any) -> None:
    discarded: list[int] = []
    stream = rsf.from_iterable([collection([1, 2, 3])]).unbatch().take(1)
    assert stream.on_discard(discarded.append).to_list() == [1]
    assert discarded == [2, 3]


@pytest.mark.parametrize("collection", [iter, np.array, lambda items: dict.fromkeys(items).items()])
def test_the_rest_of_another_iterable_is_not_discarded(collection: Any) -> None:
    discarded: list[Any] = []
    stream = rsf.from_iterable([collection([1, 2, 3])]).unbatch().take(1)
    assert len(stream.on_discard(discarded.append).to_list()) == 1
    assert discarded == []


@pytest.mark.parametrize("collection", [list, iter])
def test_none_is_not_discarded(collection: Any) -> None:
    recorder, discarded = hooked(rsf.from_iterable([collection([1, None, 2])]).unbatch(), 9)
    with pytest.raises(TypeError, match="None"):
        raise recorder.error
    assert None not in discarded
