"""From a description to a stream, with every element and function of it kept in view."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import itertools
import logging
import operator
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import HandTimer
from tests.streams.pipelines import model as m

_keys = itertools.count()


class Element:
    """What streams carry: a number that can be watched."""

    __slots__ = ("__weakref__", "key", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.key = next(_keys)

    def __repr__(self) -> str:
        return f"<{self.value}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


def plain(value: Any) -> Any:
    """The model's form of an element."""
    if isinstance(value, Element):
        return value.value
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


def keys(value: Any) -> Iterator[int]:
    """Those of the elements in an element."""
    if isinstance(value, Element):
        yield value.key
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from keys(item)


class _Ref(weakref.ref[Any]):
    __slots__ = ("key",)
    key: int


class Watch:
    """Knows which of its objects are alive, and waits until none is."""

    def __init__(self) -> None:
        self._refs: dict[int, _Ref] = {}
        self._keys = itertools.count()
        self._deaths: SimpleQueue[None] | None = None

    def add(self, thing: Any) -> Any:
        ref = _Ref(thing, self._died)
        ref.key = next(self._keys)
        self._refs[ref.key] = ref
        return thing

    def _died(self, ref: _Ref) -> None:
        # Runs anywhere, within anything: no lock that is not reentrant.
        self._refs.pop(ref.key, None)
        if self._deaths is not None:
            self._deaths.put(None)

    def alive(self) -> list[Any]:
        return [thing for ref in list(self._refs.values()) if (thing := ref()) is not None]

    def wait_dead(self, patience: float, collect: Callable[[], object]) -> bool:
        """Wait for the end of all, and collect cyclic garbage while some are left."""
        if not self._refs:
            return True
        self._deaths = deaths = SimpleQueue()
        until = time.monotonic() + patience
        while self._refs:
            try:
                deaths.get(timeout=0.01)
            except Empty:
                # Not once only: threads that were about to let go leave garbage after the first.
                collect()
                if time.monotonic() >= until:
                    break
        return not self._refs


class Refused(RuntimeError):
    """What the executor that has had enough says."""


class Refusing(Executor):
    """Works on a pool for so many pieces of work, and refuses the next ones."""

    def __init__(self, pool: Executor, left: int) -> None:
        self._pool = pool
        self._left = itertools.count(-left)
        self.refused = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if next(self._left) >= 0:
            self.refused = True
            raise Refused("no more work here")
        return self._pool.submit(fn, *args, **kwargs)


class Resources:
    """The threads that all experiments share: they are started once, and are no leak."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(2, "pipelines")
        self.source = ThreadPoolExecutor(1, "pipelines-source")
        self.askers = ThreadPoolExecutor(2, "pipelines-asker")
        for pool, size in ((self.pool, 2), (self.source, 1), (self.askers, 2)):
            together = threading.Barrier(size + 1)
            for _ in range(size):
                pool.submit(together.wait)
            together.wait(DEADLINE)
        self.complaints: list[str] = []  #: of the loop, such as of tasks that nobody waits for
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, said: self.complaints.append(str(said)))
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread = start_thread(self.loop.run_forever, "pipelines-loop")
        wait_for(running)
        self.threads = set(threading.enumerate())
        gc.collect()
        self._thaw = not gc.get_freeze_count()  # a whole suite stays frozen
        gc.freeze()  # what is there already is no leak, and need not be looked through each time

    def close(self) -> None:
        if self._thaw:
            gc.unfreeze()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.result()
        self.loop.close()
        for pool in (self.pool, self.source, self.askers):
            pool.shutdown()

    def tasks_left(self, patience: float) -> list[str]:
        """Wait for the loop's tasks; the names of those that do not end."""

        async def look() -> list[str]:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, others = await asyncio.wait(others, timeout=patience)
            return [repr(task) for task in others]

        return asyncio.run_coroutine_threadsafe(look(), self.loop).result(patience + DEADLINE)


