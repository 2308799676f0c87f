"""The demand counter, sentence by sentence."""

from __future__ import annotations

import copy
import pickle
import sys
import weakref
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import CANCELLED, TERMINATED
from rstreams_fast.errors import DemandExceededError, InvalidRequestError, InvalidRequestTypeError
from tests.core.conftest import load
from tests.helpers import run_threads, start_thread


class Index:
    """An integer by its ``__index__``, as numpy's are."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def test_starts_at_the_initial_demand(core: Any) -> None:
    assert core.DemandCounter().value == 0
    assert core.DemandCounter(7).value == 7
    assert core.DemandCounter(UNBOUNDED + 1).value == UNBOUNDED


@pytest.mark.parametrize(
    ("initial", "raises"), [(-1, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)]
)
def test_initial_is_checked_and_named(core: Any, initial: Any, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="initial"):
        core.DemandCounter(initial)


def test_request_returns_the_demand_before_it(core: Any) -> None:
    demand = core.DemandCounter()
    assert [demand.request(3), demand.request(Index(4)), demand.request(1)] == [0, 3, 7]
    assert demand.value == demand.pending == 8


@pytest.mark.parametrize("n", [UNBOUNDED, UNBOUNDED + 1, 10**40])
def test_spec317_demand_saturates_and_stays(core: Any, n: int) -> None:
    demand = core.DemandCounter(5)
    assert demand.request(n) == 5
    assert demand.value == UNBOUNDED
    assert demand.request(1) == UNBOUNDED
    assert demand.fulfil(10**40) == UNBOUNDED
    assert demand.fulfil() == UNBOUNDED
    assert demand.value == UNBOUNDED


def test_spec317_a_sum_that_overflows_saturates(core: Any) -> None:
    demand = core.DemandCounter(UNBOUNDED - 1)
    demand.request(2)
    assert demand.value == UNBOUNDED


@pytest.mark.parametrize("n", [0, -1, -(10**40), Index(0)])
def test_spec309_request_of_nothing_is_a_value_error(core: Any, n: Any) -> None:
    demand = core.DemandCounter(2)
    with pytest.raises(InvalidRequestError, match=r"§3.9"):
        demand.request(n)
    assert demand.value == 2


@pytest.mark.parametrize("n", [True, 1.0, "1", None])
def test_spec309_request_of_no_int_is_a_type_error(core: Any, n: Any) -> None:
    demand = core.DemandCounter(2)
    with pytest.raises(InvalidRequestTypeError, match=r"§3.9"):
        demand.request(n)
    assert demand.value == 2


@pytest.mark.parametrize(("end", "sentinel"), [("cancel", CANCELLED), ("terminate", TERMINATED)])
def test_spec306_everything_after_the_end_is_a_nop(core: Any, end: str, sentinel: int) -> None:
    demand = core.DemandCounter(9)
    assert getattr(demand, end)() is True
    assert demand.request(1) == demand.request(-1) == demand.request("x") == sentinel
    assert demand.fulfil(100) == sentinel
    assert demand.cancel() is False
    assert demand.terminate() is False
    assert demand.value == sentinel
    assert demand.pending == 0
    assert demand.cancelled is (end == "cancel")
    assert demand.terminated is (end == "terminate")


def test_fulfil_returns_what_is_left(core: Any) -> None:
    demand = core.DemandCounter(5)
    assert [demand.fulfil(), demand.fulfil(2), demand.fulfil(0), demand.fulfil(2)] == [4, 2, 2, 0]


@pytest.mark.parametrize("n", [4, 2**63, 10**40])
def test_spec101_delivering_more_than_requested_raises_and_changes_nothing(
    core: Any, n: int
) -> None:
    demand = core.DemandCounter(3)
    with pytest.raises(DemandExceededError, match=rf"§1.1: {n} elements delivered, only 3"):
        demand.fulfil(n)
    assert demand.value == 3


def test_more_than_was_requested_is_named_whatever_it_is(core: Any) -> None:
    demand = core.DemandCounter(3)
    with pytest.raises(DemandExceededError, match="5 elements delivered"):
        demand.fulfil(Index(5))
    with pytest.raises(DemandExceededError, match=r"an int of \d+ bits"):
        demand.fulfil(10**5000)  # which has more digits than Python writes
    assert demand.value == 3


@pytest.mark.parametrize(("n", "raises"), [(-1, ValueError), (1.5, TypeError), (False, TypeError)])
def test_fulfil_checks_its_argument(core: Any, n: Any, raises: type[Exception]) -> None:
    demand = core.DemandCounter(3)
    with pytest.raises(raises):
        demand.fulfil(n)
    assert demand.value == 3


def test_repr_says_the_state(core: Any) -> None:
    demand = core.DemandCounter(3)
    assert repr(demand) == "<DemandCounter 3>"
    demand.request(UNBOUNDED)
    assert repr(demand) == "<DemandCounter unbounded>"
    demand.terminate()
    assert repr(demand) == "<DemandCounter terminated>"
    demand = core.DemandCounter(3)
    demand.cancel()
    assert repr(demand) == "<DemandCounter cancelled>"


def test_is_weakly_referenced_and_not_copied(core: Any) -> None:
    demand = core.DemandCounter()
    assert weakref.ref(demand)() is demand
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="live object"):
            duplicate(demand)


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


def test_who_holds_its_lock_may_come_back_for_it() -> None:
    counter = load("python").DemandCounter(5)

    def come_back() -> bool:
        with counter._lock:  # a handler comes just when it was taken
            return counter.cancel()

    assert start_thread(come_back).result()
