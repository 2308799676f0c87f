"""``distinct`` with a bound, and ``log``."""

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


def test_what_cannot_be_a_key_ends_the_stream() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        rsf.from_iterable([[1]]).distinct(max_keys=1).to_list()
    with pytest.raises(ValueError, match="max_keys must be >= 1"):
        rsf.range_(1).distinct(max_keys=0)


def test_each_signal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "numbers"):
        stream = rsf.range_(2).log("numbers", level=logging.INFO)
        assert stream.to_list() == [0, 1]
        with pytest.raises(LookupError):
            rsf.error(LookupError("no")).log("numbers", level=logging.INFO).to_list()
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("on_subscribe(")
    assert said[1].startswith("request(")
    assert said[2:5] == ["on_next(0)", "on_next(1)", "on_complete()"]
    assert "on_error(LookupError('no'))" in said


def test_a_request_of_no_int_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "numbers"):
        publisher = rsf.range_(2).log("numbers", level=logging.INFO)
        subscribed(publisher).subscription.request("1")  # type: ignore[arg-type]
    assert "request('1')" in [record.getMessage() for record in caplog.records]


def test_a_level_that_is_left_out_adds_nothing() -> None:
    stream = rsf.range_(2)
    assert stream.log("quiet") is stream