class Foreign:
    """A publisher of somebody else's making: it counts what it is asked for, and keeps the rules.

    ``hands`` runs its emissions: on the thread that asks, or on one of its own. ``at_once``: it
    completes with the last element, not when asked for one more.
    """

    def __init__(
        self,
        items: Callable[[], Iterator[Any]],
        hands: Executor | None,
        at_once: bool,
        give: Callable[[Any], Any],
    ) -> None:
        self._items = items
        self.give = give
        self._hands = hands
        self._at_once = at_once
        self.asked = 0

    def subscribe(self, subscriber: Any, /) -> None:
        _ForeignSubscription(self, subscriber, self._items(), self._hands, self._at_once).start()


class _ForeignSubscription:
    def __init__(
        self,
        publisher: Foreign,
        subscriber: Any,
        items: Iterator[Any],
        hands: Executor | None,
        at_once: bool,
    ) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._hands = hands
        self._at_once = at_once
        self._items = items
        self._ahead: list[Any] = []
        self._lock = threading.Lock()
        self._demand = 0
        self._busy = True

    def start(self) -> None:
        self._subscriber.on_subscribe(self)
        self._go()

    def request(self, n: int, /) -> None:
        with self._lock:
            self._publisher.asked += n
            self._demand += n
            if self._busy:
                return
            self._busy = True
        self._go()

    def cancel(self) -> None:
        with self._lock:
            self._subscriber = None

    def _go(self) -> None:
        if self._hands is None:
            self._emit()
        else:
            self._hands.submit(self._emit)

    def _emit(self) -> None:
        while (signal := self._next()) is not None:
            signal[0](*signal[1:])
            del signal

    def _next(self) -> tuple[Any, ...] | None:
        with self._lock:
            subscriber = self._subscriber
            if subscriber is None:
                self._items = iter(())
                self._ahead.clear()
                self._busy = False
                return None
            try:
                if not self._ahead and (self._demand or self._at_once):
                    self._ahead.append(next(self._items))
            except StopIteration:
                self._subscriber = None
                return (subscriber.on_complete,)
            except m.Boom as boom:
                self._subscriber = None
                return (subscriber.on_error, boom.with_traceback(None))
            if not self._demand:
                self._busy = False
                return None
            self._demand -= 1
            return (subscriber.on_next, self._publisher.give(self._ahead.pop()))


class Counting:
    """An iterable that can be iterated anew, and counts the elements that were taken of it."""

    def __init__(self, items: Callable[[], Iterator[Any]]) -> None:
        self._items = items
        self.pulled = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items():
            self.pulled += 1
            yield item
            del item


