"""Every public method of every compiled class, called 1000 times: no reference is left behind.

A table of calls: for each method those that succeed and those that take each way out by an error.
After 1000 of one call nothing may be left of it: neither references to what it was given, to the
singletons and the classes, nor memory of Python's or C's allocator. That the table has every method
is tested, and that a planted leak of each kind is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import importlib
import logging
import queue
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING, RunStatus
from rstreams_fast.core.stage_table import STAGES, Fate
from rstreams_fast.errors import (
    DemandExceededError,
    InvalidRequestError,
    InvalidRequestTypeError,
    NoneSignalError,
    OverlappingCallsError,
    RingClosed,
)
from tests.core.conftest import BACKENDS, CLASSES, MODULES, load
from tests.helpers import Element, freeze

CALLS = 1000
#: What caches and free lists may do meanwhile; a leak of one object in each call is 1000.
SLACK = 100
#: Blocks of Python's allocator: without a GIL some are given back later, a few hundred at a time.
SLACK_BLOCKS = 800 if sysconfig.get_config_var("Py_GIL_DISABLED") else SLACK
#: Bytes of the C library's allocator: less than one object in each call.
SLACK_BYTES = 8 * CALLS

#: Special methods that are ours, as far as a class has them.
SPECIAL = {"__anext__", "__init__", "__len__", "__next__", "__reduce__", "__repr__"}

Call = Callable[[], object]


class Subscriber:
    def on_subscribe(self, subscription: Any) -> None:
        pass

    def on_next(self, element: Any) -> None:
        pass

    def on_error(self, error: BaseException) -> None:
        pass

    def on_complete(self) -> None:
        pass


class Upstream:
    def request(self, n: int) -> None:
        if n > 5:
            raise ValueError

    def cancel(self) -> None:
        pass


class Index:
    """An integer that fails when it is looked at."""

    def __index__(self) -> int:
        raise ValueError


class Kit:
    """What the calls of one case are given, the same in each: what it refers to is counted."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.element = Element()
        self.elements = [Element(), Element(), Element()]
        self.error = ValueError("an error")
        self.subscriber = Subscriber()
        self.upstream = Upstream()
        self.index = Index()
        self.waker = lambda: None
        self.map = lambda x: x
        self.fails = self._fails
        self.slot = lambda x: None
        self.big = 2**70
        self.dtype = np.dtype([("a", "i4"), ("b", "S3")])
        self.records = np.zeros(8, self.dtype)
        self.strided = np.zeros(8, self.dtype)[::2]
        self.target = np.zeros(8, self.dtype)
        self.other = np.zeros(3, "f8")
        self.read_only = np.zeros(3, self.dtype)
        self.read_only.flags.writeable = False
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()

    @staticmethod
    def _fails(*_: object) -> Any:
        raise ValueError

    def until_over(self, call: Callable[..., Any], *args: Any) -> Call:
        return lambda: self.loop.run_until_complete(call(*args))

    def watched(self) -> list[Any]:
        own = [x for x in vars(self).values() if x is not self.core]
        singletons = [None, True, False, (), MISSING, *RunStatus, NotImplemented, 0, 1]
        return [*own, *self.elements, *singletons, *(getattr(self.core, name) for name in CLASSES)]


def raising(kind: type[BaseException], fn: Callable[..., object], *args: Any, **more: Any) -> Call:
    """A call that must end with an exception of this kind."""

    def call() -> None:
        try:
            fn(*args, **more)
        except kind:
            return
        raise AssertionError(f"{fn} did not raise {kind.__name__}")

    return call


def plain(fn: Callable[..., object], *args: Any, **more: Any) -> Call:
    return lambda: fn(*args, **more)


def sure(done: object) -> None:
    assert done


def looks(names: str, *objects: Any) -> Cases:
    """What only looks at objects: their attributes and their text."""
    for name in names.split():
        yield name, lambda name=name: [getattr(each, name) for each in objects]
    yield "__repr__", lambda: [repr(each) for each in objects]
    yield "__reduce__", raising(TypeError, objects[0].__reduce__)


def refusals(why: str, kind: Any, owner: Any, names: str, *args: Any) -> Cases:
    """Methods that raise alike for these arguments."""
    for name in names.split():
        yield f"{name}: {why}", raising(kind, getattr(owner, name), *args)


Cases = Iterator[tuple[str, Call]]


def wip_cases(kit: Kit) -> Cases:
    wip = kit.core.Wip

    def there_and_back() -> None:
        drain = wip(True)
        drain.enter()
        drain.leave(drain.missed)

    yield "__init__: no bool", raising(TypeError, wip, 1)
    for name in ("__init__", "enter", "leave", "missed"):
        yield name, there_and_back
    yield "leave: too many", raising(RuntimeError, wip().leave, kit.big)
    yield "leave: no int", raising(TypeError, wip().leave, kit.element)
    yield "leave: negative", raising(ValueError, wip().leave, -1)
    yield from looks("", wip())


def latch_cases(kit: Kit) -> Cases:
    latch = kit.core.Latch
    yield "__init__: unknown", raising(TypeError, latch, 1)
    for name in ("__init__", "win", "won"):
        yield name, lambda: (latch().win(), latch().won)
    yield from looks("", latch())


