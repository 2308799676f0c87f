"""The demand counter, sentence by sentence."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import CANCELLED, TERMINATED
from rstreams_fast.errors import DemandExceededError, InvalidRequestError, InvalidRequestTypeError
from tests.helpers import run_threads, start_thread


def test_it_counts_saturates_refuses_and_ends(core: Any) -> None:
    demand = core.DemandCounter(1)
    assert [demand.request(3), demand.request(1), demand.fulfil(), demand.fulfil(2)] == [1, 4, 4, 2]
    for n, refused in ((0, InvalidRequestError), (True, InvalidRequestTypeError)):  # §3.9
        with pytest.raises(refused, match=r"§3.9"):
            demand.request(n)
    with pytest.raises(DemandExceededError, match=r"§1.1: 3 elements delivered, only 2"):
        demand.fulfil(3)
    assert demand.pending == 2
    assert demand.request(UNBOUNDED) == 2  # §3.17
    assert demand.fulfil(10**40) == demand.value == UNBOUNDED
    assert [demand.terminate(), demand.cancel()] == [True, False]
    assert demand.request(-1) == demand.fulfil(9) == demand.value == TERMINATED  # §3.6
    assert demand.pending == 0


def test_spec308_no_request_is_lost_between_threads(core: Any) -> None:
    demand = core.DemandCounter()

    def request() -> int:
        return sum(demand.request(2) == 0 for _ in range(2000))

    def fulfil() -> int:
        taken = 0
        while taken < 4000:
            try:
                demand.fulfil(3)
            except DemandExceededError:
                continue
            taken += 3
        return taken

    *zeros, taken = run_threads([request, request, fulfil])
    assert demand.value == 8000 - taken
    assert sum(zeros) >= 1


def test_only_one_thread_ends_it(core: Any) -> None:
    for _ in range(50):
        demand = core.DemandCounter(1)
        ended = run_threads([demand.cancel, demand.terminate, demand.cancel])
        assert ended.count(True) == 1
        assert demand.value == (TERMINATED if ended[1] else CANCELLED)


def test_a_number_that_asks_the_counter_itself(core: Any) -> None:
    """``__index__`` is user code: no lock may be held while it runs."""
    counter = core.DemandCounter()

    class Asking:
        def __index__(self) -> int:
            counter.request(1)
            return 2

    assert counter.request(Asking()) in {0, 1}  # before, or after, what it asked itself
    assert counter.value == 3


@pytest.mark.parametrize("method", ["request", "fulfil"])
def test_a_signal_handler_may_end_it_in_the_middle_of_a_call(core: Any, method: str) -> None:
    """Handlers, and the collector, run where something is called or returns."""

    def ended_at(place: int) -> bool:
        counter, passed = core.DemandCounter(5), 0

        def look(_frame: object, _event: str, _arg: object) -> None:
            nonlocal passed
            passed += 1
            if passed == place:
                counter.cancel()

        sys.setprofile(look)
        try:
            getattr(counter, method)(1)
        finally:
            sys.setprofile(None)
        if passed < place:
            return False
        assert counter.cancelled, f"it was lost at place {place}"
        return True

    def everywhere() -> int:
        place = 1
        while ended_at(place):
            place += 1
        return place

    # In a thread of its own: one that waits for itself does so for ever.
    assert start_thread(everywhere).result() > 1
