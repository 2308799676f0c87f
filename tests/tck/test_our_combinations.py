"""What combines publishers, under the whole kit: as publishers, and the stages as subscribers."""

from __future__ import annotations

from typing import Any

import rstreams_fast as rf
from tests.tck import NO_LOOK_AHEAD, NO_ORDER, NO_REGISTRY, add_cases
from tests.tck.test_our_publishers import FAIL_AT, NoStream, StreamVerification, failing
from tests.tck.test_our_subscribers import StageVerification


def equal(_element: int) -> str:
    return "equal"


def halves(elements: int) -> tuple[int, int]:
    return elements - elements // 2, elements // 2


# -- merge -----------------------------------------------------------------------------------------


class Merge(StreamVerification):
    """All elements are equal: each subscriber sees those of two sources in an order of its own."""

    __test__ = True
    not_claimed = NO_ORDER

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.merge(*map(self.source, halves(elements)))

    def source(self, elements: int) -> Any:
        return rf.range_(elements).map(equal)

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return rf.merge(rf.error(ValueError(FAIL_AT)), rf.never())

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.merge(rf.from_iterable(failing(elements)), rf.empty(), delay_error=True)


class MergeOfThreads(Merge):
    def source(self, elements: int) -> Any:
        return rf.range_(elements).map(equal).subscribe_on()


class MergeOfForeignOneByOne(Merge):
    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.merge(*map(self.source, halves(elements)), prefetch=1)

    def source(self, elements: int) -> Any:
        return NoStream(rf.range_(elements).map(equal))


# -- zip -------------------------------------------------------------------------------------------