def demand_cases(kit: Kit) -> Cases:
    new = kit.core.DemandCounter
    counter, ended, unbounded, empty = new(), new(), new(UNBOUNDED), new()
    ended.cancel()

    def there_and_back() -> None:
        counter.request(3)
        counter.fulfil(2)
        counter.fulfil()

    yield "__init__", lambda: new(7).cancel()
    yield "__init__: no int", raising(TypeError, new, "1")
    yield "__init__: negative", raising(ValueError, new, -1)
    yield "__init__: a failing int", raising(ValueError, new, kit.index)
    yield "__init__: unknown", raising(TypeError, new, nonsense=1)
    yield "request", there_and_back
    yield "request: ended", plain(ended.request, 3)
    yield "request: saturated", plain(unbounded.request, kit.big)
    yield "request: §3.9", raising(InvalidRequestError, counter.request, 0)
    yield "request: no int", raising(InvalidRequestTypeError, counter.request, kit.element)
    yield "request: a failing int", raising(ValueError, counter.request, kit.index)
    yield "request: nothing", raising(TypeError, counter.request)
    yield "fulfil", plain(unbounded.fulfil, 5)
    yield "fulfil: ended", plain(ended.fulfil, 5)
    yield "fulfil: too many", raising(DemandExceededError, empty.fulfil, 1)
    yield "fulfil: too many by far", raising(DemandExceededError, empty.fulfil, kit.big)
    yield "fulfil: no int", raising(TypeError, empty.fulfil, kit.element)
    yield "fulfil: negative", raising(ValueError, empty.fulfil, -1)
    yield "cancel", lambda: (new().cancel(), ended.cancel())
    yield "terminate", lambda: (new().terminate(), ended.terminate())
    yield from looks("value pending cancelled terminated", unbounded, ended)


def waking_cases(kit: Kit, new: Callable[[], Any], element: Any, full: Any, closed: Any) -> Cases:
    """What both rings have: wakers, sides, the end."""
    ring, holding = new(), new()
    holding.put(element)

    def wakes_producer() -> None:
        full_ring = new()
        while len(full_ring) < full_ring.capacity:
            full_ring.put(element)
        sure(full_ring.arm_producer(kit.waker))
        full_ring.get()

    def waker_raises() -> None:
        full.disarm_producer()
        sure(ring.arm(kit.fails))
        with contextlib.suppress(ValueError):
            ring.put(element)
            raise AssertionError
        ring.get()

    def closes() -> None:
        end = new()
        end.put(element)
        end.close(kit.error)
        end.close()
        end.get()
        raising(ValueError, end.get)()
        kit.error.__traceback__ = None

    def awaits(coroutine: Callable[[], Any], meanwhile: Call, *, cancels: bool = False) -> Call:
        async def both() -> None:
            task = kit.loop.create_task(coroutine())
            await asyncio.sleep(0)
            meanwhile()
            if cancels:
                task.cancel()
                await asyncio.wait([task])
            else:
                await task

        return lambda: kit.loop.run_until_complete(both())

    refused = raising(OverlappingCallsError, ring.get)
    yield "arm", lambda: (sure(ring.arm(kit.waker)), ring.put(element), ring.get())
    yield "arm: for the end", lambda: (end := new(), end.arm(kit.waker), end.close())
    yield "arm: and forget the ring", lambda: new().arm(kit.waker)
    yield "arm: not needed", plain(holding.arm, kit.waker)
    yield "arm: its waker raises", waker_raises
    yield "arm: nothing", raising(TypeError, ring.arm)
    yield "disarm", lambda: (sure(ring.arm(kit.waker)), ring.disarm())
    yield "arm_producer", wakes_producer
    yield "arm_producer: not needed", plain(ring.arm_producer, kit.waker)
    yield "disarm_producer", lambda: (sure(full.arm_producer(kit.waker)), full.disarm_producer())
    yield "get: two at a time", awaits(ring.aget, refused, cancels=True)
    yield "put: full", raising(TimeoutError, full.put, element, 0)
    yield "put: closed", raising(RingClosed, closed.put, element)
    yield "put: no time-out", raising(TypeError, ring.put, element, kit.element)
    yield "put: nothing", raising(TypeError, ring.put)
    yield "get: empty", raising(TimeoutError, new().get, timeout=0)
    yield "get: closed", raising(RingClosed, closed.get)
    yield "get: no time-out", raising(ValueError, ring.get, timeout=-1)
    yield "aput", lambda: (kit.until_over(ring.aput, element)(), ring.get())
    yield "aput: waits", awaits(lambda: full.aput(element), full.get)
    yield "aput: is cancelled", awaits(lambda: full.aput(element), kit.waker, cancels=True)
    yield "aput: is forgotten", lambda: full.aput(element).close()
    yield "aput: closed", raising(RingClosed, kit.until_over(closed.aput, element))
    yield "aget", lambda: (ring.put(element), kit.until_over(ring.aget)())
    yield "aget: waits", awaits(ring.aget, lambda: ring.put(element))
    yield "aget: is cancelled", awaits(ring.aget, kit.waker, cancels=True)
    yield "aget: closed", raising(RingClosed, kit.until_over(closed.aget))
    yield "close", closes
    yield "close: no error", raising(TypeError, ring.close, kit.element)
    yield "__len__", lambda: (len(full), len(ring))
    yield from looks("capacity closed", ring, closed)


