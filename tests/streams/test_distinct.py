"""distinct_until_changed: what equals the one before it is dropped, for each subscriber alone."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Element
from tests.rules.probes import ManualPublisher, Recorder, subscribed


def test_each_subscriber_and_each_retry_remembers_for_itself() -> None:
    stream = rsf.from_iterable([1, 1, 2]).distinct_until_changed()
    first, second = Recorder(request=1), Recorder(request=1)
    stream.subscribe(first)
    stream.subscribe(second)
    first.subscription.request(5)
    second.subscription.request(5)
    assert first.elements == second.elements == [1, 2]

    fails = iter([True, False])

    def source(x: int) -> int:
        if x == 2 and next(fails):
            raise ValueError
        return x

    again = rsf.from_iterable([1, 1, 2]).map(source).distinct_until_changed().retry()
    assert again.to_list() == [1, 1, 2]  # the second attempt does not know of the first


class Hostile:
    """Its ``==`` raises."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("hostile")

    __hash__ = None  # type: ignore[assignment]


def test_the_same_object_is_equal_without_being_compared() -> None:
    one = Hostile()
    nan = float("nan")
    assert rsf.from_iterable([one, one]).distinct_until_changed().to_list() == [one]
    assert len(rsf.from_iterable([nan, nan]).distinct_until_changed().to_list()) == 1


def test_a_comparison_that_raises_ends_the_stream_and_names_the_stage() -> None:
    recorder = subscribed(rsf.from_iterable([Hostile(), Hostile()]).distinct_until_changed(), 9)
    assert isinstance(recorder.error, ZeroDivisionError)
    assert "distinct_until_changed" in recorder.error.__notes__[0]
    assert len(recorder.elements) == 1
    recorder.check()


def test_a_result_of_comparing_that_is_neither_true_nor_false_ends_the_stream() -> None:
    class Many:
        def __eq__(self, other: object) -> Any:
            return self

        __hash__ = None  # type: ignore[assignment]

        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    recorder = subscribed(rsf.from_iterable([Many(), Many()]).distinct_until_changed(), 9)
    assert isinstance(recorder.error, ValueError)
    assert "distinct_until_changed" in recorder.error.__notes__[0]


def test_a_key_may_be_none_and_what_it_raises_ends_the_stream() -> None:
    assert rsf.range_(3).distinct_until_changed(lambda _x: None).to_list() == [0]
    with pytest.raises(ZeroDivisionError):
        rsf.range_(3).distinct_until_changed(lambda x: 1 // (x - 1)).to_list()


def test_a_key_must_be_a_function_that_is_not_a_coroutine_function() -> None:
    async def key(_x: int) -> int:
        return 1

    with pytest.raises(TypeError, match="key must be callable, got int"):
        rsf.range_(3).distinct_until_changed(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key must be a plain function"):
        rsf.range_(3).distinct_until_changed(key)


def test_after_a_cancel_it_keeps_no_element() -> None:
    upstream = ManualPublisher()
    recorder = subscribed(rsf.from_publisher(upstream).distinct_until_changed(), 5)
    thing = Element()
    gone = weakref.ref(thing)
    upstream.subscriber.on_next(thing)
    recorder.signals.clear()
    recorder.subscription.cancel()
    del thing
    assert gone() is None
