"""batch by number, time and weight: each batch leaves when it should, and nothing more is held."""

from __future__ import annotations

from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import Clock, ManualPublisher, raising, send, subscribed
from tests.stepping import steps


class Setup:
    """A publisher and a clock in hand, and a subscriber that records."""

    def __init__(self, n: int, request: int, *, timed: bool = True, **options: Any) -> None:
        self.timer = Clock()
        self.publisher = ManualPublisher()
        if timed:
            options |= {"seconds": 10, "timer": self.timer}
        self.recorder = subscribed(rsf.from_publisher(self.publisher).batch(n, **options), request)
        self.request = self.recorder.subscription.request
        self.cancel = self.recorder.subscription.cancel

    def next(self, *elements: Any) -> None:
        send(self.publisher, *elements)

    @property
    def batches(self) -> list[list[Any]]:
        return self.recorder.elements


@pytest.fixture(autouse=True)
def _no_thread_stays(no_leaked_threads: None) -> None:
    """A worker that hands over batches ends with its stream."""


def weigh(element: int) -> int:
    return element


# -- demand ----------------------------------------------------------------------------------------
def test_with_more_demand_more_is_asked_for_as_batches_leave() -> None:
    setup = Setup(3, request=rsf.UNBOUNDED)
    setup.next(1, 2)
    assert setup.publisher.requests == [3]
    setup.next(3)
    setup.next(4, 5, 6)
    assert setup.publisher.requests == [3, 3, 3]
    assert setup.batches == [[1, 2, 3], [4, 5, 6]]


def test_without_demand_no_more_than_one_batch_is_held() -> None:
    setup = Setup(4, request=1)
    setup.next(1)
    setup.timer.advance(10)
    assert setup.batches == [[1]]
    setup.next(2, 3, 4)  # they were asked for
    setup.timer.advance(100)
    assert setup.batches == [[1]]
    assert setup.publisher.requests == [4]
    setup.request(1)
    assert setup.batches == [[1], [2, 3, 4]]  # its time was up long ago
    setup.request(1)
    assert setup.publisher.requested == 8  # all 4 that have left came out of 4, and 4 more
    setup.cancel()
    setup.recorder.check()


# -- time ------------------------------------------------------------------------------------------

