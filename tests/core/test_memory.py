"""No reference is lost or kept: cycles through raw slots, leaks, destructors, depth."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import Element, wait_gone
from tests.rules.probes import ManualPublisher, Plain

#: Deeper than the stack of C is, where the compiled backend frees its own.
DEEP = {True: 100_000, False: 20_000}


@pytest.mark.parametrize("fill", [1, 3, 4])
def test_a_ring_that_contains_itself_is_collected(core: Any, fill: int) -> None:
    ring = core.SpscRing(4)
    ring.offer_many([0] * 3)
    ring.poll_many(3)  # so that the elements wrap round
    elements = [Element() for _ in range(fill)]
    for element in elements:
        element.ring = ring  # type: ignore[attr-defined]
    assert ring.offer_many(elements) == fill
    watched = [weakref.ref(x) for x in (*elements, ring)]
    del ring, elements, element
    for each in watched:
        wait_gone(each)


def in_its_error(core: Any) -> Any:
    ring, error = core.SpscRing(4), ValueError()
    error.ring = ring  # type: ignore[attr-defined]
    ring.close(error)
    return ring


def in_its_subscriber(core: Any) -> Any:
    subscriber = Plain()
    subscriber.subscription = core.SignalSerializer(subscriber)
    return subscriber.subscription


def in_its_stage_and_slot(core: Any) -> Any:
    box: list[Any] = []
    stages = (("map", lambda x: x + len(box)), ("batch", 5))
    run = core.FusedRun(iter(range(9)), stages, box.append, core.DemandCounter(1))
    run.drain(3)
    box.append(run)
    return run


@pytest.mark.parametrize("make", [in_its_error, in_its_subscriber, in_its_stage_and_slot])
def test_what_is_kept_by_what_it_keeps_is_collected(core: Any, make: Any) -> None:
    wait_gone(weakref.ref(make(core)))


def test_the_collector_sees_what_a_ring_holds_and_nothing_else(core: Any) -> None:
    ring = core.SpscRing(8)
    inside, outside = Element(), Element()
    ring.offer(outside)
    ring.poll()
    ring.offer(inside)
    if core.__name__.endswith("_cython"):
        assert any(x is inside for x in gc.get_referents(ring))
        assert not any(x is outside for x in gc.get_referents(ring))
    gc.collect()
    assert ring.poll() is inside


def test_no_weak_reference_leads_to_a_ring_that_drops_its_elements(core: Any) -> None:
    found: list[Any] = []

    class Looking:
        def __init__(self, ring: Any) -> None:
            self.ring = weakref.ref(ring)

        def __del__(self) -> None:
            found.append(self.ring())

    ring = core.SpscRing(4)
    ring.offer(Looking(ring))
    del ring
    gc.collect()
    assert found == [None]


def ring_around(core: Any, inner: Any) -> Any:
    ring = core.SpscRing(1)
    ring.offer(inner)
    return ring


def run_into(core: Any, slot: Any) -> Any:
    return core.FusedRun(None, (), slot, core.DemandCounter()).push


@pytest.mark.parametrize("around", [ring_around, run_into])
def test_a_chain_is_freed_without_overflowing_the_stack(
    core: Any, around: Callable[[Any, Any], Any]
) -> None:
    chain: Any = print
    for _ in range(DEEP[core.__name__.endswith("_cython")]):
        chain = around(core, chain)
    watched = weakref.ref(chain.__self__ if around is run_into else chain)
    del chain
    wait_gone(watched)


def test_the_collector_sees_what_a_mailbox_holds(core: Any) -> None:
    if not core.__name__.endswith("_cython"):
        return
    queued = Element()
    seen = []

    def look(element: Any) -> None:
        if element == "first":
            serializer.on_next(queued)
            gc.collect()
        seen.append(any(x is queued for x in gc.get_referents(serializer)))

    serializer = core.SignalSerializer(Plain(look))
    serializer.on_next("first")
    assert seen == [True, False]


@pytest.mark.parametrize(
    "end", [("cancel",), ("on_complete",), ("on_error", ValueError())], ids=lambda end: end[0]
)
def test_spec313_a_serializer_that_has_ended_keeps_nobody(core: Any, end: tuple[Any, ...]) -> None:
    subscriber, upstream = Plain(), ManualPublisher()
    watched = [weakref.ref(subscriber), weakref.ref(upstream)]
    serializer = core.SignalSerializer(subscriber)
    serializer.on_subscribe(upstream)
    serializer.on_next(1)
    name, *error = end
    getattr(serializer, name)(*error)
    del subscriber, upstream
    for each in watched:
        wait_gone(each)
