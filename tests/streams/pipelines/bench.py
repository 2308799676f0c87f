"""From a description to a stream, with every element and function of it kept in view."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any

from tests.helpers import DEADLINE
from tests.operators import SOURCE_OF, Origin
from tests.operators.entry import Boom, raising, same
from tests.streams.loops import loop_thread
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
        self._stack = ExitStack()
        self.pool = self._stack.enter_context(ThreadPoolExecutor(2, "pipelines"))
        self.source = self._stack.enter_context(ThreadPoolExecutor(1, "pipelines-source"))
        self.askers = self._stack.enter_context(ThreadPoolExecutor(2, "pipelines-asker"))
        for pool, size in ((self.pool, 2), (self.source, 1), (self.askers, 2)):
            together = threading.Barrier(size + 1)
            for _ in range(size):
                pool.submit(together.wait)
            together.wait(DEADLINE)
        self.complaints: list[str] = []  #: of the loop, such as of tasks that nobody waits for
        self.loop = self._stack.enter_context(loop_thread())
        self.loop.set_exception_handler(lambda _, said: self.complaints.append(str(said)))
        self.threads = set(threading.enumerate())
        gc.collect()
        self._thaw = not gc.get_freeze_count()  # a whole suite stays frozen
        gc.freeze()  # what is there already is no leak, and need not be looked through each time

    def close(self) -> None:
        if self._thaw:
            gc.unfreeze()
        self._stack.close()

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
        self.items = items
        self.give = give
        self.hands = hands
        self.at_once = at_once
        self.asked = 0

    def subscribe(self, subscriber: Any, /) -> None:
        _ForeignSubscription(self, subscriber).start()


class _ForeignSubscription:
    def __init__(self, publisher: Foreign, subscriber: Any) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._items = publisher.items()
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
        if self._publisher.hands is None:
            self._emit()
        else:
            self._publisher.hands.submit(self._emit)

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
                if not self._ahead and (self._demand or self._publisher.at_once):
                    self._ahead.append(next(self._items))
            except StopIteration:
                self._subscriber = None
                return (subscriber.on_complete,)
            except Boom as boom:
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
        self._counts = False
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

    def items(self, origin: Origin) -> Iterator[Any]:
        """What a source has to give."""
        return map(self.element, origin.model())

    def function(
        self, index: int, fn: Callable[..., Any], *, in_c: bool = False, uses: int | None = 0
    ) -> Any:
        """The function of operator ``index``, for elements; it uses up those from argument ``uses``
        on; with ``None`` no element.
        """
        call = raising(fn, self.pipeline.fails_at(index), f"operator {index}")
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
            return self.shared_loop()
        self.refusing.append(Refusing(self.resources.pool, int(name.removeprefix("refusing:"))))
        return self.refusing[-1]

    # -- the stream --

    def build(self) -> Any:
        stream = self.source(self.pipeline.origin, counts=True)
        for index, op in enumerate(self.pipeline.ops):
            stream = op.build(self, stream, index)
        return stream.on_discard(self.discard) if self.pipeline.discards else stream

    def source(self, origin: Origin, *, counts: bool = False, once: bool = True) -> Any:
        """A stream of one source; of the one at the top, what is taken of it is counted.

        ``once``: each element is to be delivered, discarded or used once.
        """
        self._counts = counts
        give = self.give if once else same
        given = functools.partial(self.items, origin)
        return SOURCE_OF[origin.kind]().build(self, origin, given, give)

    # -- for the entries of the table --

    plain = staticmethod(plain)

    def shared_loop(self) -> asyncio.AbstractEventLoop:
        self.uses_loop = True
        return self.resources.loop

    def counted(
        self, give: Callable[[Iterator[Any]], Iterator[Any]], items: Callable[[], Iterator[Any]]
    ) -> Counting:
        counting = Counting(lambda: give(items()))
        if self._counts:
            self.counting = counting
        return counting

    def foreign_of(
        self,
        items: Callable[[], Iterator[Any]],
        give: Callable[[Any], Any],
        *,
        thread: bool,
        at_once: bool,
    ) -> Foreign:
        foreign = Foreign(items, self.resources.source if thread else None, at_once, give)
        if self._counts:
            self.foreign = foreign
        return foreign

    def inner(self, index: int, op: Any, *, uses: bool = True) -> Any:
        """The function that makes a publisher for each element, which it uses up."""
        call = raising(op.fn, self.pipeline.fails_at(index), f"operator {index}")

        def inner(x: Any) -> Any:
            origin = call(plain(x))
            if uses:
                self.ends(x, "used")
            return self.source(dataclasses.replace(origin, kind=op.kind))

        return self.functions.add(inner)

    def open(self) -> Any:
        resource = self.functions.add(Element(0))
        self.opened.append(resource.key)
        return resource

    def close(self, resource: Any) -> None:
        self.closed.append(resource.key)


__all__ = ["Bench", "Element", "Refused", "Resources", "Watch", "plain"]