def ring_cases(kit: Kit) -> Cases:
    new = kit.core.SpscRing
    ring, full, closed = new(4), new(1), new(4)
    full.offer(kit.element)
    closed.close()

    def left_behind() -> None:
        filled = new(8)
        filled.offer_many(kit.elements * 2)
        filled.poll_many(4)
        filled.offer_many(kit.elements * 2)

    def many() -> None:
        sure(ring.offer_many(kit.elements * 2, 1) == len(ring.poll_many(9)) == 4)

    yield "__init__", lambda: new(5)
    yield "__init__: filled", left_behind
    yield "__init__: no int", raising(TypeError, new, kit.element)
    yield "__init__: too small", raising(ValueError, new, 0)
    yield "__init__: too large", raising(ValueError, new, kit.big)
    yield "offer", lambda: (ring.offer(kit.element), ring.poll())
    yield "offer: full", plain(full.offer, kit.element)
    yield "offer: None", raising(NoneSignalError, ring.offer, None)
    yield "offer: closed", raising(RingClosed, closed.offer, kit.element)
    yield "offer_many", many
    yield "offer_many: beyond the end", plain(ring.offer_many, kit.elements, 5)
    yield "offer_many: None", raising(NoneSignalError, ring.offer_many, [kit.element, None])
    yield "offer_many: no list", raising(TypeError, ring.offer_many, kit.element)
    yield "offer_many: no start", raising(TypeError, ring.offer_many, kit.elements, kit.element)
    yield "offer_many: closed", raising(RingClosed, closed.offer_many, kit.elements)
    yield "put", lambda: (ring.put(kit.element), ring.put(kit.element, 0), ring.poll_many(2))
    yield "put: None", raising(NoneSignalError, ring.put, None)
    yield "aput: None", raising(NoneSignalError, kit.until_over(ring.aput, None))
    yield "poll", plain(ring.poll)
    yield "poll: closed", plain(closed.poll)
    yield "poll_many", plain(ring.poll_many, 9)
    yield "poll_many: no int", raising(TypeError, ring.poll_many, kit.element)
    yield "poll_many: negative", raising(ValueError, ring.poll_many, -1)
    yield "poll_many: closed", plain(closed.poll_many, 9)
    yield "get", lambda: (ring.offer(kit.element), ring.get())
    yield from waking_cases(kit, lambda: new(2), kit.element, full, closed)


def record_cases(kit: Kit) -> Cases:
    def new(capacity: int = 4, dtype: Any = kit.dtype) -> Any:
        return kit.core.RecordRing(dtype, capacity)

    ring, full, closed = new(), new(1), new()
    one = np.zeros(1, kit.dtype)
    full.write(one)
    closed.close()

    def there_and_back() -> None:
        assert ring.write(kit.records) == 4
        assert len(ring.read(3)) == 3
        assert ring.read_into(kit.target) == 1

    def without_copy() -> None:
        ring.reserve(2)[...] = kit.records[:2]
        ring.commit(2)
        assert len(ring.peek(2)) == 2
        ring.release(2)

    def kept_views() -> None:
        other = new()
        view = other.reserve(2)
        raising(BufferError, other.commit, 1)()
        raising(BufferError, other.write, kit.records)()
        del view
        other.commit(2)
        kept = other.peek(2)
        raising(BufferError, other.release, 1)()
        raising(BufferError, other.read)()
        assert len(kept) == 2

    yield "__init__", lambda: new(100_000)
    yield "__init__: from text", plain(new, 3, "i4,f8")
    yield "__init__: no dtype", raising(TypeError, new, 3, kit.element)
    yield "__init__: objects", raising(TypeError, new, 3, "O")
    yield "__init__: empty records", raising((TypeError, ValueError), new, 3, "V0")  # type: ignore[arg-type]
    yield "__init__: too small", raising(ValueError, new, 0)
    yield "__init__: no int", raising(TypeError, new, kit.element)
    yield "write", there_and_back
    yield "write: strided", lambda: (ring.write(kit.strided), ring.read())
    yield "write: full", plain(full.write, kit.records)
    yield from refusals("another dtype", TypeError, ring, "write put read_into", kit.other)
    yield from refusals("no array", TypeError, ring, "write read_into", kit.element)
    yield from refusals("no int", TypeError, ring, "reserve commit read get release", kit.element)
    yield from refusals("negative", ValueError, ring, "reserve peek", -1)
    yield from refusals("too many", ValueError, ring, "commit release", 1)
    yield "write: closed", raising(RingClosed, closed.write, kit.records)
    yield "put", lambda: (ring.put(kit.records[:2]), ring.get())
    yield "reserve", without_copy
    yield "reserve: views that live on", kept_views
    yield "reserve: and forget the ring", lambda: new().reserve(3)
    yield "reserve: closed", raising(RingClosed, closed.reserve, 1)
    yield "commit", without_copy
    yield "read", plain(ring.read)
    yield "read: closed", plain(closed.read)
    yield "read_into", lambda: (ring.write(one), ring.read_into(kit.records))
    yield "read_into: strided", raising(ValueError, full.read_into, kit.strided)
    yield "read_into: read-only", raising(ValueError, full.read_into, kit.read_only)
    yield "read_into: closed", plain(closed.read_into, kit.records)
    yield "get", lambda: (ring.write(kit.records), ring.get(2), ring.get())
    yield "peek", lambda: (ring.write(one), len(ring.peek(3)), ring.release(1))
    yield "peek: and forget the ring", lambda: (r := new(), r.write(one), r.peek(1))
    yield "peek: closed", plain(closed.peek, 1)
    yield "release", lambda: (ring.write(one), len(ring.peek(1)), ring.release(1))
    yield "dtype", lambda: ring.dtype
    yield from waking_cases(kit, lambda: new(1), one, full, closed)


