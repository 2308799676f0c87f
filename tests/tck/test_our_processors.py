"""Processors, subscribers of one function, ends, and what runs on a given executor, under the kit.

``test_our_operators.py`` has the operators and sources.
"""

from __future__ import annotations

import threading
from typing import Any

import rstreams_fast as rf
from rstreams_fast.streams.engine.defaults import TRAMPOLINE_EVERY
from rstreams_fast.streams.processors import SerializedProcessor, processor
from rstreams_fast.streams.sinks.for_each import for_each
from rstreams_fast.streams.sinks.subscribers import AsyncSubscriber, SyncSubscriber
from rstreams_fast.tck import (
    IdentityProcessorVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from tests.helpers import start_thread
from tests.operators.entry import LONG, NO_REGISTRY, same, weigh, yes
from tests.operators.flow import same_later
from tests.operators.sources import FAIL_AT
from tests.tck import SILENCE, Resources, add_cases
from tests.tck.test_our_operators import Captor, StageVerification, UseVerification

# -- processors ------------------------------------------------------------------------------------


class ProcessorVerification(Resources, IdentityProcessorVerification):
    """A processor of some stages, which all together pass elements on as they are."""

    __test__ = False
    silence = SILENCE
    not_claimed: tuple[str, ...] = NO_REGISTRY
    max_supported_subscribers = 1

    def build(self, stream: rf.Stream[Any], buffer_size: int) -> rf.Stream[Any]:
        raise NotImplementedError

    def create_identity_processor(self, buffer_size: int) -> Any:
        return processor(lambda stream: self.build(stream, buffer_size))

    def create_failed_publisher(self) -> Any:
        failed = self.create_identity_processor(self.buffer_size)
        rf.error(ValueError(FAIL_AT)).subscribe(failed)
        return failed


class MulticastBelow(ProcessorVerification):
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


class Shared(ProcessorVerification):
    """A processor that keeps a list of its subscribers."""

    __test__ = False
    max_supported_subscribers = rf.UNBOUNDED
    not_claimed = ()


class ReplayProcessor(Shared):
    """Two subscribers at different times get different elements, which is what replay is for."""

    __test__ = True
    max_supported_subscribers = 1

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.ReplayProcessor[Any](
            count=buffer_size, buffer_size=buffer_size, on_last_cancel="shut_down"
        )


def _unlike_any(_element: Any) -> object:
    """A key that no other one equals; the ``id`` of an element may be that of one long gone."""
    return object()


def _of_time(_self: Any, stream: rf.Stream[Any], _buffer_size: int) -> rf.Stream[Any]:
    """What watches the time or remembers, while neither matters."""
    batches = stream.timeout(LONG).batch(1, seconds=LONG, max_bytes=1, weigher=weigh)
    return batches.unbatch().distinct_until_changed(_unlike_any)


# -- chains, and executors -------------------------------------------------------------------------


def long_chain(_self: Any, stream: rf.Stream[Any]) -> rf.Stream[Any]:
    """So many boundaries that some of them are stack breaks."""
    for _ in range(2 * TRAMPOLINE_EVERY):
        stream = stream.do_on_complete(lambda: None).map(same)
    return stream


add_cases(
    globals(),
    UseVerification,
    "over",
    LongChain=long_chain,
    PublishOnThreadPool=lambda self, stream: stream.publish_on(self.pool(), prefetch=16),
    SubscribeOnThreadPool=lambda self, stream: stream.subscribe_on(self.pool()),
    PublishOnLoop=lambda self, stream: stream.publish_on(self.loop()),
    WholePipeline=lambda _, stream: (
        stream.map(same)
        .publish_on(prefetch=8)
        .map_async(same_later, concurrency=4)
        .filter(yes)
        .publish_on()
    ),
)
add_cases(
    globals(),
    StageVerification,
    "over",
    FromPublisher=lambda _, stream: stream,
    PublishOnThreadPoolAbove=lambda self, stream: stream.publish_on(self.pool()),
    PublishOnLoopAbove=lambda self, stream: stream.publish_on(self.loop()),
    AsyncBoundary=lambda _, stream: stream.publish_on(prefetch=1),
)


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


# -- ends -----------------------------------------------------------------------------------------


class EndVerification(SubscriberBlackboxVerification):
    """The subscriber at the end of a stream."""

    __test__ = False
    untrusted = False  # whether from_publisher stands between
    run: Any

    def publisher(self) -> tuple[Captor, Any]:
        captor = Captor()
        return captor, rf.from_publisher(captor) if self.untrusted else captor

    def attach(self, publisher: Any, work: Any) -> Any:
        raise NotImplementedError

    def create_subscriber(self) -> Any:
        return self._create(lambda _element: None)

    def create_failing_subscriber(self) -> Any:
        def work(_element: Any) -> None:
            raise ValueError("the work failed, as it should")

        return self._create(work)

    def _create(self, work: Any) -> Any:
        captor, publisher = self.publisher()
        self.run = self.attach(publisher, work)
        return captor.subscriber

    def trigger_cancel(self, subscriber: Any) -> None:
        self.run.cancel()


class ForEach(EndVerification):
    __test__ = True

    def attach(self, publisher: Any, work: Any) -> Any:
        return for_each(publisher, work)


class ForEachWithPrefetch(EndVerification):
    __test__ = True

    def attach(self, publisher: Any, work: Any) -> Any:
        return for_each(publisher, work, prefetch=3)


class ForEachBehindFromPublisher(ForEach):
    untrusted = True


class Iterate(Resources, SubscriberBlackboxVerification):
    """``iterate``, read by a thread as ``for`` would."""

    def create_subscriber(self) -> Any:
        captor = Captor()
        iteration = rf.from_publisher(captor).iterate(prefetch=4)
        self.stack.callback(iteration.close)
        reader = start_thread(lambda: self._read(iteration), "reader")
        self.stack.callback(lambda: (iteration.close(), reader.result()))
        self.iteration = iteration
        return captor.subscriber

    @staticmethod
    def _read(iteration: Any) -> None:
        try:
            for _element in iteration:
                pass
        except Exception as raised:  # the kit's own error, or closed
            del raised

    def trigger_cancel(self, subscriber: Any) -> None:
        self.iteration.close()


def hooks(probe: WhiteboxProbe) -> dict[str, Any]:
    return {"on_error": probe.register_on_error, "on_complete": probe.register_on_complete}


add_cases(
    globals(),
    ProcessorVerification,
    "build",
    Identity=lambda _, stream, buffer_size: stream,
    MapProcessor=lambda _, stream, buffer_size: stream.map(same).filter(yes),
    PublishOnProcessor=lambda self, stream, buffer_size: stream.publish_on(
        self.pool(), prefetch=buffer_size, delay_error=True
    ),
    MapAsyncProcessor=lambda _, stream, buffer_size: stream.map_async(
        same_later, concurrency=2, prefetch=buffer_size
    ),
    # What switches upstream, while there is nothing to switch for.
    RecoveryProcessor=lambda _, stream, buffer_size: stream.retry(0).on_error_resume(rf.error),
    TimeProcessor=_of_time,
)
add_cases(
    globals(),
    Shared,
    "create_identity_processor",
    MulticastProcessor=lambda _, buffer_size: rf.MulticastProcessor[Any](buffer_size=buffer_size),
    MulticastProcessorThatDrops=lambda _, buffer_size: rf.MulticastProcessor[Any](
        buffer_size=buffer_size, slow="drop"
    ),
    # Nothing is light enough to be kept, so it serves any number of subscribers alike.
    ReplayProcessorThatKeepsNothing=lambda _, buffer_size: rf.ReplayProcessor[Any](
        max_bytes=1,
        weigher=lambda _element: 2,
        buffer_size=buffer_size,
        on_last_cancel="shut_down",
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
