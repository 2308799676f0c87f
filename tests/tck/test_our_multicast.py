"""Multicast, share and replay under the kit: the streams, and the processors from both sides."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rf
from rstreams_fast.tck import IdentityProcessorVerification
from tests.tck import SILENCE, add_cases
from tests.tck.test_our_publishers import FAIL_AT, StreamVerification


class SharedVerification(StreamVerification):
    """A stream whose subscribers share one subscription to the source, which keeps a list."""

    __test__ = False
    not_claimed = ()


class ProcessorVerification(IdentityProcessorVerification):
    """A processor, from both sides."""

    __test__ = False
    silence = SILENCE

    def create_failed_publisher(self) -> Any:
        processor = self.create_identity_processor(self.buffer_size)
        processor.on_error(ValueError(FAIL_AT))
        return processor


class ReplayProcessor(ProcessorVerification):
    """Two subscribers at different times get different elements, which is what replay is for."""

    __test__ = True
    max_supported_subscribers = 1

    def create_identity_processor(self, buffer_size: int) -> Any:
        return rf.ReplayProcessor[Any](
            count=buffer_size, buffer_size=buffer_size, on_last_cancel="shut_down"
        )


add_cases(
    globals(),
    SharedVerification,
    "stages",
    MulticastStream=lambda _, stream: stream.multicast(),
    MulticastStreamSmallBuffer=lambda _, stream: stream.multicast(
        buffer_size=4, on_last_cancel="keep"
    ),
    MulticastStreamThatDrops=lambda _, stream: stream.multicast(
        buffer_size=64, slow="drop", delay_error=True
    ),
    SharedStream=lambda _, stream: stream.share(),
    # Elements come from a thread of their own, requests from those of the subscribers.
    SharedStreamBetweenThreads=lambda _, stream: stream.publish_on(prefetch=16).share(
        buffer_size=8
    ),
    ReplayedStream=lambda _, stream: stream.replay(count=100),
    ReplayedStreamByWeightAndTime=lambda _, stream: stream.replay(
        max_bytes=8,
        weigher=lambda _x: 4,
        seconds=3600.0,
        buffer_size=4,
        on_last_cancel="restart",
    ),
)
add_cases(
    globals(),
    ProcessorVerification,
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
