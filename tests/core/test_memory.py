"""No reference is lost or kept: cycles through raw slots, leaks, destructors, depth."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import RunStatus


class Element:
    pass


class Subscriber:
    def __init__(self) -> None:
        self.serializer: Any = None

    def on_subscribe(self, subscription: Any) -> None:
        pass

    def on_next(self, element: Any) -> None:
        # Signals from within stay in the mailbox until this returns.
        for extra in getattr(element, "extra", ()):
            self.serializer.on_next(extra)

    def on_error(self, error: BaseException) -> None:
        pass

    def on_complete(self) -> None:
        pass


def test_a_ring_that_contains_itself_is_collected(core: Any) -> None:
    for fill in (1, 3, 4):
        ring = core.SpscRing(4)
        ring.offer_many([0] * 3)
        ring.poll_many(3)  # so that the elements wrap round
        elements = [Element() for _ in range(fill)]
        for element in elements:
            element.ring = ring  # type: ignore[attr-defined]
        assert ring.offer_many(elements) == fill
        watched = [weakref.ref(x) for x in (*elements, ring)]
        del ring, elements, element
        gc.collect()
        assert [ref() for ref in watched] == [None] * len(watched)


def test_a_ring_within_its_error_is_collected(core: Any) -> None:
    ring = core.SpscRing(4)
    error = ValueError()
    error.ring = ring  # type: ignore[attr-defined]
    ring.close(error)
    watched = weakref.ref(ring)
    del ring, error
    gc.collect()
    assert watched() is None


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


@pytest.mark.parametrize("depth", [20_000, 200_000])
def test_a_chain_of_rings_is_freed_without_overflowing_the_stack(core: Any, depth: int) -> None:
    ring = None
    for _ in range(depth):
        outer = core.SpscRing(1)
        outer.offer(ring or 1)
        ring = outer
    watched = weakref.ref(ring)
    del ring, outer
    gc.collect()
    assert watched() is None


def test_a_chain_of_runs_is_freed_without_overflowing_the_stack(core: Any) -> None:
    slot: Any = print
    for _ in range(200_000):
        slot = core.FusedRun(None, (), slot, core.DemandCounter()).push
    watched = weakref.ref(slot.__self__)
    del slot
    gc.collect()
    assert watched() is None


def test_a_serializer_that_contains_itself_is_collected(core: Any) -> None:
    subscriber = Subscriber()
    serializer = core.SignalSerializer(subscriber)
    subscriber.serializer = serializer
    watched = [weakref.ref(subscriber), weakref.ref(serializer)]
    del subscriber, serializer
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_the_collector_sees_what_a_mailbox_holds(core: Any) -> None:
    if not core.__name__.endswith("_cython"):
        return
    queued = Element()
    seen = []

    class Looking(Subscriber):
        def on_next(self, element: Any) -> None:
            if element == "first":
                serializer.on_next(queued)
                gc.collect()
                seen.append(any(x is queued for x in gc.get_referents(serializer)))
            else:
                seen.append(any(x is queued for x in gc.get_referents(serializer)))

    serializer = core.SignalSerializer(Looking())
    serializer.on_next("first")
    assert seen == [True, False]


@pytest.mark.parametrize("end", ["cancel", "on_complete", "on_error"])
def test_spec313_a_serializer_that_has_ended_keeps_nobody(core: Any, end: str) -> None:
    class Upstream:
        def request(self, n: int) -> None:
            pass

        def cancel(self) -> None:
            pass

    subscriber, upstream = Subscriber(), Upstream()
    watched = [weakref.ref(subscriber), weakref.ref(upstream)]
    serializer = core.SignalSerializer(subscriber)
    serializer.on_subscribe(upstream)
    serializer.on_next(1)
    if end == "on_error":
        serializer.on_error(ValueError())
    else:
        getattr(serializer, end)()
    del subscriber, upstream
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_a_run_that_contains_itself_is_collected(core: Any) -> None:
    box: list[Any] = []

    def stage(x: int, box: list[Any] = box) -> int:
        return x + len(box)

    run = core.FusedRun(
        iter(range(9)), (("map", stage), ("batch", 5)), box.append, core.DemandCounter(1)
    )
    run.drain(3)
    box.append(run)
    watched = weakref.ref(run)
    del run, box, stage
    gc.collect()
    assert watched() is None


def leaks(cycle: Callable[[], None], rounds: int = 60) -> int:
    """How many more objects exist after ``rounds`` than after the first few."""
    for _ in range(5):
        cycle()
    gc.collect()
    before = len(gc.get_objects())
    blocks = sys.getallocatedblocks()
    for _ in range(rounds):
        cycle()
    gc.collect()
    return max(len(gc.get_objects()) - before, (sys.getallocatedblocks() - blocks) // 4)


def ring_cycle(core: Any) -> None:
    ring = core.SpscRing(8)
    ring.offer_many([Element() for _ in range(6)])
    ring.poll_many(3)
    ring.offer(Element())
    ring.put(Element())
    ring.get()
    for call in (lambda: ring.get(0), lambda: ring.offer(None), lambda: ring.put(Element(), 0)):
        while True:
            try:
                call()
            except (TimeoutError, TypeError):
                break
    ring.offer_many([Element(), Element()])
    ring.close(ValueError())


def record_cycle(core: Any) -> None:
    ring = core.RecordRing([("a", "i4"), ("b", "S3")], 8)
    records = np.zeros(12, ring.dtype)
    ring.write(records[::2])
    ring.read(3)
    ring.put(records[:5])
    ring.get()
    view = ring.reserve(5)
    for call in (lambda: ring.write(records), lambda: ring.get(1, 0), lambda: ring.read_into(None)):
        try:
            call()
        except (BufferError, TimeoutError, TypeError):
            continue
    del view
    ring.commit(4)
    kept = ring.peek(2)
    ring.arm_producer(Element)
    ring.close(ValueError())
    assert len(kept) == 2


def awaiting_cycle(core: Any) -> None:
    import asyncio

    async def main() -> None:
        for ring in (core.SpscRing(1), core.RecordRing("i4", 1)):
            element: Any = Element() if type(ring) is core.SpscRing else np.zeros(1, "i4")
            getting = asyncio.ensure_future(ring.aget())
            await asyncio.sleep(0)
            await ring.aput(element)
            await getting
            await ring.aput(element)
            putting = asyncio.ensure_future(ring.aput(element))
            await asyncio.sleep(0)
            putting.cancel()
            await asyncio.wait([putting])

    asyncio.run(main())


def serializer_cycle(core: Any) -> None:
    for end in ("cancel", "on_complete", None):
        subscriber = Subscriber()
        serializer = core.SignalSerializer(subscriber, capacity=4)
        subscriber.serializer = serializer
        element = Element()
        element.extra = [Element() for _ in range(6)]  # type: ignore[attr-defined]
        serializer.on_next(element)
        if end:
            getattr(serializer, end)()
        subscriber.serializer = None


def run_cycle(core: Any) -> None:
    def fail(_: Any) -> None:
        raise ValueError

    for program in (
        (("map", lambda x: [x]), ("filter", lambda x: x[0] % 3), ("batch", 4)),
        (("map", float), ("scan", max, 0.0), ("skip", 3), ("take", 20)),
        (("map_not_none", lambda x: x if x % 2 else None), ("reduce", lambda a, b: (a, b), 0)),
        (("do_on_next", lambda _: None), ("take_while", lambda x: x < 30), ("map", fail)),
        (("map", lambda _: None),),
    ):
        out: list[Any] = []
        demand = core.DemandCounter(9)
        run = core.FusedRun(iter(range(200)), program, out.append, demand)
        while (status := run.drain(40)) in (RunStatus.MORE, RunStatus.IDLE):
            demand.request(UNBOUNDED if len(out) > 20 else 10)
        if status in (RunStatus.EXHAUSTED, RunStatus.ENDED):
            run.finish()
        run.clear()


def window_cycle(core: Any) -> None:
    import asyncio

    async def fn(item: int) -> Any:
        if item % 3:
            await asyncio.sleep(0)
        if item == 40:
            raise ValueError
        return Element()

    async def main() -> None:
        done = asyncio.Event()

        def pump() -> None:
            window.submit_many(list(range(30, 50)), window.started)
            window.take(9)
            if window.failure and not window.running:
                done.set()

        loop = asyncio.get_running_loop()
        window = core.CallWindow(
            fn, loop=loop, on_ready=pump, concurrency=3, capacity=9, dedupe=True
        )
        loop.call_soon(pump)
        await done.wait()
        window.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    "cycle",
    [ring_cycle, record_cycle, awaiting_cycle, serializer_cycle, run_cycle, window_cycle],
)
def test_nothing_leaks(core: Any, cycle: Callable[[Any], None], dropped: Any) -> None:
    def once() -> None:
        cycle(core)
        dropped.clear()

    # A leak of one object in each round would be 60; what caches do is less than half of that.
    assert leaks(once) < 30
