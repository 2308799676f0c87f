"""last, count, any, all, their twins for coroutines, and transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread
from tests.rules.probes import ManualPublisher


def positive(n: int) -> bool:
    return n > 0


CASES: dict[str, tuple[str, tuple[Any, ...], rsf.Stream[int], Any]] = {
    "the last": ("last", (), rsf.range_(3), 2),
    "the last, not the default": ("last", (7,), rsf.range_(3), 2),
    "the default": ("last", (7,), rsf.empty(), 7),
    "the count": ("count", (), rsf.range_(3), 3),
    "a count of none": ("count", (), rsf.empty(), 0),
    "one": ("any", (positive,), rsf.range_(3), True),
    "not one": ("any", (positive,), rsf.range_(1), False),
    "one of none": ("any", (positive,), rsf.empty(), False),
    "all": ("all", (positive,), rsf.range_(1, 3), True),
    "not all": ("all", (positive,), rsf.range_(3), False),
    "all of none": ("all", (positive,), rsf.empty(), True),
}
each = pytest.mark.parametrize("case", CASES)
name_of_each = pytest.mark.parametrize(
    ("name", "args"), [("last", ()), ("count", ()), ("any", (positive,)), ("all", (positive,))]
)


@each
def test_what_it_says(case: str) -> None:
    name, args, stream, expected = CASES[case]
    assert getattr(stream, name)(*args) == expected


@each
async def test_its_twin_says_the_same(case: str) -> None:
    name, args, stream, expected = CASES[case]
    assert await getattr(stream, f"{name}_async")(*args) == expected


@name_of_each
def test_an_error_is_raised_as_itself(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="above"):
        getattr(rsf.error(ValueError("above")), name)(*args)


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


@name_of_each
async def test_in_a_loop_it_names_its_twin(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError, match=f"await {name}_async"):
        getattr(rsf.range_(1), name)(*args)


@pytest.mark.parametrize("name", ["any", "all", "transform"])
def test_bad_arguments_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\w+\): \w+ must be callable, got int"):
        getattr(rsf.range_(1), name)(3)


def test_transform_calls_a_function_of_the_stream_at_once() -> None:
    halve: Callable[[rsf.Stream[int]], rsf.Stream[float]] = lambda s: s.map(lambda n: n / 2)  # noqa: E731
    assert rsf.range_(3).transform(halve).to_list() == [0, 0.5, 1]
    assert rsf.range_(3).transform(rsf.Stream.count) == 3
