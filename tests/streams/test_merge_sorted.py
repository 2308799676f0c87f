"""merge_sorted: order, ties, demand, bounds, the end, errors of keys."""

from __future__ import annotations

from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, send, subscribed

UNBOUNDED = rsf.UNBOUNDED


@pytest.mark.parametrize("reverse", [False, True])
def test_of_equal_keys_those_of_the_earlier_publisher_come_first(reverse: bool) -> None:
    pairs = [rsf.from_iterable([(1, name), (1, name)]) for name in "abc"]
    merged = rsf.merge_sorted(*pairs, key=lambda pair: pair[0], reverse=reverse, prefetch=1)
    assert [name for _, name in merged.to_list()] == list("aabbcc")


def test_without_a_key_the_elements_are_compared() -> None:
    letters = rsf.from_iterable("dca")
    assert letters.merge_sorted(rsf.from_iterable("eb"), reverse=True).to_list() == list("edcba")
    assert rsf.merge_sorted().to_list() == []


def test_an_unsorted_publisher_is_merged_as_it_is() -> None:
    assert rsf.from_iterable([5, 1]).merge_sorted(rsf.range_(3)).to_list() == [0, 1, 2, 5, 1]


def test_an_element_waits_until_each_publisher_that_is_not_over_has_one() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.merge_sorted(a, b), UNBOUNDED)
    send(a, 1, 4)
    assert recorder.elements == []
    send(b, 2)
    assert recorder.elements == [1, 2]
    send(a, 5)
    assert recorder.elements == [1, 2]
    b.subscriber.on_complete()
    assert recorder.elements == [1, 2, 4, 5]
    send(a, 6)
    a.subscriber.on_complete()
    assert recorder.signals[-2:] == [("on_next", 6), ("on_complete",)]
    recorder.check()


def test_the_key_is_called_once_for_each_element_and_not_before_the_subscriber_asks() -> None:
    keys: list[int] = []

    def key(element: int) -> int:
        keys.append(element)
        return element

    recorder = subscribed(rsf.merge_sorted(rsf.range_(3), rsf.range_(3, 5), key=key), 1)
    assert sorted(keys) == [0, 3]
    recorder.subscription.request(1)
    assert sorted(keys) == [0, 1, 3]
    recorder.subscription.request(UNBOUNDED)
    assert (recorder.elements, sorted(keys)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_it_completes_with_its_last_element_without_another_request() -> None:
    recorder = subscribed(rsf.merge_sorted(rsf.range_(1), rsf.empty(), rsf.range_(1, 2)), 2)
    assert recorder.signals[1:] == [("on_next", 0), ("on_next", 1), ("on_complete",)]


def test_an_error_overtakes_the_elements_that_wait_and_cancels_the_others() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    error = ValueError("b")
    recorder = subscribed(rsf.merge_sorted(a, b), UNBOUNDED)
    send(a, 1)
    b.subscriber.on_error(error)
    assert recorder.signals[1:] == [("on_error", error)]
    assert (a.cancels, b.cancels) == (1, 0)


@pytest.mark.parametrize("key", [None, lambda x: 1 / x if x == 0 else x], ids=["compare", "key"])
def test_what_a_key_or_a_comparison_raises_comes_after_the_elements_before_it(key: Any) -> None:
    numbers: list[Any] = [1, 2, 0 if key else "3"]
    a = ManualPublisher()
    recorder = subscribed(rsf.from_iterable(numbers).merge_sorted(a, key=key), UNBOUNDED)
    send(a, 9)
    assert recorder.elements == [1, 2]
    assert isinstance(recorder.terminal[1], ZeroDivisionError if key else TypeError)
    assert a.cancels == 1
