"""How often the garbage collector runs while calls are in flight."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rstreams_fast.calls.collector import YoungObjects


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 9, 8)
    yield before
    gc.set_threshold(*before)


def test_the_most_calls_at_work_decide_and_the_last_leaves_what_was() -> None:
    few, many, most = YoungObjects(1), YoungObjects(1000), YoungObjects(10**6)
    with few:
        assert gc.get_threshold() == (700, 9, 8)
        with many:
            assert gc.get_threshold() == (40_000, 9, 8)
            with most:
                assert gc.get_threshold() == (100_000, 9, 8)
            assert gc.get_threshold() == (40_000, 9, 8)
    assert gc.get_threshold() == (700, 9, 8)


def test_they_may_leave_in_any_order() -> None:
    few, many = YoungObjects(100), YoungObjects(1000)
    few.__enter__()
    many.__enter__()
    few.__exit__()
    assert gc.get_threshold() == (40_000, 9, 8)
    many.__exit__()
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("own", [(0, 9, 8), (5, 5, 5)])
def test_what_a_user_sets_stays(own: tuple[int, int, int]) -> None:
    with YoungObjects(1000):
        gc.set_threshold(*own)
        with YoungObjects(2000):
            assert gc.get_threshold() == own
    assert gc.get_threshold() == own
    if not own[0]:
        with YoungObjects(1000):
            assert gc.get_threshold() == own