def serializer_cases(kit: Kit) -> Cases:
    def new(subscriber: Any = kit.subscriber, **options: Any) -> Any:
        return kit.core.SignalSerializer(subscriber, **options)

    serializer, ended, introduced = new(), new(), new()
    ended.cancel()
    introduced.on_subscribe(kit.upstream)

    class Nesting(Subscriber):
        """Signals while it is signalled, more than the mailbox takes."""

        signals: Any

        def on_next(self, element: Any) -> None:
            if element is kit.element:
                for extra in kit.elements:
                    self.signals.on_next(extra)

    class Trying(Nesting):
        """The same, without insisting."""

        def on_next(self, element: Any) -> None:
            if element is kit.element:
                self.answers = [self.signals.try_next(extra) for extra in kit.elements]

    def nested(kind: type[Nesting], **options: Any) -> Call:
        def call() -> None:
            subscriber = kind()
            subscriber.signals = new(subscriber, **options)
            subscriber.signals.on_next(kit.element)
            subscriber.signals = None

        return call

    def subscriber_raises() -> None:
        subscriber = Subscriber()
        subscriber.on_next = kit.fails  # type: ignore[method-assign]
        signals = new(subscriber)
        signals.on_subscribe(kit.upstream)
        signals.on_next(kit.element)

    def ends(name: str, *args: Any) -> Call:
        def call() -> None:
            signals = new()
            signals.on_subscribe(kit.upstream)
            getattr(signals, name)(*args)
            getattr(signals, name)(*args)

        return call

    yield "__init__", lambda: new(capacity=3, on_full="wait", delay_error=True, fail_fast=False)
    yield "__init__: no subscriber", raising(TypeError, new, None)
    yield "__init__: no methods", raising(TypeError, new, kit.element)
    yield "__init__: too small", raising(ValueError, new, capacity=0)
    yield "__init__: unknown", raising(ValueError, new, on_full="nonsense")
    yield "on_subscribe", lambda: new().on_subscribe(kit.upstream)
    yield "on_subscribe: §2.5", plain(introduced.on_subscribe, kit.upstream)
    signals = "on_subscribe on_next try_next on_error"
    yield from refusals("None", NoneSignalError, serializer, signals, None)
    yield "on_next", plain(serializer.on_next, kit.element)
    yield "on_next: nested", nested(Nesting)
    yield "on_next: overflows", nested(Nesting, capacity=2)
    yield "on_next: ended", plain(ended.on_next, kit.element)
    yield "on_next: its subscriber raises", subscriber_raises
    yield "try_next", plain(serializer.try_next, kit.element)
    yield "try_next: full", nested(Trying, capacity=1)
    yield "try_next: busy", nested(Trying, fail_fast=True)
    yield "try_next: ended", plain(ended.try_next, kit.element)
    yield "on_error", ends("on_error", kit.error)
    yield "on_error: no error", raising(TypeError, serializer.on_error, kit.element)
    yield "on_complete", ends("on_complete")
    yield "request", plain(introduced.request, 3)
    yield "request: upstream raises", raising(ValueError, introduced.request, 9)
    yield "request: ended", plain(ended.request, 3)
    yield "cancel", ends("cancel")
    yield from looks("queued capacity", serializer, ended)


