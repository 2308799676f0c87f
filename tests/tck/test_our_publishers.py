"""Every publisher we ship, under the whole kit. Collected by the plugin, without ``Test`` names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast.tck import PublisherVerification
from tests.helpers import start_thread
from tests.tck import NO_LOOK_AHEAD, NO_ORDER, NO_REGISTRY, SILENCE, add_cases

#: Streams of numbers; each class below builds its stage on these.
FAIL_AT = "the source failed, as it should"

QUIET = logging.getLogger("tests.tck")
QUIET.setLevel(logging.DEBUG)
QUIET.addFilter(lambda _record: False)  # no handler keeps what is logged, pytest's neither


def failing(elements: int) -> Iterator[int]:
    yield from range(elements)
    raise ValueError(FAIL_AT)


class StreamVerification(PublisherVerification):
    """The stages of one kind of stream; the source is what the kit asks for."""

    __test__ = False
    silence = SILENCE
    not_claimed = NO_REGISTRY

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return self.stages(rf.range_(elements))

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return self.stages(rf.error(ValueError(FAIL_AT)))

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return self.stages(rf.from_iterable(failing(elements)))


class Range(StreamVerification):
    __test__ = True


class Generator(StreamVerification):
    """One-shot: a second subscriber is rejected."""

    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)
    max_supported_subscribers = 1

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_iterable(n for n in range(elements))


class MapNotNoneAndScan(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        numbers = rf.range_(2 * elements).map_not_none(lambda n: n if n % 2 else None)
        return numbers.scan(lambda before, n: before + n)


class ScanWithSeed(StreamVerification):
    """The seed comes before the elements, so there is at least one."""

    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        sums = rf.range_(elements - 1 if elements else 0).scan(lambda before, n: before + n, 0)
        return sums.take(elements)


class Reduce(StreamVerification):
    """Gives one element, never more."""

    __test__ = True
    max_elements = 1

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.range_(9 * elements).reduce(lambda before, n: before + n)


class OnExecutor(StreamVerification):
    executor: ThreadPoolExecutor

    @pytest.fixture(autouse=True)
    def _with_executor(self) -> Iterator[None]:
        with ThreadPoolExecutor(4) as self.executor:
            yield


class OnLoop(StreamVerification):
    loop: asyncio.AbstractEventLoop

    @pytest.fixture(autouse=True)
    def _with_loop(self) -> Iterator[None]:
        self.loop = asyncio.new_event_loop()
        thread = start_thread(self.loop.run_forever, "loop")
        yield
        self.loop.call_soon_threadsafe(self.loop.stop)
        thread.result()
        self.loop.close()


def _parity(n: int) -> int:
    return n % 2


async def _slowly(n: int) -> int:
    await asyncio.sleep(0)
    return n


def _plainly(n: int) -> int:
    return n


class MapAsyncUnordered(StreamVerification):
    __test__ = True
    not_claimed = NO_ORDER

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.map_async(_slowly, concurrency=8, ordered=False)


async def _numbers(elements: int, *, fails: bool = False) -> AsyncIterator[int]:
    for n in range(elements):
        await asyncio.sleep(0)
        yield n
    if fails:
        raise ValueError(FAIL_AT)


class AsyncIterable(StreamVerification):
    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_async_iterable(lambda: _numbers(elements))

    def create_failing_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_async_iterable(lambda: _numbers(elements, fails=True))


class AsyncIterableOnTheRunningLoop(AsyncIterable):
    asyncio_bound = True


class LooksOnDemand(StreamVerification):
    """Whether another element passes is known when it has been pulled."""

    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)


class NoStream:
    """A publisher of which ``from_publisher`` knows nothing."""

    def __init__(self, stream: rf.Stream[int]) -> None:
        self._stream = stream

    def subscribe(self, subscriber: Any, /) -> None:
        self._stream.subscribe(subscriber)


add_cases(
    globals(),
    StreamVerification,
    "create_publisher",
    List=lambda _, elements: rf.from_iterable(list(range(elements))),
    # No Python function runs, so a loop in C does.
    CCallables=lambda _, elements: rf.from_iterable([str(n) for n in range(elements)]).map(int),
    Take=lambda _, elements: rf.range_(10**9).take(elements),
    Batch=lambda _, elements: rf.range_(3 * elements).batch(3),
)
add_cases(
    globals(),
    LooksOnDemand,
    "create_publisher",
    FilterThatDrops=lambda _, elements: rf.range_(3 * elements).filter(lambda n: n % 3 == 0),
    SkipAndTakeWhile=lambda _, elements: (
        rf.range_(10**9).skip(2).take_while(lambda n: n < elements + 2)
    ),
)
add_cases(
    globals(),
    StreamVerification,
    "stages",
    MapAndFilter=lambda _, stream: stream.map(lambda n: n + 1).filter(lambda n: n >= 0),
    Observed=lambda _, stream: (
        stream.do_on_subscribe(bool)
        .do_on_next(bool)
        .do_on_request(bool)
        .do_on_cancel(bool)
        .do_on_error(bool)
        .do_on_complete(bool)
    ),
    Named=lambda _, stream: stream.named("it"),
    Logged=lambda _, stream: stream.log(QUIET.name),
    Distinct=lambda _, stream: stream.distinct(max_keys=8),
    OnErrorContinue=lambda _, stream: stream.map(lambda n: n).on_error_continue(print),
    BatchThenUnbatch=lambda _, stream: stream.batch(4).unbatch(),
    PublishOnOwnWorker=lambda _, stream: stream.publish_on(),
    PublishOnSmallPrefetch=lambda _, stream: stream.publish_on(prefetch=2),
    SubscribeOnOwnWorker=lambda _, stream: stream.subscribe_on(),
    MapAsync=lambda _, stream: stream.map_async(_slowly, concurrency=8),
    MapAsyncInTurn=lambda _, stream: stream.map_async(_slowly, concurrency=8, key=_parity),
    MapBlocking=lambda _, stream: stream.map_blocking(_plainly, concurrency=4),
    # ``from_publisher`` of something that is no ``Stream``.
    Foreign=lambda _, stream: (
        rf.from_publisher(NoStream(stream)).map(lambda n: n).filter(lambda n: n >= 0)
    ),
    WholePipeline=lambda _, stream: (
        stream.map(lambda n: n)
        .publish_on(prefetch=8)
        .map_async(_slowly, concurrency=4)
        .filter(lambda n: n >= 0)
        .publish_on()
    ),
)
add_cases(
    globals(),
    OnExecutor,
    "stages",
    PublishOnThreadPool=lambda self, stream: stream.publish_on(self.executor, prefetch=16),
    SubscribeOnThreadPool=lambda self, stream: stream.subscribe_on(self.executor),
)
add_cases(
    globals(),
    OnLoop,
    "stages",
    PublishOnLoop=lambda self, stream: stream.publish_on(self.loop),
)
