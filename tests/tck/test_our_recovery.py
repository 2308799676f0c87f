"""What recovers, watches the time or remembers, under the whole kit: publishers and processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rstreams_fast as rf
from tests.tck import NO_LOOK_AHEAD, NO_REGISTRY, add_cases
from tests.tck.test_our_processors import ProcessorVerification
from tests.tck.test_our_publishers import FAIL_AT, NoStream, StreamVerification, failing

#: Seconds that never pass in a test.
LONG = 1000.0


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


# -- retry -----------------------------------------------------------------------------------------


class Retry(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.from_iterable(EverySecond(elements)).retry()

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.retry(2, when=lambda error: isinstance(error, OSError))


class RetryOfForeign(Retry):
    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        source = NoStream(rf.from_iterable(EverySecond(elements)).subscribe_on())
        return rf.from_publisher(source).retry()


# -- on_error_resume -------------------------------------------------------------------------------


class OnErrorResume(StreamVerification):
    """The second half comes from another stream."""

    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        half = elements // 2
        first = rf.range_(half + 1).map(lambda n: n if n < half else 1 // 0)
        return first.on_error_resume(lambda _e: self.other(half, elements))

    def other(self, start: int, stop: int) -> Any:
        return rf.range_(start, stop)

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return rf.error(OSError()).on_error_resume(lambda _e: rf.error(ValueError(FAIL_AT)))

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.error(OSError()).on_error_resume(lambda _e: rf.from_iterable(failing(elements)))


class OnErrorResumeWithForeign(OnErrorResume):
    def other(self, start: int, stop: int) -> Any:
        return NoStream(rf.range_(start, stop).subscribe_on())


# -- batch -----------------------------------------------------------------------------------------


def weigh(_element: Any) -> int:
    return 1


class BatchInTime(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(3 * elements).batch(3, seconds=LONG)

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.batch(1, seconds=LONG)


class BatchByWeight(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(3 * elements).batch(100, max_bytes=3, weigher=weigh)

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.batch(100, max_bytes=1, weigher=weigh)


class DistinctUntilChanged(StreamVerification):
    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(3 * elements).map(lambda n: n // 3).distinct_until_changed()

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.distinct_until_changed()


# -- as processors ---------------------------------------------------------------------------------


def _unlike_any(_element: Any) -> object:
    """A key that no other one equals; the ``id`` of an element may be that of one long gone."""
    return object()


class TimeProcessor(ProcessorVerification):
    """What watches the time or remembers, while neither matters."""

    __test__ = True

    def build(self, stream: rf.Stream[Any], buffer_size: int) -> rf.Stream[Any]:
        batches = stream.timeout(LONG).batch(1, seconds=LONG, max_bytes=1, weigher=weigh)
        return batches.unbatch().distinct_until_changed(_unlike_any)


add_cases(
    globals(),
    Retry,
    "create_publisher",
    RetryAfterADelay=lambda _, elements: rf.from_iterable(EverySecond(elements)).retry(delay=0.001),
)
add_cases(
    globals(),
    StreamVerification,
    "stages",
    Timeout=lambda _, stream: stream.timeout(LONG),
    TimeoutOfAThread=lambda _, stream: stream.subscribe_on().timeout(LONG),
)
add_cases(
    globals(),
    BatchInTime,
    "create_publisher",
    BatchOfAThread=lambda _, elements: (
        rf.range_(3 * elements).subscribe_on().batch(3, seconds=LONG)
    ),
)
add_cases(
    globals(),
    ProcessorVerification,
    "build",
    # What switches upstream, while there is nothing to switch for.
    RecoveryProcessor=lambda _, stream, buffer_size: stream.retry(0).on_error_resume(rf.error),
)