class Bench:
    """One experiment's stream, and everything that must be gone after it."""

    def __init__(self, pipeline: m.Pipeline, resources: Resources) -> None:
        self.pipeline = pipeline
        self.resources = resources
        self.subscribers = Watch()
        self.elements = Watch()
        self.functions = Watch()
        self.uses_loop = False
        self.refusing: list[Refusing] = []
        self.counting: Counting | None = None
        self.foreign: Foreign | None = None
        #: The keys of the resources that sources have used.
        self.opened: list[int] = []
        self.closed: list[int] = []
        #: For the hook: the keys of what sources and functions gave, and what became of each.
        self.given: list[int] = []
        self.fates: list[tuple[int, str]] = []

    # -- elements and functions --

    def element(self, value: Any) -> Any:
        """The stream's form of an element, watched."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.element, value))
        return value if value is None else self.elements.add(Element(value))

    def give(self, value: Any) -> Any:
        """Note that the stream has got it."""
        self.given += keys(value)
        return value

    def ends(self, value: Any, fate: str) -> None:
        """Note what became of it: it was delivered, discarded, or used."""
        self.fates += [(key, fate) for key in keys(value)]

    def delivered(self, value: Any) -> None:
        self.ends(value, "delivered")

    def discard(self, value: Any) -> None:
        self.ends(value, "discarded")

    def items(self, origin: m.Origin) -> Iterator[Any]:
        """What a source has to give."""
        return map(self.element, origin.model())

    def given_items(self, origin: m.Origin, give: Callable[[Any], Any]) -> Iterator[Any]:
        """What a source gives as soon as it is taken."""
        return map(give, self.items(origin))

    def function(
        self, index: int, fn: Callable[..., Any], *, in_c: bool = False, uses: int | None = 0
    ) -> Any:
        """The function of operator ``index``, for elements; it uses up those from argument ``uses``
        on.
        """
        fault = self.pipeline.fault
        at = fault.call if fault is not None and fault.op == index else None
        call = m.raising(fn, at, f"operator {index}")
        element = self.element

        def function(*args: Any) -> Any:
            result = call(*map(plain, args))
            if isinstance(result, bool) or uses is None:
                return result if isinstance(result, bool) else element(result)
            if result is not None:
                self.ends(args[uses:], "used")
            return self.give(element(result))

        # To the core a partial is a C callable: those and Python's run in different loops.
        return self.functions.add(functools.partial(function) if in_c else function)

    def executor(self, name: str) -> Any:
        if name == "own":
            return None
        if name == "caller":
            return "caller"
        if name == "pool":
            return self.resources.pool
        if name == "loop":
            self.uses_loop = True
            return self.resources.loop
        self.refusing.append(Refusing(self.resources.pool, int(name.removeprefix("refusing:"))))
        return self.refusing[-1]

    # -- the stream --

    def build(self) -> Any:
        stream = self.source(self.pipeline.origin, counts=True)
        for index, op in enumerate(self.pipeline.ops):
            stream = BUILD[type(op)](self, stream, index, op)
        return stream.on_discard(self.discard) if self.pipeline.discards else stream

    def source(
        self, origin: m.Origin, *, counts: bool = False, once: bool = True
    ) -> rsf.Stream[Any]:
        """A stream of one source; of the one at the top, what is taken of it is counted.

        ``once``: each element is to be delivered, discarded or used once.
        """
        kind, items = origin.kind, functools.partial(self.items, origin)
        give = self.give if once else _not_noted
        given = functools.partial(self.given_items, origin, give)
        if kind == "range":
            return rsf.range_(origin.size)
        if kind == "empty":
            return rsf.empty()
        if kind == "error":
            return rsf.error(m.Boom("the source"))
        if kind == "generate":
            return rsf.generate(0, self.functions.add(self._step(origin)))
        if kind == "defer":
            return rsf.defer(self.functions.add(lambda: rsf.from_iterable(given())))
        if kind == "using":
            return rsf.using(self._open, lambda _: rsf.from_iterable(given()), self._close)
        if kind == "callable":
            return rsf.from_callable(self.functions.add(lambda: self.give(self.element(0))))
        if kind == "async":
            self.uses_loop = True
            return rsf.from_async_iterable(lambda: _slowly(items(), give), loop=self.resources.loop)
        if kind.startswith("create"):
            return rsf.create(
                self.functions.add(self._emission(kind, items, give)), capacity=10_000
            )
        if kind in ("list", "iterator"):
            counting = Counting(given)
            if counts:
                self.counting = counting
            return rsf.from_iterable(iter(counting) if kind == "iterator" else counting)
        hands = self.resources.source if "thread" in kind else None
        foreign = Foreign(items, hands, "late" not in kind, give)
        if counts:
            self.foreign = foreign
        return rsf.from_publisher(foreign)

    def _open(self) -> Any:
        resource = self.functions.add(Element(0))
        self.opened.append(resource.key)
        return resource

    def _close(self, resource: Any) -> None:
        self.closed.append(resource.key)

    def _step(self, origin: m.Origin) -> Callable[[int], Any]:
        def step(n: int) -> Any:
            if n < origin.size:
                return self.give(self.element(n)), n + 1
            if origin.fails:
                raise m.Boom("the source")
            return None

        return step

    def _emission(
        self, kind: str, items: Callable[[], Iterator[Any]], give: Callable[[Any], Any]
    ) -> Callable[[Any], None]:
        def emit(emitter: Any) -> None:
            try:
                for item in items():
                    if emitter.next(item):
                        give(item)
                    del item
            except m.Boom as boom:
                emitter.error(boom)
            else:
                emitter.complete()

        if kind == "create":
            return emit
        return lambda emitter: self.resources.source.submit(emit, emitter)


def _not_noted(value: Any) -> Any:
    return value


async def _slowly(items: Iterator[Any], give: Callable[[Any], Any]) -> AsyncIterator[Any]:
    for number, item in enumerate(items):
        if number % 2:
            await asyncio.sleep(0)
        yield give(item)
        del item


def _map(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    return stream.map(bench.function(index, op.fn, in_c=getattr(op, "in_c", False)))


def _scan(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    seed = () if op.seed is None else (bench.element(op.seed),)
    operator = stream.scan if isinstance(op, m.Scan) else stream.reduce
    return operator(bench.function(index, op.fn, uses=int(isinstance(op, m.Scan))), *seed)


def _do_on(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    name = "do_finally" if op.signal == "finally" else f"do_on_{op.signal}"
    return getattr(stream, name)(bench.function(index, lambda *_: True))


def _publish_on(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    weighed = {}
    if op.max_bytes is not None:
        weigher = bench.functions.add(lambda x: m.digest(plain(x)) % 5)
        weighed = {"max_bytes": op.max_bytes, "weigher": weigher}
    return stream.publish_on(
        bench.executor(op.executor), prefetch=op.prefetch, delay_error=op.delay_error, **weighed
    )


def _map_async(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    call = bench.function(index, op.fn)

    async def function(x: Any) -> Any:
        if op.suspends:
            await asyncio.sleep(0)
        return call(x)

    loop = None
    if op.loop == "shared":
        loop = bench.resources.loop
        bench.uses_loop = True
    key = bench.functions.add(lambda x: m.digest(plain(x)) % 3) if op.in_turn else None
    return stream.map_async(
        bench.functions.add(function),
        key=key,
        concurrency=op.concurrency,
        prefetch=op.prefetch,
        ordered=op.ordered,
        loop=loop,
    )


def _distinct_keys(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    key = bench.function(index, op.fn, uses=None)
    return stream.distinct(lambda x: key(x).value, max_keys=op.max_keys)


def _ignore(_error: Exception, _element: Any) -> None:
    pass


#: Operators that leave all as it is, or are followed by what undoes them.
PASSING: dict[str, Callable[[Any], Any]] = {
    "named": lambda s: s.named("it"),
    "log": lambda s: s.log(QUIET.name),
    "timestamp": lambda s: s.timestamp(lambda: 0).map(operator.itemgetter(1)),
}
QUIET = logging.getLogger("rstreams_fast.pipelines")
QUIET.setLevel(logging.DEBUG)
QUIET.addFilter(lambda record: False)  # pytest's handler would keep the elements


def _heavy_batch(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    how = {}
    if op.max_bytes is not None:
        how["max_bytes"] = op.max_bytes
        how["weigher"] = bench.functions.add(lambda x: op.weigh(plain(x)))
    if op.timed or not how:
        how["seconds"] = 3600.0
        how["timer"] = HandTimer()
    return stream.batch(op.n, **how)


def _windows(_bench: Bench, stream: Any, _index: int, op: Any) -> Any:
    if not op.streams:
        return stream.batch(op.n, skip=op.skip)
    windows = stream.window(op.n, skip=op.skip)
    return windows.concat_map(lambda window: window.batch(op.n), prefetch=1)


def _groups(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    key = bench.function(index, op.fn)
    timer = HandTimer()
    groups = stream.group_by(lambda x: key(x).value, prefetch=op.prefetch, timer=timer)
    return groups.flat_map(lambda group: group.stream.batch(10**9))


def _inner(bench: Bench, index: int, op: Any) -> Any:
    """The function of flat_map: a publisher for each element."""
    fault = bench.pipeline.fault
    at = fault.call if fault is not None and fault.op == index else None
    call = m.raising(op.fn, at, f"operator {index}")

    def inner(x: Any) -> Any:
        origin = call(plain(x))
        if not isinstance(op, m.Expand):  # which delivers it, too
            bench.ends(x, "used")
        return bench.source(dataclasses.replace(origin, kind=op.kind))

    return bench.functions.add(inner)


def _if_empty(bench: Bench, stream: Any, _index: int, op: Any) -> Any:
    if op.n == 1:
        return stream.default_if_empty(bench.element(0))
    return stream.switch_if_empty(bench.source(m.Origin(size=op.n)))


def _switch_map(bench: Bench, stream: Any, _index: int, op: Any) -> Any:
    last = bench.source(m.Origin(kind=op.kind, size=op.size))
    used = stream.map(lambda x: bench.ends(x, "used") or rsf.never())
    publishers = used.concat(rsf.from_iterable([last]))
    return publishers.switch_map(lambda publisher: publisher, prefetch=op.prefetch)


def _others(bench: Bench, op: Any) -> list[Any]:
    return [bench.source(other) for other in op.others]


def _shared(bench: Bench, stream: Any, index: int, op: Any) -> Any:
    if op.kind == "share" and bench.pipeline.subscribers == 1:
        return stream.share(buffer_size=op.buffer_size)
    last = index == len(bench.pipeline.ops) - 1
    how = {
        "buffer_size": op.buffer_size,
        "min_subscribers": bench.pipeline.subscribers if last else 1,
    }
    if op.kind == "replay":
        # Not "keep": a source that is kept for the next subscriber is left waiting, and rightly so.
        return stream.replay(count=2, on_last_cancel="shut_down", **how)
    return stream.multicast(**how)


class _Processed:
    """What a processor publishes of an upstream that it is subscribed to when it is needed."""

    def __init__(self, upstream: Any, op: Any) -> None:
        self._upstream = upstream
        self._op = op

    def subscribe(self, subscriber: Any, /) -> None:
        make: dict[str, Callable[[], Any]] = {
            "processor": lambda: rsf.processor(lambda stream: stream),
            "serialized": rsf.SerializedProcessor,
            "multicast": rsf.MulticastProcessor,
            "replay": lambda: rsf.ReplayProcessor(count=1000, on_last_cancel="shut_down"),
        }
        processor = make[self._op.kind]()
        if self._op.upstream_first:
            self._upstream.subscribe(processor)
            processor.subscribe(subscriber)
        else:
            processor.subscribe(subscriber)
            self._upstream.subscribe(processor)


#: How each operator is applied to a stream.
BUILD: dict[type, Callable[[Bench, Any, int, Any], Any]] = {
    m.Map: _map,
    m.Spread: _map,
    m.MapNotNone: lambda b, s, i, op: s.map_not_none(b.function(i, op.fn)),
    m.Filter: lambda b, s, i, op: s.filter(b.function(i, op.fn, in_c=op.in_c)),
    m.Take: lambda b, s, i, op: s.take(op.n),
    m.TakeWhile: lambda b, s, i, op: s.take_while(b.function(i, op.fn)),
    m.SkipWhile: lambda b, s, i, op: s.skip_while(b.function(i, op.fn)),
    m.Skip: lambda b, s, i, op: s.skip(op.n),
    m.Scan: _scan,
    m.Reduce: _scan,
    m.Batch: lambda b, s, i, op: s.batch(op.n),
    m.Windows: _windows,
    m.Sift: lambda b, s, i, op: getattr(s, op.operator)(3600.0, timer=HandTimer()),
    m.Groups: _groups,
    m.DoOn: _do_on,
    m.Unbatch: lambda b, s, i, op: s.map(_iterable).unbatch(),
    m.PublishOn: _publish_on,
    m.SubscribeOn: lambda b, s, i, op: s.subscribe_on(b.executor(op.executor)),
    m.MapAsync: _map_async,
    m.MapBlocking: lambda b, s, i, op: s.map_blocking(
        b.function(i, op.fn),
        b.resources.pool,
        concurrency=op.concurrency,
        prefetch=op.prefetch,
        ordered=op.ordered,
    ),
    m.DistinctKeys: _distinct_keys,
    m.Continuing: lambda b, s, i, op: s.map(b.function(i, op.fn)).on_error_continue(_ignore),
    m.Passing: lambda b, s, i, op: PASSING[op.operator](s),
    m.WindowTime: lambda b, s, i, op: s.window_time(
        3600.0, prefetch=op.prefetch, timer=HandTimer()
    ).concat_map(lambda window: window.batch(10**9), prefetch=1),
    m.Distinct: lambda b, s, i, op: s.distinct_until_changed(b.function(i, op.fn, uses=None)),
    m.DelayElements: lambda b, s, i, op: s.delay_elements(1e-6),
    m.HeavyBatch: _heavy_batch,
    m.Timeout: lambda b, s, i, op: s.timeout(3600.0, timer=HandTimer()),
    m.OnOverflow: lambda b, s, i, op: s.on_overflow(rsf.Overflow[op.strategy], capacity=10_000),
    m.Merge: lambda b, s, i, op: s.merge(
        *_others(b, op), prefetch=op.prefetch, delay_error=op.delay_error
    ),
    m.Zip: lambda b, s, i, op: s.zip(*_others(b, op), prefetch=op.prefetch),
    # The newest element of the other one is delivered as often as there are pairs.
    m.CombineLatest: lambda b, s, i, op: s.combine_latest(
        b.source(op.other, once=False), prefetch=op.prefetch
    ),
    m.WithLatest: lambda b, s, i, op: s.with_latest_from(b.source(op.other, once=False)),
    m.Race: lambda b, s, i, op: s.race(rsf.never()) if op.first else rsf.never().race(s),
    # What the other one signals is no element.
    m.TakeUntil: lambda b, s, i, op: s.take_until(
        rsf.never() if op.kind == "never" else b.source(m.Origin(op.kind, 3), once=False)
    ),
    m.Concat: lambda b, s, i, op: s.concat(*_others(b, op)),
    m.FlatMap: lambda b, s, i, op: (s.flat_map_sequential if op.sequential else s.flat_map)(
        _inner(b, i, op),
        concurrency=op.concurrency,
        prefetch=op.prefetch,
        delay_error=op.delay_error,
    ),
    m.ConcatMap: lambda b, s, i, op: s.concat_map(_inner(b, i, op), prefetch=op.prefetch),
    m.SwitchMap: _switch_map,
    m.Expand: lambda b, s, i, op: s.expand(_inner(b, i, op), depth_first=op.depth_first),
    m.StartWith: lambda b, s, i, op: s.start_with(*map(b.element, range(op.n))),
    m.IfEmpty: _if_empty,
    m.ErrorReturn: lambda b, s, i, op: s.on_error_return(b.element(7)),
    m.Shared: _shared,
    m.Through: lambda b, s, i, op: rsf.from_publisher(_Processed(s, op)),
    m.Retry: lambda b, s, i, op: s.retry(op.times),
    m.Repeat: lambda b, s, i, op: s.repeat(op.times),
    m.Resume: lambda b, s, i, op: s.on_error_resume(
        b.functions.add(lambda error: b.source(op.other))
    ),
}


def _iterable(x: Any) -> Any:
    return x if isinstance(x, (list, tuple)) else [x]


__all__ = ["BUILD", "Bench", "Element", "Refused", "Resources", "Watch", "plain"]
