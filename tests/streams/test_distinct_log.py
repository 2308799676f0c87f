"""``distinct``, with and without a bound, and ``log``."""

from __future__ import annotations

import logging
import random

import pytest

import rstreams_fast as rsf
from tests.rules.probes import subscribed


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_the_key_that_was_not_seen_for_the_longest_is_new_again(bound: int) -> None:
    chosen = random.Random(7).choices(range(8), k=500)
    known: list[int] = []
    expected = []
    for n in chosen:
        if n in known:
            known.remove(n)
        else:
            expected.append(n)
        known = [*known, n][-bound:]
    assert rsf.from_iterable(chosen).distinct(max_keys=bound).to_list() == expected


def test_each_signal_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "numbers"):
        stream = rsf.range_(2).log("numbers", level=logging.INFO)
        assert stream.to_list() == [0, 1]
        with pytest.raises(LookupError):
            rsf.error(LookupError("no")).log("numbers", level=logging.INFO).to_list()
        subscribed(stream).subscription.request("1")
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("on_subscribe(")
    assert said[1].startswith("request(")
    assert said[2:5] == ["on_next(0)", "on_next(1)", "on_complete()"]
    assert "on_error(LookupError('no'))" in said
    assert "request('1')" in said


def test_a_level_that_is_left_out_adds_nothing() -> None:
    stream = rsf.range_(2)
    assert stream.log("quiet") is stream


def test_each_subscriber_and_each_retry_remembers_for_itself() -> None:
    stream = rsf.from_iterable([1, 1, 2]).distinct_until_changed()
    assert [stream.to_list() for _ in range(2)] == [[1, 2]] * 2
    fails = iter([True, False])

    def source(x: int) -> int:
        if x == 2 and next(fails):
            raise ValueError
        return x

    again = rsf.from_iterable([1, 1, 2]).map(source).distinct_until_changed().retry()
    assert again.to_list() == [1, 1, 2]  # the second attempt does not know of the first


def test_the_same_object_is_equal_without_being_compared() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

        __hash__ = None  # type: ignore[assignment]

    for one in (Hostile(), float("nan")):
        assert rsf.from_iterable([one, one]).distinct_until_changed().count() == 1
