"""``on_error_continue``: an element that a stage fails for is left out, once, and told of."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rsf


def inverse(n: int) -> float:
    return 1 / n


def none_for_one(n: int) -> int | None:
    return None if n == 1 else n


def refuse(error: Exception, _element: Any) -> None:
    raise LookupError from error


def ignore(_error: Exception, _element: Any) -> None:
    pass


@pytest.mark.parametrize("boundary", [False, True], ids=["pulled", "pushed"])
def test_the_stages_above_go_on(boundary: bool) -> None:
    failed: list[tuple[str, Any]] = []
    numbers = rsf.from_iterable([2, 0, 4, "x", 8])
    stream = (
        (numbers.publish_on("caller") if boundary else numbers)
        .filter(lambda n: n < 9)
        .map(inverse)
        .on_error_continue(lambda error, n: failed.append((type(error).__name__, n)))
    )
    assert stream.to_list() == [0.5, 0.25, 0.125]
    assert failed == [("ZeroDivisionError", 0), ("TypeError", "x")]


def test_none_is_a_failure_of_map_alone() -> None:
    failed: list[Any] = []
    stream = rsf.range_(3).map(lambda n: n or None)
    continued = stream.on_error_continue(lambda error, n: failed.append((str(error), n)))
    assert continued.to_list() == [1, 2]
    assert failed == [("map: the function returned None, which is not an element (§2.13)", 0)]
    quiet = rsf.range_(3).map_not_none(lambda n: n or None).on_error_continue(lambda *_: 1 / 0)
    assert quiet.to_list() == [1, 2]


def test_a_stage_that_goes_on_already_is_left_to_the_first() -> None:
    stream = rsf.range_(3).map(inverse).on_error_continue(refuse).filter(bool)
    with pytest.raises(LookupError):
        stream.on_error_continue(ignore).to_list()


def test_a_thousand_in_a_row_do_not_nest() -> None:
    stream: rsf.Stream[Any] = rsf.range_(3)
    for _ in range(1000):
        stream = stream.map(abs).on_error_continue(ignore)
    assert stream.to_list() == [0, 1, 2]


def test_other_failures_end_the_stream() -> None:
    with pytest.raises(LookupError):  # the source's
        rsf.error(LookupError()).map(inverse).on_error_continue(ignore).to_list()
    with pytest.raises(ZeroDivisionError):  # of a stage below
        rsf.range_(1).map(str).on_error_continue(ignore).map(lambda _: 1 / 0).to_list()
    with pytest.raises(KeyError):  # the handler's
        rsf.range_(1).map(inverse).on_error_continue(lambda *_: {}[1]).to_list()
    with pytest.raises(KeyboardInterrupt):
        rsf.range_(1).map(_interrupted).on_error_continue(ignore).to_list()


def _interrupted(_n: int) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "stream", [rsf.range_(1), rsf.range_(1).map(str).take(1), rsf.range_(1).publish_on()], ids=str
)
def test_it_says_where_it_goes(stream: rsf.Stream[Any]) -> None:
    with pytest.raises(ValueError, match="directly below map, map_not_none or filter"):
        stream.on_error_continue(ignore)


def test_a_result_of_filter_that_is_neither_true_nor_false_is_a_failure() -> None:
    failed: list[Any] = []
    stream = rsf.range_(2).filter(lambda n: np.array([1] * (n + 1)))
    continued = stream.on_error_continue(lambda error, n: failed.append((type(error), n)))
    assert (continued.to_list(), failed) == ([0], [(ValueError, 1)])


@pytest.mark.parametrize(
    ("stage", "expected"), [("map", [0, 2]), ("map_not_none", [0, 2]), ("filter", [2])]
)
def test_it_travels_with_its_stage_and_names_the_function(stage: str, expected: list[int]) -> None:
    stream = getattr(rsf.range_(3), stage)(none_for_one)
    continued = stream.on_error_continue(ignore)
    assert "none_for_one" in continued.describe()
    assert pickle.loads(pickle.dumps(continued)).to_list() == expected
    refused = pickle.loads(pickle.dumps(stream.on_error_continue(refuse)))
    if stage == "map":  # of which None is a failure
        with pytest.raises(LookupError):
            refused.to_list()
    else:
        assert refused.to_list() == expected
