"""Every publisher we ship, under the whole kit. Collected by the plugin, without ``Test`` names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast.tck import PublisherVerification
from tests.helpers import start_thread
from tests.tck import NO_ORDER, NO_REGISTRY, SILENCE

#: Streams of numbers; each class below builds its stage on these.
FAIL_AT = "the source failed, as it should"


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


class List(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_iterable(list(range(elements)))


class Generator(StreamVerification):
    """One-shot: a second subscriber is rejected."""

    __test__ = True
    max_supported_subscribers = 1

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_iterable(n for n in range(elements))


class MapAndFilter(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.map(lambda n: n + 1).filter(lambda n: n >= 0)


class CCallables(StreamVerification):
    """No Python function runs, so a loop in C does."""

    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_iterable([str(n) for n in range(elements)]).map(int)


class FilterThatDrops(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.range_(3 * elements).filter(lambda n: n % 3 == 0)


class Take(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.range_(10**9).take(elements)


class SkipAndTakeWhile(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.range_(10**9).skip(2).take_while(lambda n: n < elements + 2)


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


class Observed(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return (
            stream.do_on_subscribe(bool)
            .do_on_next(bool)
            .do_on_request(bool)
            .do_on_cancel(bool)
            .do_on_error(bool)
            .do_on_complete(bool)
        )


class BatchThenUnbatch(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.batch(4).unbatch()


class Batch(StreamVerification):
    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[list[int]]:
        return rf.range_(3 * elements).batch(3)


class PublishOnOwnWorker(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.publish_on()


class PublishOnSmallPrefetch(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.publish_on(prefetch=2)


class OnExecutor(StreamVerification):
    executor: ThreadPoolExecutor

    @pytest.fixture(autouse=True)
    def _with_executor(self) -> Iterator[None]:
        with ThreadPoolExecutor(4) as self.executor:
            yield


class PublishOnThreadPool(OnExecutor):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.publish_on(self.executor, prefetch=16)


class SubscribeOnThreadPool(OnExecutor):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.subscribe_on(self.executor)


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


class PublishOnLoop(OnLoop):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.publish_on(self.loop)


class SubscribeOnOwnWorker(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.subscribe_on()


async def _slowly(n: int) -> int:
    await asyncio.sleep(0)
    return n


class MapAsync(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return stream.map_async(_slowly, concurrency=8)


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

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_async_iterable(lambda: _numbers(elements))

    def create_failing_publisher(self, elements: int) -> rf.Stream[int]:
        return rf.from_async_iterable(lambda: _numbers(elements, fails=True))


class AsyncIterableOnTheRunningLoop(AsyncIterable):
    asyncio_bound = True


class Foreign(StreamVerification):
    """``from_publisher`` of something that is no ``Stream``."""

    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return rf.from_publisher(NoStream(stream)).map(lambda n: n).filter(lambda n: n >= 0)


class NoStream:
    """A publisher of which ``from_publisher`` knows nothing."""

    def __init__(self, stream: rf.Stream[int]) -> None:
        self._stream = stream

    def subscribe(self, subscriber: Any, /) -> None:
        self._stream.subscribe(subscriber)


class WholePipeline(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[int]:
        return (
            stream.map(lambda n: n)
            .publish_on(prefetch=8)
            .map_async(_slowly, concurrency=4)
            .filter(lambda n: n >= 0)
            .publish_on()
        )
