"""last, count, any, all, their twins for coroutines, and transform."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread
from tests.rules.probes import ManualPublisher


def positive(n: int) -> bool:
    return n > 0


def test_the_last_of_none_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="the stream is empty"):
        rsf.empty().last()


@pytest.mark.parametrize(("name", "element"), [("any", 1), ("all", 0)])
def test_the_first_that_decides_is_enough(name: str, element: int) -> None:
    above = ManualPublisher()
    answer = start_thread(lambda: getattr(rsf.from_publisher(above), name)(positive))
    above.wait_requested(1)
    above.subscriber.on_next(element)
    assert answer.result() is (name == "any")
    assert above.cancels == 1


@pytest.mark.parametrize("name", ["any", "all", "transform"])
def test_bad_arguments_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\w+\): \w+ must be callable, got int"):
        getattr(rsf.range_(1), name)(3)


def test_transform_calls_a_function_of_the_stream_at_once() -> None:
    halve: Callable[[rsf.Stream[int]], rsf.Stream[float]] = lambda s: s.map(lambda n: n / 2)  # noqa: E731
    assert rsf.range_(3).transform(halve).to_list() == [0, 0.5, 1]
    assert rsf.range_(3).transform(rsf.Stream.count) == 3
