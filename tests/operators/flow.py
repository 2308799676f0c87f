"""The entries of operators that change threads, share a subscription, or subscribe again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import rstreams_fast as rsf
from rstreams_fast import Overflow
from tests.operators.entry import (
    EXECUTORS,
    INFINITE,
    NO_LOOK_AHEAD,
    NO_ORDER,
    POSITIVE,
    PREFETCHES,
    Boom,
    Function,
    Items,
    NoStream,
    Op,
    Use,
    digest,
    same,
    weigh,
)
from tests.operators.sources import EverySecond, Origin, origins
from tests.operators.stages import Map

#: More than the kit ever asks of one publisher: nothing is to be lost here.
ENOUGH = 4000


class PublishOn(Op, engine="AsyncBoundarySubscription", needs_order=False):
    executor: str = "own"
    prefetch: int = 4
    max_bytes: int | None = None
    delay_error: bool = False
    draws = {
        "executor": EXECUTORS,
        "prefetch": PREFETCHES,
        "max_bytes": st.none() | st.sampled_from([1, 8]),
        "delay_error": st.booleans(),
    }
    uses = {
        "PublishOnTheCaller": Use(lambda s: s.publish_on("caller", prefetch=4)),
        "PublishOnDelayed": Use(lambda s: s.publish_on("caller", delay_error=True)),
        "PublishOnWeighed": Use(lambda s: s.publish_on("caller", max_bytes=9, weigher=weigh)),
        "PublishOn": Use(lambda s: s.publish_on(), threads=True),
        "PublishOnOneByOne": Use(lambda s: s.publish_on(prefetch=1), threads=True),
        "PublishOnSmallPrefetch": Use(lambda s: s.publish_on(prefetch=2), threads=True),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        weighed = {}
        if self.max_bytes is not None:
            weigher = bench.functions.add(lambda x: digest(bench.plain(x)) % 5)
            weighed = {"max_bytes": self.max_bytes, "weigher": weigher}
        return stream.publish_on(
            bench.executor(self.executor),
            prefetch=self.prefetch,
            delay_error=self.delay_error,
            **weighed,
        )


class PublishRecordsOn(Op, engine="AsyncBoundarySubscription", modelled=False):
    """Its elements are arrays: it is judged with elements behind their numbers."""

    @staticmethod
    def over(stream: Any, executor: Any = None, **how: Any) -> Any:
        boxed = _Boxed()
        records = stream.map(boxed.number).publish_records_on("i8", executor, chunk=1, **how)
        return records.map(boxed.element)

    @staticmethod
    def of(n: int) -> Any:
        """Each array is more than there is room for."""
        import numpy as np

        arrays = rsf.from_numpy(np.arange(n), chunk=7)
        return arrays.publish_records_on("i8", capacity=3, chunk=1)

    uses = {
        "PublishRecordsOn": Use(
            lambda s: PublishRecordsOn.over(s, capacity=4), threads=True, chains=False
        ),
        "PublishRecordsOnLarge": Use(
            lambda s: PublishRecordsOn.over(s, capacity=4), of=of, threads=True, chains=False
        ),
        "PublishRecordsOnTheCaller": Use(
            lambda s: PublishRecordsOn.over(s, "caller"), chains=False
        ),
    }


class _Boxed:
    """Elements behind their numbers, which records can be. Several subscribers share one."""

    def __init__(self) -> None:
        self._elements: list[Any] = []
        self._lock = threading.Lock()

    def number(self, element: Any) -> Any:
        import numpy as np

        with self._lock:
            self._elements.append(element)
            return np.array([len(self._elements) - 1])

    def element(self, number: Any) -> Any:
        return self._elements[int(number[0])]


class SubscribeOn(Op, engine="PushSubscription", needs_order=False):
    executor: str = "own"
    draws = {"executor": EXECUTORS}
    uses = {
        "SubscribeOnTheCaller": Use(lambda s: s.subscribe_on("caller")),
        "SubscribeOn": Use(lambda s: s.subscribe_on(), threads=True),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.subscribe_on(bench.executor(self.executor))


class _Calls(Op, engine="InputRing", needs_order=False):
    concurrency: int = 2
    prefetch: int = 4
    ordered: bool = True

    @property
    def keeps_order(self) -> bool:  # type: ignore[override]
        return self.ordered

    def on_the_caller(self) -> Op:
        return Map()

    fn = staticmethod(lambda x: digest(x) + 2)

    def model(self, items: Items, call: Function) -> Items:
        return map(call(self.fn), items)


async def same_later(x: Any) -> Any:
    await asyncio.sleep(0)
    return x


def _parity(x: Any) -> int:
    return hash(x) % 2


class MapAsync(_Calls):
    suspends: bool = True
    in_turn: bool = False
    loop: str = "shared"
    draws = {
        "concurrency": st.integers(1, 4),
        "prefetch": st.sampled_from([4, 8]),
        "ordered": st.booleans(),
        "suspends": st.booleans(),
        "in_turn": st.booleans(),
        "loop": st.sampled_from(["shared", "shared", "shared", "private"]),
    }
    uses = {
        "MapAsync": Use(lambda s: s.map_async(same_later, concurrency=8), threads=True),
        "MapAsyncInTurn": Use(
            lambda s: s.map_async(same_later, concurrency=8, key=_parity), threads=True
        ),
        "MapAsyncUnordered": Use(
            lambda s: s.map_async(same_later, concurrency=8, ordered=False),
            threads=True,
            not_claimed=NO_ORDER,
        ),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        call = bench.function(index, self.fn)

        async def function(x: Any) -> Any:
            if self.suspends:
                await asyncio.sleep(0)
            return call(x)

        loop = bench.shared_loop() if self.loop == "shared" else None
        key = bench.functions.add(lambda x: digest(bench.plain(x)) % 3) if self.in_turn else None
        return stream.map_async(
            bench.functions.add(function),
            key=key,
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            ordered=self.ordered,
            loop=loop,
        )


class MapBlocking(_Calls):
    draws = {
        "concurrency": st.integers(1, 3),
        "prefetch": st.sampled_from([4, 8]),
        "ordered": st.booleans(),
    }
    use = Use(lambda s: s.map_blocking(same, concurrency=4), threads=True)

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.map_blocking(
            bench.function(index, self.fn),
            bench.resources.pool,
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            ordered=self.ordered,
        )


class OnOverflow(Op, engine="OverflowSubscription", asks_for_all=True, needs_order=False):
    """With room for everything, no strategy drops anything."""

    strategy: str = "BUFFER"
    draws = {"strategy": st.sampled_from(["BUFFER", "DROP_OLDEST", "DROP_LATEST"])}
    uses = {
        **{
            f"OnOverflow{strategy.name}": Use(
                lambda s, strategy=strategy: s.on_overflow(strategy, capacity=ENOUGH),
                takes_early=True,
            )
            for strategy in (Overflow.BUFFER, Overflow.DROP_OLDEST, Overflow.DROP_LATEST)
        },
        "OnOverflowBetweenThreads": Use(
            lambda s: s.subscribe_on().on_overflow(Overflow.BUFFER, capacity=ENOUGH).publish_on(),
            threads=True,
        ),
    }
    #: As subscribers only: what drops elements gives fewer than it got.
    above = {
        "OnOverflowLATEST": lambda s: s.on_overflow(Overflow.LATEST),
        "OnOverflowERROR": lambda s: s.on_overflow(Overflow.ERROR),
    }

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.on_overflow(Overflow[self.strategy], capacity=10_000)


# -- sharing ---------------------------------------------------------------------------------------
class Shared(Op, engine="MulticastPublisher", needs_order=False, accounted=False, shared=True):
    """One subscription upstream for all below: they get the same, at the pace of the slowest."""

    methods = ("multicast", "share", "replay")
    kind: str = "multicast"  #: multicast, share or replay
    buffer_size: int = 4
    draws = {"kind": st.sampled_from(["multicast", "share", "replay"]), "buffer_size": PREFETCHES}
    uses = {
        "Multicast": Use(lambda s: s.multicast(), not_claimed=(), takes_early=True),
        "MulticastSmallBuffer": Use(
            lambda s: s.multicast(buffer_size=4, on_last_cancel="keep"),
            not_claimed=(),
            takes_early=True,
        ),
        "MulticastThatDrops": Use(
            lambda s: s.multicast(buffer_size=64, slow="drop", delay_error=True),
            not_claimed=(),
            takes_early=True,
        ),
        "Share": Use(lambda s: s.share(), not_claimed=(), takes_early=True),
        # Elements come from a thread of their own, requests from those of the subscribers.
        "ShareBetweenThreads": Use(
            lambda s: s.publish_on(prefetch=16).share(buffer_size=8), not_claimed=(), threads=True
        ),
        "Replay": Use(
            lambda s: s.replay(count=100, on_last_cancel="shut_down"),
            not_claimed=(),
            takes_early=True,
        ),
        "ReplayByWeightAndTime": Use(
            lambda s: s.replay(
                max_bytes=8, weigher=_four, seconds=3600.0, buffer_size=4, on_last_cancel="restart"
            ),
            not_claimed=(),
            takes_early=True,
        ),
    }

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted + self.buffer_size

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        subscribers = bench.pipeline.subscribers
        if self.kind == "share" and subscribers == 1:
            return stream.share(buffer_size=self.buffer_size)
        last = index == len(bench.pipeline.ops) - 1
        how: dict[str, Any] = {
            "buffer_size": self.buffer_size,
            "min_subscribers": subscribers if last else 1,
        }
        if self.kind == "replay":
            # Not "keep": a source that is kept for the next subscriber is left waiting, and
            # rightly so.
            return stream.replay(count=2, on_last_cancel="shut_down", **how)
        return stream.multicast(**how)


def _four(_x: object) -> int:
    return 4


class Through(Op, engine="MulticastPublisher", needs_order=False, accounted=False):
    """A processor, subscribed to first or last."""

    methods = ()
    kind: str = "processor"
    upstream_first: bool = True

    draws = {
        "kind": st.sampled_from(["processor", "serialized", "multicast", "replay"]),
        "upstream_first": st.booleans(),
    }

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted if self.kind == "processor" else INFINITE

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return rsf.from_publisher(_Processed(stream, self))


class _Processed:
    """What a processor publishes of an upstream that it is subscribed to when it is needed."""

    MAKE = {
        "processor": lambda: rsf.processor(same),
        "serialized": rsf.SerializedProcessor,
        "multicast": rsf.MulticastProcessor,
        "replay": lambda: rsf.ReplayProcessor(count=1000, on_last_cancel="shut_down"),
    }

    def __init__(self, upstream: Any, op: Through) -> None:
        self._upstream = upstream
        self._op = op

    def subscribe(self, subscriber: Any, /) -> None:
        processor: Any = self.MAKE[self._op.kind]()
        if self._op.upstream_first:
            self._upstream.subscribe(processor)
            processor.subscribe(subscriber)
        else:
            processor.subscribe(subscriber)
            self._upstream.subscribe(processor)


# -- recovery --------------------------------------------------------------------------------------
class Retry(Op, engine="SubscriptionArbiter", recovers=True, resubscribes=True):
    times: int = 2
    draws = {"times": st.integers(0, 2)}
    uses = {
        "Retry": Use(lambda s: s.retry(0), of=lambda n: rsf.from_iterable(EverySecond(n)).retry()),
        "RetryWhen": Use(lambda s: s.retry(2, when=_is_os_error, delay=1)),
        "RetryOfForeign": Use(
            lambda s: s.retry(0),
            of=lambda n: rsf.from_publisher(
                NoStream(rsf.from_iterable(EverySecond(n)).subscribe_on())
            ).retry(),
        ),
        "RetryAfterADelay": Use(
            lambda s: s.retry(0), of=lambda n: rsf.from_iterable(EverySecond(n)).retry(delay=0.001)
        ),
    }

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        for left in reversed(range(self.times + 1)):
            try:
                yield from upstream()
            except Boom:
                if not left:
                    raise
            else:
                return

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted * (self.times + 1)


def _is_os_error(error: BaseException) -> bool:
    return isinstance(error, OSError)


class Repeat(Op, engine="SubscriptionArbiter", resubscribes=True):
    recovers = True  # it subscribes again, as what recovers does
    times: int = 1
    draws = {"times": st.integers(0, 2)}
    use = Use(
        lambda s: s.repeat(0),
        of=lambda n: (
            rsf.generate(0, lambda x: (x, x + 1) if x < (n + 1) // 2 else None).repeat(1).take(n)
        ),
    )

    def asks(self, wanted: float, items: list[Any]) -> float:
        return wanted

    def model_anew(self, upstream: Callable[[], Items], call: Function) -> Items:
        for _ in range(self.times + 1):
            yield from upstream()


class OnErrorResume(Op, engine="SubscriptionArbiter", recovers=True):
    other: Origin = Origin("list", 3)
    draws = {"other": origins()}
    uses = {
        "OnErrorResume": Use(
            lambda s: s.on_error_resume(rsf.error, on=KeyError),
            of=lambda n: _resumed(n, same),
            within=lambda s: rsf.error(OSError()).on_error_resume(_Always(s)),
            not_claimed=NO_LOOK_AHEAD,
            takes_early=True,
        ),
        "OnErrorResumeWithForeign": Use(
            lambda s: s.on_error_resume(rsf.error, on=KeyError),
            of=lambda n: _resumed(n, lambda s: NoStream(s.subscribe_on())),
            not_claimed=NO_LOOK_AHEAD,
        ),
    }

    def model(self, items: Items, call: Function) -> Items:
        try:
            yield from items
        except Boom:
            yield from self.other.model()

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.on_error_resume(bench.functions.add(lambda error: bench.source(self.other)))


def _resumed(n: int, other: Any) -> Any:
    """The second half comes from another stream."""
    half = n // 2
    beginning = rsf.range_(half + 1).map(lambda x: x if x < half else 1 // 0)
    return beginning.on_error_resume(lambda _e: other(rsf.range_(half, n)))


class _Always:
    """A function of any argument that gives the same."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __call__(self, _argument: object) -> Any:
        return self._result


class OnErrorReturn(Op, engine="SubscriptionArbiter", recovers=True):
    use = Use(lambda s: s.on_error_return(0, on=KeyError))

    def model(self, items: Items, call: Function) -> Items:
        try:
            yield from items
        except Boom:
            yield 7

    def build(self, bench: Any, stream: Any, index: int) -> Any:
        return stream.on_error_return(bench.element(7))


# -- at the end ------------------------------------------------------------------------------------
class TakeLast(Op, engine="OverflowSubscription", asks_for_all=True):
    n: int = 2
    draws = {"n": POSITIVE}
    use = Use(
        lambda s: s.take_last(10**6),
        of=lambda n: rsf.range_(2 * n).take_last(max(n, 1)),
        delivers_at_end=True,
        takes_early=True,
    )

    def model(self, items: Items, call: Function) -> Items:
        yield from list(items)[-self.n :]
