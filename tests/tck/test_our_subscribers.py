"""Every subscriber we ship, under the kit: the ends of streams, the upper side of each stage."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import rstreams_fast as rf
from rstreams_fast.streams.sinks import ends
from rstreams_fast.tck import (
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from rstreams_fast.tck.processor import Downstream
from tests.helpers import start_thread, wait_for
from tests.tck import Resources, add_cases


class Captor:
    """A publisher that keeps its subscriber, for the kit to signal to."""

    def __init__(self) -> None:
        self._subscriber: Any = None
        self._subscribed = threading.Event()

    def subscribe(self, subscriber: Any, /) -> None:
        self._subscriber = subscriber
        self._subscribed.set()

    @property
    def subscriber(self) -> Any:
        wait_for(self._subscribed, "subscribe")  # it may come from another thread
        return self._subscriber


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
        return ends.for_each(publisher, work)


class ForEachWithPrefetch(EndVerification):
    __test__ = True

    def attach(self, publisher: Any, work: Any) -> Any:
        return ends.for_each(publisher, work, prefetch=3)


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


class StageVerification(Resources, SubscriberWhiteboxVerification):
    """The upper side of a stage; what comes out below is what it has processed."""

    __test__ = False

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        raise NotImplementedError

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        captor = Captor()
        self.stages(rf.from_publisher(captor)).subscribe(Downstream(probe))
        return captor.subscriber


class PublishOnThreadPool(StageVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.publish_on(self.pool())


class PublishOnLoop(StageVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.publish_on(self.loop())


async def _same(x: Any) -> Any:
    await asyncio.sleep(0)
    return x


add_cases(
    globals(),
    StageVerification,
    "stages",
    FromPublisher=lambda _, stream: stream,
    MapAndFilter=lambda _, stream: stream.map(lambda x: x).filter(lambda _x: True),
    AsyncBoundary=lambda _, stream: stream.publish_on(prefetch=1),
    SubscribeOn=lambda _, stream: stream.subscribe_on(),
    Unbatch=lambda _, stream: stream.map(lambda x: [x]).unbatch(),
    BatchThenUnbatch=lambda _, stream: stream.batch(1).unbatch(),
    MapAsync=lambda _, stream: stream.map_async(_same, concurrency=2),
)