def run_cases(kit: Kit) -> Cases:
    counter = kit.core.DemandCounter
    unbounded = counter(UNBOUNDED)

    def new(source: Any = None, program: Any = (), slot: Any = kit.slot, demand: Any = None) -> Any:
        return kit.core.FusedRun(source, program, slot, unbounded if demand is None else demand)

    def drained(status: RunStatus, *program: tuple[Any, ...], slot: Any = kit.slot) -> Call:
        def call() -> None:
            run = new(iter(kit.elements), program, slot)
            answer(run.drain(100), status)
            if status in (RunStatus.EXHAUSTED, RunStatus.ENDED):
                answer(run.finish(), RunStatus.DONE)

        return call

    def between_rings() -> None:
        source, target = kit.core.SpscRing(4), kit.core.SpscRing(4)
        source.offer_many(kit.elements)
        answer(new(source, (("map", kit.map),), target, counter(3)).drain(9), RunStatus.IDLE)
        sure(len(target.poll_many(9)) == 3)

    def left_in_the_middle() -> None:
        run = new(iter(kit.elements), (("scan", max_, kit.element), ("batch", 2)), [].append)
        run.push(kit.element)
        run.drain(1)

    def max_(a: Any, b: Any) -> Any:
        return b

    def pushed(status: RunStatus, *program: tuple[Any, ...]) -> Call:
        return lambda: answer(new(None, program).push(kit.element), status)

    def answer(got: Any, expected: Any) -> None:
        assert got is expected, (got, expected)

    idle = new(iter(()), (), kit.slot)
    failed = new(None, (("map", kit.fails),))
    failed.push(kit.element)
    stages: dict[str, tuple[Any, ...]] = {
        name: (name, kit.map if kind.least is None else 2)
        for name, kind in STAGES.items()
        if not kind.seeded
    }
    stages |= {name: (name, max_, MISSING) for name, kind in STAGES.items() if kind.seeded}
    stages |= {
        f"{name} from a seed": (name, max_, kit.element) for name, _, *s in stages.values() if s
    }
    stages |= {f"{name} of None": (name, None) for name, kind in STAGES.items() if kind.optional}
    stages |= {
        "map_not_none": ("map_not_none", lambda x: None),
        "filter": ("filter", lambda x: x is not kit.elements[0]),
        "take": ("take", 9),
        "take_while": ("take_while", lambda x: True),
        "skip_while": ("skip_while", lambda x: x is kit.elements[0]),
    }
    yield "__init__", lambda: new(iter(kit.elements), (("map", kit.map), ("scan", max_, MISSING)))
    yield "__init__: from a ring", lambda: new(kit.core.SpscRing(1))
    yield "__init__: a program that is none", raising(TypeError, new, None, kit.element)
    yield "__init__: an unknown stage", raising(ValueError, new, None, (("nonsense", 1),))
    yield "__init__: no function", raising(TypeError, new, None, (("map", kit.element),))
    yield "__init__: no source", raising(TypeError, new, kit.element)
    if kit.core.__name__.endswith("_cython"):  # the others look when they use them
        yield "__init__: no slot", raising(TypeError, new, None, (), kit.element)
        yield "__init__: no demand", raising(TypeError, new, None, (), kit.slot, kit.element)
    for name, stage in stages.items():
        yield f"drain: {name}", drained(RunStatus.EXHAUSTED, stage)
        if callable(stage[1]) and STAGES[stage[0]].fate is not Fate.READ:
            failing = (stage[0], kit.fails, *stage[2:])
            yield f"drain: {name} fails", drained(RunStatus.FAILED, failing)
    yield "drain: a C function", drained(RunStatus.EXHAUSTED, ("map", str), ("filter", bool))
    yield "drain: None", drained(RunStatus.FAILED, ("map", lambda x: None))
    yield "drain: ends", drained(RunStatus.ENDED, ("take", 2), ("map", kit.map))
    yield "drain: the slot fails", drained(RunStatus.SLOT_FAILED, slot=kit.fails)
    yield "drain: rings", between_rings
    yield "drain: nobody finishes", left_in_the_middle
    yield "drain: no int", raising(TypeError, idle.drain, kit.element)
    yield "drain", plain(idle.drain, 9)
    yield "push", lambda: answer(new().push(kit.element), RunStatus.MORE)
    yield "push: dropped", pushed(RunStatus.DROPPED, ("filter", lambda x: False))
    yield "push: fails", pushed(RunStatus.FAILED, ("map", kit.fails))
    yield "push: None", raising(TypeError, idle.push)
    yield "finish", lambda: answer(new(None, (("batch", 3),)).finish(), RunStatus.DONE)
    yield "clear", lambda: (run := new(iter(kit.elements), (("batch", 2),)), run.clear())
    yield from looks("error execution ratio refund pulled", idle, failed)


