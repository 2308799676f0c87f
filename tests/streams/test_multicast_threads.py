"""Multicast and replay between threads: nothing lost, doubled, reordered, overlapping, or kept."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import MulticastProcessor, ReplayProcessor
from rstreams_fast.errors import BufferOverflowError
from tests.helpers import Element, calls_of, start_thread, wait_for, wait_until
from tests.rules.probes import Recorder, subscribed
from tests.streams.held import Hold

ALL = rsf.UNBOUNDED

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


def check_row(recorder: Recorder, *, starts_anywhere: bool = False) -> None:
    recorder.check()
    elements = recorder.elements
    first = elements[0] if starts_anywhere and elements else 0
    assert elements == list(range(first, first + len(elements)))


def test_a_subscriber_that_is_stuck_on_its_own_thread_holds_nobody_up() -> None:
    processor, hold = MulticastProcessor[int](buffer_size=100), Hold()
    stuck = subscribed(processor, on_next=hold)
    processor.on_next(0)
    worker = start_thread(lambda: stuck.subscription.request(ALL))
    wait_for(hold.entered, "the stuck subscriber's element")
    fast = subscribed(processor, ALL)
    for n in range(1, 101):
        processor.on_next(n)
    assert fast.elements == list(range(1, 101))
    assert stuck.elements == [0]
    hold.leave.set()
    worker.result()
    processor.on_complete()
    assert stuck.elements == list(range(101))
    check_row(stuck)
    check_row(fast, starts_anywhere=True)


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)
@pytest.mark.parametrize("how", ["dropped", "cancelled"])
def test_one_who_is_over_but_stuck_keeps_nothing_of_what_comes_later(how: str) -> None:
    processor, hold = MulticastProcessor[Element](buffer_size=4, slow="drop"), Hold()
    stuck = subscribed(processor, on_next=lambda tape, _x: (tape.signals.clear(), hold()))
    passing = subscribed(processor, ALL, on_next=lambda tape, _x: tape.signals.clear())
    processor.on_next(Element())
    worker = start_thread(lambda: stuck.subscription.request(ALL))
    wait_for(hold.entered, "the stuck subscriber's element")
    if how == "cancelled":
        stuck.subscription.cancel()
    alive = []
    for _ in range(50):
        element = Element()
        alive.append(weakref.ref(element))
        processor.on_next(element)
        del element
    assert sum(reference() is not None for reference in alive) == 0
    hold.leave.set()
    worker.result()
    assert isinstance(stuck.error, BufferOverflowError) == (how == "dropped")
    assert stuck.violations == passing.violations == []


class Forgotten:
    """Calls when it is collected, which a cycle leaves to the garbage collector."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._itself = self
        self._call = call

    def __del__(self) -> None:
        self._call()


@pytest.fixture
def collection_after() -> Iterator[Callable[[int], None]]:
    """Has the garbage collected at the n-th allocation from now, wherever that is."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.disable()

    def after(n: int) -> None:
        gc.set_threshold(gc.get_count()[0] + n)
        gc.enable()

    yield after
    gc.set_threshold(*threshold)
    gc.enable()


@pytest.mark.parametrize("make", [MulticastProcessor, ReplayProcessor])
@pytest.mark.parametrize("finalizer", ["cancel", "request", "subscribe", "on_next"])
def test_a_collection_may_come_at_any_allocation(
    make: Any, finalizer: str, collection_after: Callable[[int], None]
) -> None:
    options = {"count": 2} if make is ReplayProcessor else {}
    processor: Any = make(slow="drop", **options)
    stays = subscribed(processor, ALL)
    signals = itertools.count()
    for n in range(60):
        gc.disable()
        for _ in range(2):
            visitor = subscribed(processor)
            calls: dict[str, Callable[[], object]] = {
                "cancel": visitor.subscription.cancel,
                "request": lambda s=visitor.subscription: s.request(1),  # type: ignore[misc]
                "subscribe": lambda: processor.subscribe(Recorder()),
                "on_next": lambda: processor.on_next(next(signals)),
            }
            Forgotten(calls[finalizer])
        del visitor, calls
        collection_after(n // 3)
        if n % 3 == 0:
            subscribed(processor).subscription.cancel()
        elif finalizer != "on_next":
            processor.on_next(next(signals))
        else:
            stays.subscription.request(1)
            processor.on_next(next(signals))
    gc.disable()
    gc.collect()
    sent = next(signals)
    # The collector may have run on the finalizers' thread, which then signals, too.
    wait_until(lambda: len(stays.elements) >= sent, "the last element")
    assert stays.violations == []
    assert sorted(stays.elements)[:sent] == list(range(sent))
    if finalizer != "on_next":  # two signals at once are in no order
        check_row(stays)


@pytest.mark.parametrize("kind", ["multicast", "replay"])
def test_an_element_may_use_the_publisher_when_it_is_let_go_of(kind: str) -> None:
    processor: Any = MulticastProcessor(slow="drop", buffer_size=2, on_last_cancel="keep")
    if kind == "replay":
        processor = ReplayProcessor(count=2)
    done: list[int] = []

    class Element:
        def __init__(self, n: int) -> None:
            self.n = n

        def __del__(self) -> None:
            def use() -> None:  # from another thread, so that a lock that is held would show
                tape = subscribed(processor, 1)
                tape.signals.clear()
                tape.subscription.cancel()

            if self.n < 10:
                start_thread(use).result()
                done.append(self.n)

    for n in range(20):
        processor.on_next(Element(n))
    processor.on_complete()
    gc.collect()
    assert sorted(done) == list(range(10))


@pytest.mark.parametrize("slow", ["gate", "drop"])
@pytest.mark.parametrize("demand", [..., 1, rsf.UNBOUNDED])
def test_of_a_thousand_that_leave_few_make_the_hub_look_at_the_others(
    demand: Any, slow: Any
) -> None:
    def calls(n: int) -> int:
        hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor(buffer_size=4, slow=slow)
        recorders = [subscribed(hub, demand) for _ in range(n)]
        rsf.never().subscribe(hub)
        return calls_of(lambda: [recorder.subscription.cancel() for recorder in recorders])

    assert calls(1000) < 11 * calls(100)


def test_who_leaves_last_of_those_that_gate_lets_the_others_go_on() -> None:
    hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor(buffer_size=4)
    gating = [subscribed(hub, n % 3 or ...) for n in range(9)]
    quick = subscribed(hub, ALL)
    rsf.range_(100).subscribe(hub)
    seen = [len(quick.elements)]
    for recorder in gating:
        recorder.subscription.cancel()
        seen.append(len(quick.elements))
    assert seen[0] < 10
    assert seen == sorted(seen)
    assert quick.elements == list(range(100))


def test_a_thousand_subscribers_cost_each_what_one_costs() -> None:
    def calls(n: int) -> int:
        hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor()
        recorders = [Recorder(request=rsf.UNBOUNDED) for _ in range(n)]

        def work() -> None:
            for recorder in recorders:
                hub.subscribe(recorder)
            rsf.range_(3).subscribe(hub)

        count = calls_of(work)
        assert all(recorder.elements == [0, 1, 2] for recorder in recorders)
        return count

    assert calls(1000) < 11 * calls(100)
