"""Processors of any stages, the serialized one, and subscribers of one function, under the kit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import rstreams_fast as rf
from rstreams_fast.streams.engine.defaults import TRAMPOLINE_EVERY
from rstreams_fast.streams.processors import SerializedProcessor, processor
from rstreams_fast.streams.sinks.subscribers import AsyncSubscriber, SyncSubscriber
from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from tests.tck import NO_REGISTRY, SILENCE, Resources, add_cases

# -- processors ------------------------------------------------------------------------------------


class ProcessorVerification(Resources, IdentityProcessorVerification):
    """A processor of some stages, which all together pass elements on as they are."""

    __test__ = False
    silence = SILENCE
    not_claimed = NO_REGISTRY
    max_supported_subscribers = 1

    def build(self, stream: rf.Stream[Any], buffer_size: int) -> rf.Stream[Any]:
        raise NotImplementedError

    def create_identity_processor(self, buffer_size: int) -> Any:
        return processor(lambda stream: self.build(stream, buffer_size))

    def create_failed_publisher(self) -> Any:
        failed = self.create_identity_processor(self.buffer_size)
        rf.error(ValueError("the source failed, as it should")).subscribe(failed)
        return failed


async def same(x: Any) -> Any:
    await asyncio.sleep(0)
    return x


class Multicast(ProcessorVerification):
    """Ends in a multicast, so it serves any number of subscribers."""

    __test__ = True
    max_supported_subscribers = rf.UNBOUNDED
    not_claimed = ()

    def build(self, stream: rf.Stream[Any], buffer_size: int) -> rf.Stream[Any]:
        return stream.map(lambda x: x).multicast(buffer_size=buffer_size)


class Serialized(ProcessorVerification):
    __test__ = True
    max_supported_subscribers = rf.UNBOUNDED
    not_claimed = ()

    def create_identity_processor(self, buffer_size: int) -> Any:
        return SerializedProcessor(rf.MulticastProcessor(buffer_size=buffer_size))


class SerializedMap(ProcessorVerification):
    __test__ = True

    def create_identity_processor(self, buffer_size: int) -> Any:
        return SerializedProcessor(processor(lambda stream: stream.map(lambda x: x)))


class LongChain(PublisherVerification):
    """So many boundaries that some of them are stack breaks."""

    __test__ = True
    silence = SILENCE
    not_claimed = NO_REGISTRY

    @staticmethod
    def stages(stream: rf.Stream[Any]) -> rf.Stream[Any]:
        for _ in range(2 * TRAMPOLINE_EVERY):
            stream = stream.do_on_complete(lambda: None).map(lambda x: x)
        return stream

    def create_publisher(self, elements: int) -> Any:
        return self.stages(rf.range_(elements))

    def create_failed_publisher(self) -> Any:
        return self.stages(rf.error(ValueError("the source failed, as it should")))

    def create_failing_publisher(self, elements: int) -> Any:
        def failing() -> Iterator[int]:
            yield from range(elements)
            raise ValueError("the source failed, as it should")

        return self.stages(rf.from_iterable(failing()))


# -- subscribers -----------------------------------------------------------------------------------


def ignore(*_args: Any) -> None:
    """A signal that nobody needs."""


def fail(_element: Any) -> None:
    raise ValueError("the work failed, as it should")


class BlackboxVerification(Resources, SubscriberBlackboxVerification):
    __test__ = False
    silence = SILENCE

    def make(self, fn: Any) -> Any:
        raise NotImplementedError

    def create_subscriber(self) -> Any:
        return self.make(ignore)

    def create_failing_subscriber(self) -> Any:
        return self.make(fail)

    def trigger_cancel(self, subscriber: Any) -> None:
        subscriber.run.cancel()


class WhiteboxVerification(Resources, SubscriberWhiteboxVerification):
    """The subscriber asks of itself; its function and hooks tell the probe."""

    __test__ = False
    silence = SILENCE

    def make(self, probe: WhiteboxProbe) -> Any:
        raise NotImplementedError

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        return Introduced(self.make(probe), probe)


class Introduced:
    """Tells the probe of the first ``on_subscribe``; everything else is the subscriber's."""

    def __init__(self, subscriber: Any, probe: WhiteboxProbe) -> None:
        self._subscriber = subscriber
        self._probe = probe
        self._run = subscriber.run
        self._first = threading.Lock()  # taken once, by one of the threads that subscribe
        self.on_next = subscriber.on_next
        self.on_error = subscriber.on_error
        self.on_complete = subscriber.on_complete

    def on_subscribe(self, subscription: Any, /) -> None:
        self._subscriber.on_subscribe(subscription)
        if self._first.acquire(blocking=False):
            self._probe.register_on_subscribe(self)

    def trigger_request(self, n: int, /) -> None:
        """Nothing: it asks when it can take something."""

    def signal_cancel(self) -> None:
        self._run.cancel()


def hooks(probe: WhiteboxProbe) -> dict[str, Any]:
    return {"on_error": probe.register_on_error, "on_complete": probe.register_on_complete}


add_cases(
    globals(),
    ProcessorVerification,
    "build",
    Identity=lambda _, stream, buffer_size: stream,
    Map=lambda _, stream, buffer_size: stream.map(lambda x: x).filter(lambda _x: True),
    AsyncBoundary=lambda self, stream, buffer_size: stream.publish_on(
        self.pool(), prefetch=buffer_size, delay_error=True
    ),
    MapAsync=lambda _, stream, buffer_size: stream.map_async(
        same, concurrency=2, prefetch=buffer_size
    ),
)
add_cases(
    globals(),
    BlackboxVerification,
    "make",
    Sync=lambda _, fn: SyncSubscriber(fn, on_error=ignore),
    SyncWithPrefetch=lambda _, fn: SyncSubscriber(fn, on_error=ignore, prefetch=4),
    AsyncOnWorker=lambda _, fn: AsyncSubscriber(fn, on_error=ignore),
    AsyncStopAndWait=lambda _, fn: AsyncSubscriber(fn, on_error=ignore, prefetch=1),
    AsyncOnThreadPool=lambda self, fn: AsyncSubscriber(
        fn, self.pool(), on_error=ignore, prefetch=8
    ),
    AsyncOnLoop=lambda self, fn: AsyncSubscriber(fn, self.loop(), on_error=ignore, prefetch=8),
)
add_cases(
    globals(),
    WhiteboxVerification,
    "make",
    SyncWhitebox=lambda _, probe: SyncSubscriber(probe.register_on_next, **hooks(probe)),
    AsyncOnWorkerWhitebox=lambda _, probe: AsyncSubscriber(probe.register_on_next, **hooks(probe)),
    AsyncStopAndWaitWhitebox=lambda _, probe: AsyncSubscriber(
        probe.register_on_next, prefetch=1, **hooks(probe)
    ),
    AsyncOnThreadPoolWhitebox=lambda self, probe: AsyncSubscriber(
        probe.register_on_next, self.pool(), **hooks(probe)
    ),
    AsyncOnLoopWhitebox=lambda self, probe: AsyncSubscriber(
        probe.register_on_next, self.loop(), **hooks(probe)
    ),
)