def window_cases(kit: Kit) -> Cases:
    def new(fn: Any, on_ready: Any = kit.waker, **options: Any) -> Any:
        options = {"concurrency": 2, "capacity": 8, **options}
        return kit.core.CallWindow(fn, loop=kit.loop, on_ready=on_ready, **options)

    async def at_once(item: Any) -> Any:
        return item

    async def waits(item: Any) -> Any:
        await asyncio.sleep(0)
        return item

    async def sets_a_variable(item: Any) -> Any:
        variable.set(item)
        return item

    async def fails(item: Any) -> Any:
        raise ValueError

    async def fails_late(item: Any) -> Any:
        await asyncio.sleep(0)
        raise ValueError

    def on_loop(work: Call) -> None:
        """Outside of tasks, and until nothing is left to do."""
        raised: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        kit.loop.call_soon(guarded)
        for _ in range(4):
            kit.loop.call_soon(kit.loop.stop)
            kit.loop.run_forever()
        if raised:
            raise raised.pop()

    def to_the_end(window: Any, work: Call) -> None:
        on_loop(work)
        while window.running:
            on_loop(kit.waker)

    def through(fn: Any, items: Any = kit.elements, taken: int = 3, **options: Any) -> Call:
        def call() -> None:
            results: list[Any] = []
            window = new(fn, lambda: results.extend(window.take(9)), **options)
            to_the_end(window, lambda: window.submit_many(items))
            results += window.take(9)
            assert len(results) == taken, results
            assert (window.failure is None) is (taken > 0)
            window.cancel()

        return call

    def from_ring_to_ring() -> None:
        window = new(at_once)
        source, target = kit.core.SpscRing(4), kit.core.SpscRing(4)
        source.offer_many(kit.elements)
        on_loop(lambda: window.submit_from(source, 9))
        sure(window.take_into(target, 2) == 2)

    def numbered() -> None:
        window = new(at_once, ordered=False)
        on_loop(lambda: window.submit_many(kit.elements))
        sure(window.take_numbered(9)[0] == [0, 1, 2])

    def exchanged() -> None:
        window = new(at_once)

        async def exchanges(item: Any) -> Any:
            window.call_with(at_once, kit.waker)
            return item

        window.call_with(exchanges)
        on_loop(lambda: window.submit_many(kit.elements))
        assert len(window.take(9)) == 3

    def cancelled() -> None:
        window = new(waits)
        to_the_end(window, lambda: (window.submit_many(kit.elements), window.cancel()))

    def wrong(kind: type[BaseException], *args: Any) -> Call:
        return lambda: on_loop(raising(kind, resting.submit_many, *args))

    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")
    ring = kit.core.SpscRing(4)
    resting = new(at_once)
    failed = new(fails)
    on_loop(lambda: failed.submit_many(kit.elements))
    yield "__init__", lambda: new(at_once, dedupe=True)
    yield "__init__: no function", raising(TypeError, new, kit.element)
    yield "__init__: no concurrency", raising(ValueError, new, at_once, concurrency=0)
    yield "__init__: no capacity", raising(TypeError, new, at_once, capacity=kit.element)
    yield "submit_many", through(at_once)
    yield "submit_many: unordered", through(at_once, ordered=False)
    yield "submit_many: spread", through(at_once, [(x,) for x in kit.elements], spread=True)
    yield "submit_many: dedupe", through(waits, [kit.element] * 3, dedupe=True)
    yield "submit_many: not hashable", through(waits, [[1], [1]], 2, dedupe=True)
    yield "submit_many: waits", through(waits, kit.elements[:2], 2)
    yield "submit_many: waits, unordered", through(waits, kit.elements[:2], 2, ordered=False)
    yield "submit_many: fails", through(fails, taken=0)
    yield "submit_many: fails late", through(fails_late, kit.elements[:1], 0)
    yield "submit_many: failed", lambda: on_loop(plain(failed.submit_many, kit.elements))
    yield "submit_many: in contexts of their own", through(sets_a_variable)
    yield "submit_from", from_ring_to_ring
    yield "submit_from: no ring", lambda: on_loop(raising(TypeError, resting.submit_from, 1, 1))
    yield "submit_from: elsewhere", raising(RuntimeError, resting.submit_from, ring, 1)
    yield "take_into: no ring", raising(TypeError, resting.take_into, kit.element, 1)
    yield "take_into: no int", raising(TypeError, resting.take_into, ring, kit.element)

    def fails_twice() -> None:
        further: list[BaseException] = []
        window = new(fails_late)
        window.on_further_failure = further.append
        to_the_end(window, lambda: window.submit_many(kit.elements[:2]))
        assert len(further) == 1
        window.cancel()

    yield "take_numbered", numbered
    yield "take_into", plain(resting.take_into, ring, 3)
    yield "submit_many: no list", wrong(TypeError, kit.element)
    yield "submit_many: no start", wrong(TypeError, kit.elements, kit.element)
    yield "submit_many: elsewhere", raising(RuntimeError, resting.submit_many, kit.elements)
    yield "call_with", exchanged
    yield "call_with: no function", raising(TypeError, resting.call_with, kit.element)
    yield "take", plain(resting.take, 3)
    yield "take: no int", raising(TypeError, resting.take, kit.element)
    yield "take: negative", raising(ValueError, resting.take, -1)
    yield "cancel", cancelled
    yield "on_further_failure", fails_twice
    names = "failure max_running max_pending started concurrency capacity permits running"
    yield from looks(f"{names} pending ready", resting, failed)


