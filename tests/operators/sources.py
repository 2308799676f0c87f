"""The entries of sources: how random pipelines make each, and what the kit judges of it."""

from __future__ import annotations

import asyncio
import operator
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from hypothesis import strategies as st

import rstreams_fast as rsf
from rstreams_fast import Emitter, Overflow
from tests.helpers import start_thread
from tests.operators.entry import NO_LOOK_AHEAD, NO_REGISTRY, Boom, Items, NoStream, Over, snake
from tests.rules.probes import HandTimer

FAIL_AT = "the source failed, as it should"
#: More than the kit ever asks of one publisher: nothing is to be lost here.
ENOUGH = 4000


def failing(elements: int) -> Iterator[int]:
    yield from range(elements)
    raise ValueError(FAIL_AT)


class EverySecond:
    """Numbers of which every first attempt fails, and every second one succeeds."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._attempts = 0

    def __iter__(self) -> Iterator[int]:
        self._attempts += 1
        if self._attempts % 2:
            raise OSError("try again")
        return iter(range(self._elements))


@dataclass(frozen=True)
class Origin:
    """A source of the numbers from 0 to ``size`` - 1, which may fail after them."""

    kind: str = "list"
    size: int = 5
    fails: bool = False

    @property
    def is_pulled(self) -> bool:
        """Pulled on the thread that asks: nothing is asked ahead, and nothing overtakes."""
        return SOURCE_OF[self.kind].is_pulled

    def model(self) -> Items:
        yield from range(self.size)
        if self.fails:
            raise Boom("the source")


def origins() -> st.SearchStrategy[Origin]:
    """Any source that random pipelines know."""
    sizes = st.integers(0, 12) | st.sampled_from([30, 70])
    free = [kind for kind, source in SOURCE_OF.items() if source.fixed is None]
    fixed = [source.fixed for source in SOURCES if source.fixed is not None]
    return st.deferred(
        lambda: st.one_of(
            st.builds(Origin, kind=st.just("range"), size=sizes),
            st.builds(
                Origin,
                kind=st.sampled_from(["list", *(kind for kind in free if kind != "range")]),
                size=sizes,
                fails=st.sampled_from([False, False, False, True]),
            ),
            st.sampled_from(fixed),
        )
    )


# -- how the kit uses it ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Gives:
    """A publisher of so many elements, for the kit."""

    of: Callable[[int], Any]
    #: The same, which fails after them.
    failing: Callable[[int], Any] | None = None
    #: Whether it can fail at once, without demand.
    fails_at_once: bool = False
    not_claimed: tuple[str, ...] = NO_REGISTRY
    subscribers: int = rsf.UNBOUNDED
    asyncio_bound: bool = False


#: All entries, in the order in which they stand here, and the entry of each kind.
SOURCES: Final[list[type[Source]]] = []
SOURCE_OF: Final[dict[str, type[Source]]] = {}


class Source:
    """A source. A subclass is an entry of the table, for ``kinds`` that random pipelines draw."""

    #: The public functions that it tells of; by default the one that has its name.
    functions: ClassVar[tuple[str, ...]]
    #: The only origin of its kind, if it has a size of its own.
    fixed: ClassVar[Origin | None]
    is_pulled: ClassVar[bool]
    uses: ClassVar[dict[str, Gives]] = {}

    def __init_subclass__(
        cls, kinds: tuple[str, ...] = (), fixed: Origin | None = None, is_pulled: bool = False
    ) -> None:
        cls.fixed, cls.is_pulled = fixed, is_pulled
        if "functions" not in vars(cls):
            cls.functions = (snake(cls.__name__),)
        SOURCES.append(cls)
        SOURCE_OF.update(dict.fromkeys(kinds, cls))

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        """The source of what ``given`` iterates; ``give`` notes what the stream has got."""
        raise NotImplementedError


class Range(Source, kinds=("range",), is_pulled=True):
    functions = ("range_",)
    uses = {
        "Range": Gives(rsf.range_),
        "FailedSource": Gives(rsf.range_, lambda n: rsf.from_iterable(failing(n))),
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.range_(origin.size)


class FromIterable(Source, kinds=("list", "iterator"), is_pulled=True):
    uses = {
        "List": Gives(lambda n: rsf.from_iterable(list(range(n)))),
        "Generator": Gives(
            lambda n: rsf.from_iterable(x for x in range(n)),
            not_claimed=NO_LOOK_AHEAD,
            subscribers=1,
        ),
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        counted = bench.counted(partial(map, give), given)
        return rsf.from_iterable(iter(counted) if origin.kind == "iterator" else counted)


class Generate(Source, kinds=("generate",), is_pulled=True):
    uses = {
        "Generate": Gives(
            lambda n: rsf.generate(0, lambda x: (x, x + 1) if x < n else None),
            not_claimed=NO_LOOK_AHEAD,
        )
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        def step(n: int) -> Any:
            if n < origin.size:
                return give(bench.element(n)), n + 1
            if origin.fails:
                raise Boom("the source")
            return None

        return rsf.generate(0, bench.functions.add(step))


class Defer(Source, kinds=("defer",)):
    uses = {
        "Defer": Gives(
            lambda n: rsf.defer(lambda: NoStream(rsf.range_(n))),
            lambda n: rsf.defer(lambda: rsf.from_iterable(failing(n))),
        )
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.defer(bench.functions.add(lambda: rsf.from_iterable(map(give, given()))))


class Using(Source, kinds=("using",)):
    uses = {
        "Using": Gives(
            lambda n: rsf.using(object, lambda _r: rsf.range_(n), id),
            lambda n: rsf.using(object, lambda _r: rsf.from_iterable(failing(n)), id),
        )
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.using(bench.open, lambda _: rsf.from_iterable(map(give, given())), bench.close)


class FromAsyncIterable(Source, kinds=("async",)):
    @staticmethod
    async def numbers(elements: int, *, fails: bool = False) -> AsyncIterator[int]:
        for n in range(elements):
            await asyncio.sleep(0)
            yield n
        if fails:
            raise ValueError(FAIL_AT)

    @staticmethod
    def _of(n: int, *, fails: bool = False) -> Any:
        return rsf.from_async_iterable(lambda: FromAsyncIterable.numbers(n, fails=fails))

    uses = {
        "AsyncIterable": Gives(_of, partial(_of, fails=True), not_claimed=NO_LOOK_AHEAD),
        "AsyncIterableOnTheRunningLoop": Gives(
            _of, partial(_of, fails=True), not_claimed=NO_LOOK_AHEAD, asyncio_bound=True
        ),
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        async def slowly(items: Items) -> AsyncIterator[Any]:
            for number, item in enumerate(items):
                if number % 2:
                    await asyncio.sleep(0)
                yield give(item)
                del item

        return rsf.from_async_iterable(lambda: slowly(given()), loop=bench.shared_loop())


class FromPublisher(
    Source, kinds=("foreign", "foreign-late", "foreign-thread", "foreign-thread-late")
):
    uses = {
        "Foreign": Gives(
            lambda n: rsf.from_publisher(NoStream(rsf.range_(n))).map(int).filter(str),
            lambda n: rsf.from_publisher(NoStream(rsf.from_iterable(failing(n)))),
        )
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.from_publisher(
            bench.foreign_of(
                given, give, thread="thread" in origin.kind, at_once="late" not in origin.kind
            )
        )


class Create(Source, kinds=("create", "create-thread")):
    @staticmethod
    def at_once(n: int, error: Exception | None = None) -> Any:
        """Sends everything within subscribe."""

        def send(emitter: Emitter[int]) -> None:
            for number in range(n):
                emitter.next(number)
            _end(emitter, error)

        return rsf.create(send, overflow=Overflow.BUFFER, capacity=ENOUGH)

    @staticmethod
    def on_a_thread(overflow: Overflow, n: int, error: Exception | None = None) -> Any:
        """A thread sends, but no more than is asked for, which it looks at."""

        def begin(emitter: Emitter[int]) -> None:
            # Without a reference, so that the thread ends when a subscription is forgotten.
            start_thread(partial(_send_politely, weakref.ref(emitter), n, error), "sender")

        return rsf.create(begin, overflow=overflow, capacity=ENOUGH)

    @staticmethod
    def latest(n: int, error: Exception | None = None) -> Any:
        """Here an element that was asked for is waited for, too: the next would replace it."""

        def stream() -> rsf.Stream[int]:
            taken: list[int] = []

            def begin(emitter: Emitter[int]) -> None:
                send = partial(_send_politely, weakref.ref(emitter), n, error, taken)
                start_thread(send, "sender")

            return rsf.create(begin, overflow=Overflow.LATEST).do_on_next(taken.append)

        return _ForEachSubscriber(stream)

    uses = {
        name: Gives(make, lambda n, make=make: make(n, ValueError(FAIL_AT)), fails_at_once=True)
        for name, make in {
            "CreateAtOnce": at_once,
            "CreateWithLatest": latest,
            "CreateWithBuffer": partial(on_a_thread, Overflow.BUFFER),
            "CreateWithError": partial(on_a_thread, Overflow.ERROR),
            "CreateWithDropOldest": partial(on_a_thread, Overflow.DROP_OLDEST),
            "CreateWithDropLatest": partial(on_a_thread, Overflow.DROP_LATEST),
        }.items()
    }

    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        def emit(emitter: Any) -> None:
            try:
                for item in given():
                    if emitter.next(item):
                        give(item)
                    del item
            except Boom as boom:
                emitter.error(boom)
            else:
                emitter.complete()

        submit = bench.resources.source.submit
        fn = emit if origin.kind == "create" else lambda emitter: submit(emit, emitter)
        return rsf.create(bench.functions.add(fn), capacity=10_000)


class _ForEachSubscriber:
    """A stream of its own for each."""

    def __init__(self, make: Callable[[], rsf.Stream[int]]) -> None:
        self._make = make

    def subscribe(self, subscriber: Any, /) -> None:
        self._make().subscribe(subscriber)


def _end(emitter: Emitter[Any], error: Exception | None) -> None:
    if error is None:
        emitter.complete()
    else:
        emitter.error(error)


def _send_politely(
    forgettable: Callable[[], Emitter[int] | None],
    elements: int,
    error: Exception | None,
    taken: list[int] | None = None,
) -> None:
    pause = threading.Event()
    sent, seconds = 0, 0.0002
    while (emitter := forgettable()) is not None and not emitter.cancelled:
        if sent == elements:
            _end(emitter, error)
            return
        if emitter.demand > 0 and (taken is None or len(taken) == sent):
            emitter.next(sent)
            sent, seconds = sent + 1, 0.0002
            continue
        del emitter
        pause.wait(seconds)
        seconds = min(2 * seconds, 0.02)


class Empty(Source, kinds=("empty",), fixed=Origin("empty", 0), is_pulled=True):
    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.empty()


class Error(Source, kinds=("error",), fixed=Origin("error", 0, fails=True)):
    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.error(Boom("the source"))


class FromCallable(Source, kinds=("callable",), fixed=Origin("callable", 1), is_pulled=True):
    def build(self, bench: Any, origin: Origin, given: Callable[[], Items], give: Over) -> Any:
        return rsf.from_callable(bench.functions.add(lambda: give(bench.element(0))))


class Never(Source):
    """The entries of combinations stand beside it."""


class FromNumpy(Source):
    @staticmethod
    def _of(n: int) -> Any:
        import numpy as np

        return rsf.from_numpy(np.arange(n), chunk=1)

    uses = {"FromNumpy": Gives(_of)}


class FromArrow(Source):
    @staticmethod
    def _of(n: int) -> Any:
        import pyarrow as pa

        return rsf.from_arrow(pa.table({"n": range(n)}), chunk=1)

    @staticmethod
    def _failing(n: int) -> Any:
        import pyarrow as pa

        def batches() -> Iterator[Any]:
            for number in failing(n):
                yield pa.RecordBatch.from_pydict({"n": [number]})

        schema = pa.schema([("n", pa.int64())])
        return rsf.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))

    uses = {"FromArrow": Gives(_of, _failing, not_claimed=NO_LOOK_AHEAD)}


class Interval(Source):
    """Ticks of a clock that a thread moves, while there is a subscriber."""

    @staticmethod
    def of(n: int) -> Any:
        def ticks(stop: threading.Event) -> Any:
            timer = HandTimer()

            def move() -> None:
                while not stop.wait(0.0002):
                    timer.advance(1)

            start_thread(move, "clock")
            return rsf.interval(
                1, delay=0, overflow=Overflow.DROP_LATEST, capacity=ENOUGH, timer=timer
            )

        # Counted anew: on a loaded machine the clock may be moved past the first ticks.
        numbers = rsf.using(threading.Event, ticks, threading.Event.set).map(lambda _n: 1)
        return numbers.scan(operator.add).take(n)

    @staticmethod
    def failing(n: int) -> Any:
        def check(number: int) -> int:
            if number > n:
                raise ValueError(FAIL_AT)
            return number

        return Interval.of(n + 1).map(check)

    uses = {"Interval": Gives(of, failing)}
