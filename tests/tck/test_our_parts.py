"""What divides a stream into parts, and the parts themselves, under the whole kit."""

from __future__ import annotations

from typing import Any

import pytest

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


def now() -> float:
    """Stand still."""
    return 0.0


@pytest.mark.slow  # a loop's timer takes a millisecond at least, and there is one for each element
class DelayElements(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.delay_elements(1e-6)


add_cases(
    globals(),
    StreamVerification,
    "stages",
    Timestamp=lambda _, stream: stream.timestamp(now),
    SlidingBatch=lambda _, stream: stream.batch(3, skip=1),
    Groups=lambda _, stream: stream.group_by(equal).flat_map(in_group),
    WindowTime=lambda _, stream: stream.window_time(1000).concat_map(same),
    Window=lambda _, stream: stream.window(2, skip=1).map(equal),
)
add_cases(
    globals(),
    StageVerification,
    "stages",
    DelayElementsAsSubscriber=lambda _, stream: stream.delay_elements(1e-6),
    WindowTimeAsSubscriber=lambda _, stream: stream.window_time(1000).concat_map(same),
    SlidingBatchAsSubscriber=lambda _, stream: stream.batch(1, skip=1).unbatch(),
    GroupByAsSubscriber=lambda _, stream: stream.group_by(equal).flat_map(in_group),
    WindowAsSubscriber=lambda _, stream: stream.window(1).concat_map(same, prefetch=1),
)


class Timed(StreamVerification):
    """What asks for all at once: one element of one, within each other stream."""

    __test__ = True
    operator = "sample"

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        inner = rf.range_(elements).map(self._one)
        return inner.concat_map(lambda stream: stream)

    def _one(self, n: int) -> rf.Stream[Any]:
        stream: rf.Stream[Any] = getattr(rf.range_(n, n + 1), self.operator)(1000.0)
        return stream


add_cases(globals(), Timed, "operator", Debounce="debounce", ThrottleFirst="throttle_first")