def burst_cases(kit: Kit) -> Cases:
    base = kit.core.BurstIterator

    class Endless(base):  # type: ignore[misc, valid-type]
        def _refill(self) -> Any:
            return self._first_of([kit.element] * 3)

        async def _refill_async(self) -> Any:
            await asyncio.sleep(0)
            return self._refill()

    it, bare = Endless(), base()
    sent = methodcaller("send", None)
    thrown = methodcaller("throw", ValueError)

    def first(iterator: Any, burst: list[Any]) -> None:
        iterator._forget_burst()
        iterator._first_of(burst)

    def awaited(element: Any) -> None:
        first(it, [kit.element, element])
        sent(it.__anext__())

    def suspended(leave: Callable[[Any], object]) -> None:
        it._forget_burst()
        waiting = it.__anext__()
        sent(waiting)
        leave(waiting)

    def used(by: Callable[[Any], object]) -> None:
        waiting = it.__anext__()
        with contextlib.suppress(StopIteration):
            sent(waiting)
        waiting.close()
        by(waiting)

    yield "__init__", lambda: (base(), Endless())
    yield "__next__", lambda: [next(it) for _ in range(7)]
    yield "__next__: no refill", raising(NotImplementedError, next, bare)
    yield "__anext__", raising(StopIteration, awaited, kit.element)
    yield "__anext__: a tuple", raising(StopIteration, awaited, (kit.element,))
    yield "__anext__: an exception", raising(StopIteration, awaited, ValueError(kit.element))
    yield "__anext__: refilled", raising(StopIteration, suspended, sent)
    yield "__anext__: thrown in", raising(ValueError, suspended, thrown)
    yield "__anext__: closed when suspended", plain(suspended, methodcaller("close"))
    yield "__anext__: closed", lambda: it.__anext__().close()
    yield "__anext__: thrown in at first", raising(ValueError, lambda: thrown(it.__anext__()))
    yield "__anext__: again", raising(RuntimeError, used, sent)
    yield "__anext__: awaited again", raising(RuntimeError, used, lambda it: next(it.__await__()))
    yield "_first_of: nothing", raising(IndexError, it._first_of, [])
    yield "_first_of: no list", raising((TypeError, AttributeError), it._first_of, kit.element)
    yield "_next_of_burst", lambda: (first(it, [kit.element] * 2), it._next_of_burst())
    yield "_next_of_burst: used up", lambda: (it._forget_burst(), it._next_of_burst())
    yield "subscripted", lambda: base[kit.element]
    yield "__reduce__", raising(TypeError, bare.__reduce__)


def queue_cases(cls: Any, element: Any) -> Cases:
    """The compiled queues, which are no part of the core: ``cls`` is one of them."""

    def filled(*args: Any) -> Any:
        q = cls(*args)
        for _ in range(3):
            q.put(element)
        return q

    def put_and_get(put: Callable[[Any], object], get: Call) -> Call:
        return lambda: (put(element), get())

    q, empty = cls(), cls()
    yield "__init__", filled
    yield "put", put_and_get(q.put, q.get)
    yield "get", put_and_get(q.put, partial(q.get, timeout=1))
    yield "put_nowait", put_and_get(q.put_nowait, q.get_nowait)
    yield "get_nowait", raising(queue.Empty, empty.get_nowait)
    yield "get: it waits in vain", raising(queue.Empty, empty.get, timeout=1e-6)
    yield "get: a time-out that is none", raising(ValueError, empty.get, timeout=-1)
    yield "__reduce__", raising(TypeError, q.__reduce__)
    yield "empty", q.empty
    yield "qsize", q.qsize
    if not isinstance(q, queue.Queue):
        return
    full = filled(3)
    yield "__init__: no size", raising(TypeError, cls, "1")
    yield "put: full", raising(queue.Full, full.put, element, False)
    yield "put: it waits in vain", raising(queue.Full, full.put, element, timeout=1e-6)
    yield "full", full.full
    yield "task_done", lambda: (q.put(q.get() if q.qsize() else element), q.task_done())
    yield "task_done: too often", raising(ValueError, empty.task_done)
    yield "join", empty.join
    yield "maxsize", lambda: setattr(empty, "maxsize", 2**70)
    yield "maxsize: no size", raising(TypeError, setattr, empty, "maxsize", "1")
    yield "unfinished_tasks", lambda: setattr(full, "unfinished_tasks", full.unfinished_tasks)
    yield "is_shutdown", lambda: setattr(full, "is_shutdown", full.is_shutdown)
    yield "shutdown", lambda: filled().shutdown()
    yield "shutdown: at once", lambda: filled().shutdown(True)
    ended = cls()
    ended.shutdown()
    shut_down = importlib.import_module("rstreams_fast.queues").ShutDown
    yield "put: shut down", raising(shut_down, ended.put, element)
    yield "get: shut down", raising(shut_down, ended.get)
    for name in ("mutex", "not_empty", "not_full", "all_tasks_done", "queue"):
        yield name, lambda name=name: getattr(filled(), name)


QUEUES = ("Queue", "LifoQueue", "SimpleQueue")

TABLE: dict[str, Callable[[Kit], Cases]] = {
    "BurstIterator": burst_cases,
    "DemandCounter": demand_cases,
    "Wip": wip_cases,
    "Latch": latch_cases,
    "SpscRing": ring_cases,
    "RecordRing": record_cases,
    "SignalSerializer": serializer_cases,
    "FusedRun": run_cases,
    "CallWindow": window_cases,
}


