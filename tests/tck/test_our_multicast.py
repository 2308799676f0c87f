"""Multicast, share and replay under the kit: the streams, and the processors from both sides."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rf
from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
)
from tests.tck import SILENCE
from tests.tck.test_our_publishers import FAIL_AT, failing


class SharedVerification(PublisherVerification):
    """A stream whose subscribers share one subscription to the source."""

    __test__ = False
    silence = SILENCE

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        raise NotImplementedError

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return self.shared(rf.range_(elements))

    def create_failed_publisher(self) -> rf.Stream[int]:
        return self.shared(rf.error(ValueError(FAIL_AT)))

    def create_failing_publisher(self, elements: int) -> rf.Stream[int]:
        return self.shared(rf.from_iterable(failing(elements)))


class MulticastStream(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.multicast()


class MulticastStreamSmallBuffer(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.multicast(buffer_size=4, on_last_cancel="keep")


class MulticastStreamThatDrops(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.multicast(buffer_size=64, slow="drop", delay_error=True)


class SharedStream(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.share()


class SharedStreamBetweenThreads(SharedVerification):
    """Elements come from a thread of their own, requests from those of the subscribers."""

    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.publish_on(prefetch=16).share(buffer_size=8)


class ReplayedStream(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.replay(count=100)


class ReplayedStreamByWeightAndTime(SharedVerification):
    __test__ = True

    def shared(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.replay(
            max_bytes=8,
            weigher=lambda _x: 4,
            seconds=3600.0,
            buffer_size=4,
            on_last_cancel="restart",
        )


class ProcessorVerification(IdentityProcessorVerification):
    """A processor, from both sides."""

    __test__ = False
    silence = SILENCE

    def create_failed_publisher(self) -> Any:
        processor = self.create_identity_processor(self.buffer_size)
        processor.on_error(ValueError(FAIL_AT))
        return processor


class MulticastProcessor(ProcessorVerification):
    __test__ = True

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.MulticastProcessor[Any](buffer_size=buffer_size)


class MulticastProcessorThatDrops(ProcessorVerification):
    __test__ = True

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.MulticastProcessor[Any](buffer_size=buffer_size, slow="drop")


class ReplayProcessor(ProcessorVerification):
    """Two subscribers at different times get different elements, which is what replay is for."""

    __test__ = True
    max_supported_subscribers = 1

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.ReplayProcessor[Any](
            count=buffer_size, buffer_size=buffer_size, on_last_cancel="shut_down"
        )


class ReplayProcessorThatKeepsNothing(ProcessorVerification):
    """Nothing is light enough to be kept, so it serves any number of subscribers alike."""

    __test__ = True

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.ReplayProcessor[Any](
            max_bytes=1,
            weigher=lambda _element: 2,
            buffer_size=buffer_size,
            on_last_cancel="shut_down",
        )