class Zip(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.zip_(self.source(elements), self.source(elements + 3))

    def source(self, elements: int) -> Any:
        return rf.range_(elements)

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return rf.zip_(rf.error(ValueError(FAIL_AT)), rf.never())

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        # One by one: the error overtakes what waits for a partner.
        return rf.zip_(rf.from_iterable(failing(elements)), rf.range_(elements + 3), prefetch=1)


class ZipOfThreads(Zip):
    def source(self, elements: int) -> Any:
        return rf.range_(elements).subscribe_on()


class ZipOfForeign(Zip):
    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        sources = [NoStream(rf.range_(elements + extra)) for extra in (2, 0, 1)]
        return rf.zip_(*sources, prefetch=2)


# -- concat ----------------------------------------------------------------------------------------


class Concat(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        first, second = halves(elements)
        return rf.concat(self.source(first), rf.empty(), NoStream(self.source(second)))

    def source(self, elements: int) -> Any:
        return rf.range_(elements)

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return rf.concat(rf.error(ValueError(FAIL_AT)), rf.never())

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.concat(rf.empty(), rf.from_iterable(failing(elements)), rf.never())


class ConcatOfThreads(Concat):
    def source(self, elements: int) -> Any:
        return rf.range_(elements).subscribe_on()


# -- flat_map and concat_map -----------------------------------------------------------------------


def one(n: Any) -> rf.Stream[Any]:
    return rf.from_iterable((n,))


def one_on_a_thread(n: Any) -> rf.Stream[Any]:
    return rf.from_iterable((n,)).subscribe_on()


def one_foreign(n: Any) -> Any:
    return NoStream(rf.from_iterable((n,)))


class FlatMap(StreamVerification):
    __test__ = True
    not_claimed = NO_ORDER

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.flat_map(one)


class FlatMapOnThreads(StreamVerification):
    __test__ = True
    not_claimed = NO_ORDER

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.map(equal).flat_map(one_on_a_thread, concurrency=3)


class FlatMapToOneLongStream(StreamVerification):
    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(1).flat_map(lambda _n: rf.range_(elements))

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(1).flat_map(lambda _n: rf.from_iterable(failing(elements)), prefetch=1)


class ConcatMapToOneLongStream(StreamVerification):
    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(2).concat_map(lambda n: NoStream(rf.range_(n * elements)))

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(1).concat_map(lambda _n: rf.from_iterable(failing(elements)))


# -- switch_map ------------------------------------------------------------------------------------


class SwitchMap(StreamVerification):
    """One publisher of all."""

    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.batch(10**9).switch_map(rf.from_iterable)

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.range_(1).switch_map(lambda _n: rf.from_iterable(failing(elements)))


class SwitchMapBetweenThreads(SwitchMap):
    """From one that is silent to one on a thread."""

    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        last = NoStream(rf.range_(elements).subscribe_on())
        return rf.from_iterable([rf.never(), last]).switch_map(lambda each: each, prefetch=1)


# -- expand ----------------------------------------------------------------------------------------


class Expand(StreamVerification):
    """One level for each element."""

    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        last = elements - 1
        return rf.range_(elements).take(1).expand(lambda n: one(n + 1) if n < last else rf.empty())

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.expand(lambda _n: rf.empty())


class ExpandDepthFirst(StreamVerification):
    """One level for each element, on threads."""

    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        def follow(n: int) -> rf.Stream[int]:
            return one_on_a_thread(n + 1) if n < elements - 1 else rf.empty()

        return rf.range_(elements).take(1).expand(follow, depth_first=True)

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.expand(lambda _n: rf.empty(), depth_first=True)


# -- beside others ---------------------------------------------------------------------------------


def first(elements: Any) -> Any:
    return elements[0]


# -- where there is nothing, or too little ---------------------------------------------------------


class SwitchIfEmpty(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.empty().switch_if_empty(NoStream(rf.range_(elements)))

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.switch_if_empty(rf.empty())


class StartWith(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        first, second = halves(elements)
        return rf.range_(first, elements).start_with(*range(first)).take(first + second)


# -- made when they are needed ---------------------------------------------------------------------


class Defer(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.defer(lambda: NoStream(rf.range_(elements)))

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return rf.defer(lambda: stream)


class GenerateAndRepeat(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        first = rf.generate(0, lambda n: (n, n + 1) if n < (elements + 1) // 2 else None)
        return first.repeat(1).take(elements)

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.repeat(0)


add_cases(
    globals(),
    StreamVerification,
    "stages",
    FlatMapOneAtATime=lambda _, stream: stream.flat_map(
        one_foreign, concurrency=1, prefetch=1, delay_error=True
    ),
    ConcatMap=lambda _, stream: stream.concat_map(one, prefetch=1),
    FlatMapSequential=lambda _, stream: stream.flat_map_sequential(one_on_a_thread, concurrency=3),
    CombineLatest=lambda _, stream: stream.combine_latest(NoStream(rf.range_(1))).map(first),
    WithLatestFrom=lambda _, stream: stream.with_latest_from(NoStream(rf.range_(3))).map(first),
    Race=lambda _, stream: rf.never().race(NoStream(stream.subscribe_on())),
    TakeUntil=lambda _, stream: stream.take_until(NoStream(rf.never())),
    OnDiscard=lambda _, stream: rf.concat(
        rf.empty(), stream.publish_on("caller").filter(equal).batch(1).unbatch()
    ).on_discard(equal),
    Using=lambda _, stream: rf.using(object, lambda _resource: stream, id),
)
add_cases(
    globals(),
    StageVerification,
    "stages",
    OnDiscardAsSubscriber=lambda _, stream: stream.on_discard(equal),
    CombineLatestAsSubscriber=lambda _, stream: stream.combine_latest(rf.range_(1), prefetch=1).map(
        first
    ),
    WithLatestFromAsSubscriber=lambda _, stream: stream.with_latest_from(rf.range_(1)).map(first),
    RaceAsSubscriber=lambda _, stream: stream.race(rf.never()),
    TakeUntilAsSubscriber=lambda _, stream: stream.take_until(rf.never()),
    SwitchIfEmptyAsSubscriber=lambda _, stream: stream.start_with().switch_if_empty(rf.empty()),
    MergeAsSubscriber=lambda _, stream: rf.merge(stream, rf.empty(), prefetch=1),
    ZipAsSubscriber=lambda _, stream: stream.zip(rf.range_(10**9)).map(lambda pair: pair[0]),
    ConcatAsSubscriber=lambda _, stream: rf.concat(rf.empty(), stream),
    FlatMapAsSubscriber=lambda _, stream: stream.flat_map(one),
    FlatMapSequentialAsSubscriber=lambda _, stream: stream.flat_map_sequential(one),
    SwitchMapAsSubscriber=lambda _, stream: stream.switch_map(one, prefetch=1),
    ExpandAsSubscriber=lambda _, stream: stream.expand(lambda _n: rf.empty(), depth_first=True),
    ConcatMapAsSubscriber=lambda _, stream: stream.concat_map(one),
)