#: How long a batch is, how many are asked for, and what happens: seconds that pass, elements that
#: come, a request; and in lists the batches that have left by then.
TIMES: dict[str, tuple[int, int, list[Any]]] = {
    "ten seconds after the first, whenever the others came": (
        5, 9, [100, (1,), 4, (2,), 5.9, [], 0.1, [[1, 2]], (3,), 10, [[1, 2], [3]]]
    ),
    "one that left early leaves its time to nobody": (
        2, 9, [(1,), 9, (2, 3), 9, [[1, 2]], 1, [[1, 2], [3]]]
    ),
    "from when an element came, not from when it was asked for": (
        2, 1, [(1,), 10, [[1]], (2,), 7, "request", 2.9, [[1]], 0.1, [[1], [2]]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMES)
def test_a_batch_leaves_when_its_time_is_up(name: str) -> None:
    n, wanted, happens = TIMES[name]
    setup = Setup(n, request=wanted)
    for what in happens:
        if isinstance(what, tuple):
            setup.next(*what)
        elif isinstance(what, list):
            assert setup.batches == what
        elif what == "request":
            setup.request(1)
        else:
            setup.timer.advance(what)
    setup.cancel()
    setup.recorder.check()


def test_a_batch_asked_for_has_its_time_though_an_element_comes_at_that_moment() -> None:
    for step in steps():
        setup = Setup(5, request=1)
        setup.next(1)
        setup.timer.advance(10)
        setup.next(2)
        with step.meanwhile(lambda s=setup: s.next(3)):
            setup.request(1)
        assert setup.timer.pending == 1, step
        setup.timer.advance(10)
        assert setup.batches == [[1], [2, 3]], step
        setup.cancel()


@pytest.mark.parametrize("call", ["elements", "request", "cancel"])
def test_what_comes_with_the_alarm_is_neither_lost_nor_doubled(call: str) -> None:
    for step in steps():
        setup = Setup(10, request=1)
        setup.next(0)
        with step.meanwhile(lambda s=setup: s.timer.advance(10)):
            if call == "elements":
                setup.next(1, 2, 3)
            elif call == "request":
                setup.request(1)
            else:
                setup.cancel()
        if call == "cancel":
            assert setup.batches in ([], [[0]]), step
            assert setup.timer.pending == 0, step
            assert setup.publisher.cancels == 1, step
        else:
            setup.request(9)
            setup.publisher.subscriber.on_complete()
            sent = list(range(4 if call == "elements" else 1))
            assert [x for batch in setup.batches for x in batch] == sent, step
            assert all(setup.batches), step
            assert setup.recorder.terminal == ("on_complete",), step
        setup.recorder.check()


# -- weight ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("demand", [rsf.UNBOUNDED, 3, 1])
@pytest.mark.parametrize(
    ("elements", "batches"),
    [
        ([1, 2, 3, 4], [[1, 2, 3], [4]]),
        ([4, 3, 6, 1], [[4], [3], [6], [1]]),
        ([6, 6], [[6], [6]]),
        ([9, 1, 20, 2], [[9], [1], [20], [2]]),
        ([0, 0, 0, 0, 0, 0], [[0, 0, 0, 0], [0, 0]]),
        ([3, 3, 1], [[3, 3], [1]]),
        ([5, 1, 1], [[5, 1], [1]]),
    ],
)
def test_no_batch_weighs_more_than_max_bytes_but_one_of_one_element(
    elements: list[int], batches: list[list[int]], demand: int
) -> None:
    stream = rsf.from_iterable(elements).batch(4, max_bytes=6, weigher=weigh)
    recorder = subscribed(stream, demand, on_next=lambda r, _x: r.subscription.request(demand))
    assert recorder.terminal == ("on_complete",)
    assert recorder.elements == batches
    recorder.check()


def test_no_more_than_max_bytes_and_one_element_is_held() -> None:
    setup = Setup(100, request=1, timed=False, max_bytes=10, weigher=weigh)
    assert setup.publisher.requests == [1]
    setup.next(4)
    setup.next(4)
    assert setup.publisher.requested == 3  # while the batch has room, one after the other
    setup.next(9)
    assert setup.batches == [[4, 4]]
    assert setup.publisher.requested == 3  # nobody has asked for the batch that the third begins
    setup.request(1)
    assert setup.publisher.requested == 4
    setup.next(5)
    assert setup.batches == [[4, 4], [9]]
    setup.publisher.subscriber.on_complete()
    assert setup.recorder.terminal is None  # the last one waits to be asked for
    setup.request(1)
    assert setup.batches == [[4, 4], [9], [5]]
    assert setup.recorder.terminal == ("on_complete",)
    setup.recorder.check()


@pytest.mark.parametrize("demand", [1, 2, 3, 5, 400])
def test_what_is_held_is_bounded_whatever_the_weights_and_the_demand(demand: int) -> None:
    setup = Setup(8, request=demand, max_bytes=20, weigher=weigh)
    weights = [3, 19, 20, 25, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 30, 2, 18]
    given: list[int] = []
    asked = demand
    while len(given) < 400:
        while setup.publisher.requested > len(given):
            weight = weights[len(given) % len(weights)]
            given.append(weight)
            setup.next(weight)
            held = given[sum(map(len, setup.batches)) :]
            assert len(held) <= 8
            assert sum(held[:-1]) <= 20
            if len(given) % 5 == 0 and held and len(setup.batches) < asked:
                count = len(setup.batches)
                setup.timer.advance(10)
                assert len(setup.batches) == count + 1
        if len(setup.batches) == asked:
            setup.request(demand)
            asked += demand
    setup.cancel()
    flat = [x for batch in setup.batches for x in batch]
    assert flat == given[: len(flat)]
    assert any(len(batch) > 1 for batch in setup.batches)
    assert all(len(batch) == 1 or sum(batch) <= 20 for batch in setup.batches)
    setup.recorder.check()


def test_what_a_weigher_raises_ends_the_stream() -> None:
    stream = rsf.range_(9).batch(2, max_bytes=99, weigher=lambda x: 1 // (5 - x))
    recorder = subscribed(stream, rsf.UNBOUNDED)
    assert recorder.elements == [[0, 1], [2, 3]]
    assert isinstance(recorder.error, ZeroDivisionError)
    recorder.check()


# -- ends ------------------------------------------------------------------------------------------
def test_what_leaves_through_a_request_to_upstream_is_told_downstream_too() -> None:
    publisher = ManualPublisher(raising(KeyboardInterrupt()))
    recorder = subscribed(rsf.from_publisher(publisher).batch(3, seconds=1))
    with pytest.raises(KeyboardInterrupt):
        recorder.subscription.request(1)
    assert isinstance(recorder.error, KeyboardInterrupt)
    recorder.check()
