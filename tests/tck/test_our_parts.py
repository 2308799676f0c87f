"""What divides a stream into parts, and the parts themselves, under the whole kit."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rf
from tests.tck import add_cases
from tests.tck.test_our_publishers import StreamVerification, failing
from tests.tck.test_our_subscribers import StageVerification


def same(part: rf.Stream[Any]) -> rf.Stream[Any]:
    return part


def in_group(group: rf.Group[Any, rf.Stream[Any]]) -> rf.Stream[Any]:
    return group.stream


def equal(_part: object) -> str:
    return "equal"


class OneWindow(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(elements).window(max(elements, 1)).concat_map(same)

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.from_iterable(failing(elements)).window(10**9).concat_map(same)


add_cases(
    globals(),
    StreamVerification,
    "stages",
    SlidingBatch=lambda _, stream: stream.batch(3, skip=1),
    Groups=lambda _, stream: stream.group_by(equal).flat_map(in_group),
    Window=lambda _, stream: stream.window(2, skip=1).map(equal),
)
add_cases(
    globals(),
    StageVerification,
    "stages",
    SlidingBatchAsSubscriber=lambda _, stream: stream.batch(1, skip=1).unbatch(),
    GroupByAsSubscriber=lambda _, stream: stream.group_by(equal).flat_map(in_group),
    WindowAsSubscriber=lambda _, stream: stream.window(1).concat_map(same, prefetch=1),
)