# -- counting --------------------------------------------------------------------------------------
class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _c_allocator() -> Callable[[], int]:
    """Return a function for how many bytes of the C library are in use; 0 where it cannot tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if mallinfo is None:
        return lambda: 0
    mallinfo.restype = _Mallinfo

    def in_use() -> int:
        info = mallinfo()
        return int(info.uordblks + info.hblkhd)

    return in_use


c_bytes = _c_allocator()


def left_behind(call: Call, watched: list[Any]) -> list[str]:
    """What 1000 calls leave, and 1000 more: an allocator may take something once, for good."""
    return grown_by(call, watched) and grown_by(call, watched)


def grown_by(call: Call, watched: list[Any]) -> list[str]:
    """What 1000 calls leave, in words; nothing is right."""

    def look() -> tuple[list[int], int, int, int]:
        gc.collect()
        objects = len(gc.get_objects())
        references = [sys.getrefcount(x) for x in watched]
        return references, objects, sys.getallocatedblocks(), c_bytes()

    for _ in range(20):  # fills the caches
        call()
    references, objects, blocks, in_c = look()
    for _ in range(CALLS):
        call()
    references_now, objects_now, blocks_now, in_c_now = look()
    grown = [
        f"{now - before} references to {x!r:.60}"
        for x, before, now in zip(watched, references, references_now, strict=True)
        if abs(now - before) > SLACK  # fewer: one was given back that was not ours
    ]
    if objects_now - objects > SLACK:
        grown.append(f"{objects_now - objects} objects")
    if blocks_now - blocks > SLACK_BLOCKS:
        grown.append(f"{blocks_now - blocks} blocks of Python's allocator")
    if in_c_now - in_c > SLACK_BYTES:
        grown.append(f"{in_c_now - in_c} bytes of C's allocator")
    return grown


@pytest.fixture(autouse=True)
def _little_to_collect() -> Iterator[None]:
    """A collection spares what was there before; what is logged would be kept, with tracebacks."""
    freeze()
    log = logging.getLogger("rstreams_fast")
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


SLOWLY = [pytest.param(name, marks=() if name == "c" else pytest.mark.slow) for name in BACKENDS]


@pytest.fixture(params=SLOWLY)
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Only the compiled backend counts references by hand: the others are slow."""
    kit = Kit(load(request.param))
    yield kit
    kit.loop.close()


@pytest.mark.parametrize("name", CLASSES)
def test_no_call_leaves_a_reference(kit: Kit, name: str, dropped: list[Any]) -> None:
    wrong: dict[str, list[str]] = {}
    for what, call in TABLE[name](kit):

        def once(call: Call = call) -> None:
            call()
            dropped.clear()

        try:
            if grown := left_behind(once, kit.watched()):
                wrong[what] = grown
        except Exception as raised:
            wrong[what] = [repr(raised)]
    assert wrong == {}


def public(cls: type) -> set[str]:
    ours = {name for name in SPECIAL if getattr(cls, name, None) is not getattr(object, name, None)}
    return ours | {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_has_every_public_method(kit: Kit, name: str) -> None:
    covered = {what.partition(":")[0] for what, _ in TABLE[name](kit)}
    assert public(getattr(kit.core, name)) <= covered | {"__repr__"}


@pytest.mark.skipif("c" not in MODULES, reason="there are no compiled queues")
@pytest.mark.parametrize("name", QUEUES)
def test_no_call_of_a_queue_leaves_a_reference(name: str) -> None:
    cls, element = getattr(importlib.import_module(f"{MODULES['c']}.queues"), name), Element()
    cases = dict(queue_cases(cls, element))
    watched = [element, None, True, (), cls, queue.Empty, queue.Full]
    wrong = {what: grown for what, call in cases.items() if (grown := left_behind(call, watched))}
    assert wrong == {}
    assert public(cls) <= {what.partition(":")[0] for what in cases}


# -- the proof that it is found --------------------------------------------------------------------

_decref, _incref = ctypes.pythonapi.Py_DecRef, ctypes.pythonapi.Py_IncRef
_decref.argtypes = _incref.argtypes = [ctypes.py_object]


class _Keeping:
    """Each call keeps something."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def an_argument(self, x: Any) -> None:
        _incref(x)

    def too_few(self, x: Any) -> None:
        _decref(x)

    def an_object(self, x: Any) -> None:
        self.kept.append(Element())

    def a_number(self, x: Any) -> None:
        self.kept.append(2.5 * len(self.kept))

    def memory_of_c(self, x: Any) -> None:
        ctypes.CDLL(None).malloc(32)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        ("an_argument", f"{CALLS} references to"),
        ("too_few", f"-{CALLS} references to"),
        ("an_object", " objects'"),
        ("a_number", "blocks of Python's"),
        ("memory_of_c", "bytes of C's"),
    ],
)
def test_a_planted_leak_is_found(plant: str, found: str) -> None:
    if plant == "memory_of_c" and not c_bytes():
        pytest.skip("the C library of this machine does not say what it has given out")
    if plant == "a_number" and not sys.getallocatedblocks():
        pytest.skip("Python's allocator is not in use here, or does not say what it has given out")
    keeping, element = _Keeping(), Element()
    for _ in range(10 * CALLS if plant == "too_few" else 0):
        _incref(element)
    assert found in str(left_behind(lambda: getattr(keeping, plant)(element), [element]))
