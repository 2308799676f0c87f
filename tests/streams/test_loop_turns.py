"""A stream that is awaited does not hold the loop, however long its source gives nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for, wait_until
from tests.operators import apart
from tests.operators.entry import NO_ORDER

Numbers = rsf.Stream[int]


class Source:
    """Numbers without end, until the loop of the program has served others; or too late."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.enough = False

    def numbers(self) -> Numbers:
        return rsf.defer(lambda: rsf.from_iterable(self._generate()))

    def _generate(self) -> Iterator[int]:
        self.opened += 1
        until = time.monotonic() + DEADLINE
        try:
            number = 0
            while not self.enough:
                assert time.monotonic() < until, "the loop has served nobody else"
                yield number
                number += 1
        finally:
            self.closed += 1

    async def in_its_time(self) -> None:
        """Turns of the loop, some with a time to wait for."""
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        self.enough = True


def never(_: object) -> bool:
    return False


def nothing(_: object) -> Numbers:
    return rsf.empty()


async def call(element: int) -> int:
    return element


def weighed(stream: rsf.Stream[Any], executor: Any = None) -> rsf.Stream[Any]:
    """The elements on ``executor``, by default the loop, through a queue of 9 bytes."""
    executor = executor or asyncio.get_running_loop()
    return stream.publish_on(executor, max_bytes=9, weigher=lambda _: 1)


def records(stream: rsf.Stream[Any], executor: Any = None) -> rsf.Stream[Any]:
    """The same, through a ring of numpy records."""
    executor = executor or asyncio.get_running_loop()
    return stream.publish_records_on(np.int64, executor)


PROGRAMS: dict[str, Callable[[Numbers], Coroutine[Any, Any, object]]] = {
    "filter": lambda s: s.filter(never).first_async(0),
    "skip": lambda s: s.skip(2**60).to_list_async(),
    "count": lambda s: s.count_async(),
    "reduce": lambda s: s.reduce(max).to_list_async(),
    "last": lambda s: s.last_async(),
    "any": lambda s: s.any_async(never),
    "all": lambda s: s.all_async(lambda _: True),
    "map_async": lambda s: s.filter(never).map_async(call).run_async(),
    "timeout": lambda s: s.filter(never).timeout(DEADLINE).run_async(),
    "batch": lambda s: s.filter(never).batch(10, seconds=1).run_async(),
    "flat_map": lambda s: s.filter(never).flat_map(nothing).run_async(),
    "flat_map within": lambda s: rsf.range_(3).flat_map(lambda _: s.filter(never)).run_async(),
    "flat_map of nothing": lambda s: s.flat_map(nothing).run_async(),
    "concat_map within": lambda s: rsf.range_(3).concat_map(lambda _: s.filter(never)).run_async(),
    "concat_map of nothing": lambda s: s.concat_map(nothing).run_async(),
    "switch_map of nothing": lambda s: s.switch_map(nothing).run_async(),
    "merge": lambda s: rsf.merge(s, s).filter(never).run_async(),
    "concat": lambda s: rsf.concat(s.filter(never), s.filter(never)).run_async(),
    "windows": lambda s: rsf.range_(9).window(2).flat_map(lambda _: s.filter(never)).run_async(),
    "repeat": lambda s: s.take(1).filter(never).repeat(2**60).take_until(s).run_async(),
    "publish_on": lambda s: s.filter(never).publish_on(asyncio.get_running_loop()).run_async(),
    "publish_on of bytes": lambda s: weighed(s.filter(never)).run_async(),
    "publish_on of bytes of several": lambda s: weighed(rsf.merge(s, s).filter(never)).run_async(),
    "publish_records_on": lambda s: records(s.filter(never)).run_async(),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_others_have_their_turns_while_nothing_comes(program: str) -> None:
    source = Source()
    others = asyncio.create_task(source.in_its_time())
    await PROGRAMS[program](source.numbers())
    await others
    assert source.closed == source.opened > 0


async def test_a_time_out_comes_and_finds_the_source_closed() -> None:
    source = Source()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await source.numbers().filter(never).run_async()
    assert source.closed == 1


MANY = 10**6
"""Rounds that take seconds: then what follows comes before the time-out."""

BEGINNING_ANEW: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "empty": lambda: rsf.empty().repeat(MANY),
    "defer": lambda: rsf.defer(rsf.empty).repeat(MANY),
    "take": lambda: rsf.range_(3).take(0).repeat(MANY),
    "create": lambda: rsf.create(lambda emitter: emitter.complete()).repeat(MANY),
    "using": lambda: rsf.using(lambda: None, nothing, lambda _: None).repeat(MANY),
    "error": lambda: rsf.error(OSError()).retry(MANY),
    "deferred error": lambda: rsf.defer(lambda: rsf.error(OSError())).retry(MANY),
    "merge": lambda: rsf.merge(rsf.empty().repeat(MANY), rsf.never()),
    "map_async": lambda: rsf.empty().repeat(MANY).map_async(call),
    "publish_on": lambda: rsf.empty().repeat(MANY).publish_on(),
    "publish_on of bytes": lambda: weighed(rsf.empty().repeat(MANY)),
    "publish_records_on": lambda: records(rsf.empty().repeat(MANY)),
}


@pytest.mark.parametrize("stream", BEGINNING_ANEW)
async def test_a_time_out_comes_while_publishers_end_when_subscribed_to(stream: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await BEGINNING_ANEW[stream]().run_async()


class Late:
    """A predicate that is always false, until the deadline of tests: then it fails the stream."""

    def __init__(self) -> None:
        self.until = time.monotonic() + DEADLINE

    def __call__(self, _: object) -> bool:
        assert time.monotonic() < self.until, "the loop has served nobody else"
        return False


def barren() -> Numbers:
    """A sequence that, unlike an iterator, an operator iterates itself. No element comes of it."""
    return rsf.range_(10**15).filter(Late())


BARREN_SEQUENCES: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "alone": barren,
    "flat_map": lambda: rsf.range_(1).flat_map(lambda _: barren()),
    "concat_map": lambda: rsf.range_(1).concat_map(lambda _: barren()),
    "merge": lambda: barren().merge(rsf.never()),
    "switch_map": lambda: rsf.range_(1).switch_map(lambda _: barren()),
    "switch_map of the source": lambda: barren().switch_map(nothing),
    "switch_map of several elements": lambda: (
        rsf.range_(1).switch_map(lambda _: barren()).take(3).batch(2)
    ),
    "expand": lambda: rsf.range_(1).expand(lambda _: barren()),
    "expand of the source": lambda: barren().expand(nothing),
    "expand depth-first": lambda: rsf.range_(1).expand(lambda _: barren(), depth_first=True),
    "expand of plain sequences": lambda: (
        rsf.range_(1).expand(lambda _: rsf.range_(10**15)).filter(Late())
    ),
    "race": lambda: barren().race(rsf.never()),
    "race of the other": lambda: rsf.never().race(barren()),
    "race of the winner": lambda: rsf.range_(10**15).filter(WithOne()).race(rsf.never()),
    "with_latest_from": lambda: barren().with_latest_from(rsf.range_(1)),
    "with_latest_from the other": lambda: rsf.never().with_latest_from(barren()),
    "take_until": lambda: rsf.never().take_until(barren()),
    "combine_latest": lambda: barren().combine_latest(rsf.never()),
    "on_discard": lambda: barren().retry(1).on_discard(print),
}


class WithOne(Late):
    """A predicate that is true for the element 0 only."""

    def __call__(self, element: object) -> bool:
        return element == 0 or super().__call__(element)


@pytest.mark.parametrize("stream", BARREN_SEQUENCES)
async def test_a_time_out_comes_while_a_sequence_gives_nothing(stream: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await BARREN_SEQUENCES[stream]().run_async()


#: These ask a publisher for elements when they are subscribed to, on the thread of the subscriber.
ASKS_AT_ONCE = {"take_until", "with_latest_from the other"}


@pytest.mark.parametrize("stream", sorted({*BARREN_SEQUENCES} - ASKS_AT_ONCE))
def test_other_work_of_a_pool_has_its_turn_while_a_sequence_gives_nothing(stream: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        run = BARREN_SEQUENCES[stream]().publish_on(pool).for_each(print)
        pool.submit(run.cancel).result(timeout=2 * DEADLINE)
        with pytest.raises(CancelledError):
            run.result(timeout=DEADLINE)


async def test_a_sequence_gives_its_elements_in_turns() -> None:
    [(_, newest)] = await rsf.range_(1).with_latest_from(rsf.range_(10**7)).to_list_async()
    assert newest < 10**7 - 1, "the source was asked only after the end of the sequence"


async def test_others_signal_while_a_sequence_gives_nothing() -> None:
    """The same thread asks all publishers for elements."""
    assert await barren().race(rsf.range_(3)).to_list_async() == [0, 1, 2]
    assert await rsf.range_(3).take_until(barren()).to_list_async() == [0, 1, 2]

    async def ticks() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(0.01)
        yield 1

    source = rsf.from_async_iterable(ticks())
    switched = source.switch_map(lambda n: rsf.range_(3) if n else barren())
    assert await switched.to_list_async() == [0, 1, 2]


async def ticks() -> AsyncIterator[int]:
    for number in range(MANY):
        yield number


class Slow:
    """A function that takes longer than a turn for each element. ``calls`` counts its calls."""

    calls = 0

    def __call__(self, element: int) -> int:
        self.calls += 1
        time.sleep(0.002)
        return element

    async def awaited(self, element: int) -> int:
        return self(element)


SLOW_FUNCTIONS: dict[str, Callable[[Numbers, Slow], rsf.Stream[Any]]] = {
    "map": lambda s, slow: s.map(slow),
    "map_async": lambda s, slow: s.map_async(call).map(slow),
    "map_async of slow calls": lambda s, slow: s.map_async(slow.awaited),
    "from_async_iterable": lambda _, slow: rsf.from_async_iterable(ticks()).map(slow),
    "map_blocking": lambda s, slow: s.map_blocking(abs).map(slow),
    "on_overflow": lambda s, slow: s.on_overflow(rsf.Overflow.BUFFER).map(slow),
    "batch": lambda s, slow: s.map(slow).batch(500, max_bytes=1000, weigher=lambda _: 1),
    "batch above": lambda s, slow: s.batch(1, seconds=DEADLINE).unbatch().map(slow),
    "publish_on of bytes": lambda s, slow: s.map(slow).publish_on(
        asyncio.get_running_loop(), max_bytes=1000, weigher=lambda _: 1
    ),
    "publish_records_on": lambda s, slow: records(s.map(slow).map(np.atleast_1d)),
}


@pytest.mark.parametrize("program", SLOW_FUNCTIONS)
async def test_others_have_their_turns_after_few_slow_elements(program: str) -> None:
    slow, before, most = Slow(), 0, 0
    task = asyncio.create_task(SLOW_FUNCTIONS[program](rsf.range_(1000), slow).run_async())
    while slow.calls < 30:
        await asyncio.sleep(0)
        before, most = slow.calls, max(most, slow.calls - before)
    task.cancel()
    assert most <= 5


@pytest.mark.parametrize("through", [weighed, records])
def test_other_work_of_a_pool_has_its_turn_after_few_slow_elements(through: Any) -> None:
    slow = Slow()
    with ThreadPoolExecutor(1) as pool:
        above = rsf.range_(1000).map(slow).map(np.atleast_1d)
        run = through(above, pool).for_each(print)
        pool.submit(run.cancel).result(timeout=DEADLINE)
    assert slow.calls <= 5


@pytest.mark.parametrize("through", [weighed, records])
def test_other_work_of_a_pool_has_its_turn_while_nothing_comes(through: Any) -> None:
    source = Source()
    with ThreadPoolExecutor(1) as pool:
        run = through(source.numbers().filter(never), pool).for_each(print)
        pool.submit(setattr, source, "enough", True)
        run.result(timeout=2 * DEADLINE)
    assert source.closed == 1


async def test_other_threads_have_their_turns_too() -> None:
    source = Source()
    with pytest.raises(TimeoutError, match="no element came within"):
        await source.numbers().filter(never).timeout(0.02).run_async()
    assert source.closed == 1


@pytest.mark.usefixtures("slow_sources")
async def test_functions_run_in_the_task_that_awaits_in_every_turn() -> None:
    """What they know of the program by: its task, and its context variables."""
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def numbers() -> Iterator[int]:
        token = variable.set(1)
        try:
            yield from range(3000)
        finally:
            variable.reset(token)

    def name(_: int) -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    task = asyncio.current_task()
    assert task is not None
    names = rsf.from_iterable(numbers()).filter(lambda n: n % 100 == 0).map(name)
    assert set(await names.to_list_async()) == {task.get_name()}


@pytest.mark.parametrize(
    ("leaving", "raised"),
    [
        (SystemExit, SystemExit),
        (KeyboardInterrupt, KeyboardInterrupt),
        (asyncio.CancelledError, RuntimeError),  # nobody cancelled the task
    ],
)
async def test_what_leaves_from_a_later_turn_leaves_through_the_await(
    leaving: type[BaseException], raised: type[BaseException]
) -> None:
    source, others = Source(), Source()
    leaves = asyncio.create_task(others.in_its_time())

    def interrupted(_: int) -> bool:
        if others.enough:
            raise leaving
        return False

    with pytest.raises(raised):
        await source.numbers().filter(interrupted).run_async()
    await leaves
    assert source.closed == 1


async def test_a_stream_works_for_its_consumer_alone() -> None:
    """While the body of its loop waits for something else, nothing is taken from the source."""
    taken = 0

    def seen(number: int) -> bool:
        nonlocal taken
        taken += 1
        return number % 20_000 == 0

    async for number in rsf.range_(100_000).filter(seen):
        before = taken
        await asyncio.sleep(0.01)
        assert taken == before, number


@pytest.mark.usefixtures("slow_sources")
def test_an_iteration_goes_on_in_another_loop_and_in_none() -> None:
    iteration = rsf.range_(100).filter(lambda n: n % 9 == 0).iterate(prefetch=1)

    async def two() -> list[int]:
        return [await anext(iteration), next(iteration)]

    assert asyncio.run(two()) + asyncio.run(two()) == [0, 9, 18, 27]
    assert list(iteration) == [*range(36, 100, 9)]


def test_a_call_of_a_blocking_stream_has_its_time_out_though_it_awaits_another_stream() -> None:
    async def awaits(element: int) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await Source().numbers().filter(never).run_async()
        return f"{element} gave up"

    assert rsf.range_(2).map_async(awaits).to_list() == ["0 gave up", "1 gave up"]


def test_a_call_has_its_time_out_though_the_source_gives_nothing_more() -> None:
    source = Source()

    async def waits(_: int) -> None:
        try:
            async with asyncio.timeout(0.02):
                await asyncio.sleep(DEADLINE)
        finally:
            source.enough = True

    with pytest.raises(TimeoutError):
        source.numbers().filter(lambda n: n == 0).map_async(waits).run()


async def test_async_for_and_its_body_take_turns_with_others() -> None:
    source = Source()
    others = asyncio.create_task(source.in_its_time())
    async for _ in source.numbers().filter(lambda n: n % 1000 == 999):
        pass
    await others


#: Above it a source of several parts, below it what it made of the elements is undone.
RESULTS: dict[str, Callable[[], rsf.Stream[Any]]] = {
    **{
        name: lambda use=use: use.same(rsf.range_(40).filter(lambda n: n % 3 == 0))  # type: ignore[misc]
        for name, use in apart().items()
        if use.not_claimed != NO_ORDER and not use.delivers_at_end
    },
    "concat_map of iterators": lambda: rsf.range_(9).concat_map(
        lambda n: rsf.from_iterable(iter(range(n))).filter(bool)
    ),
    "flat_map_sequential": lambda: rsf.range_(9).flat_map_sequential(
        lambda n: rsf.from_iterable(iter(range(n))).filter(bool)
    ),
    "groups": lambda: rsf.range_(20).window(3).concat_map(lambda w: w.filter(bool)),
}


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("program", RESULTS)
async def test_where_every_step_is_a_turn_the_elements_are_the_same(program: str) -> None:
    stream = RESULTS[program]
    expected = await asyncio.to_thread(lambda: stream().to_list())
    assert await stream().to_list_async() == expected
    assert [element async for element in stream().iterate(prefetch=1)] == expected
    assert await stream().take(2).to_list_async() == expected[:2]


def by_fours(count: int) -> Numbers:
    return rsf.range_(count).flat_map(lambda n: rsf.from_iterable([n] * 4).map(abs))


@pytest.mark.usefixtures("slow_sources")
async def test_who_shares_goes_on_when_the_first_has_left() -> None:
    """It was the first whose subscription connected what all share."""
    shared = by_fours(50).share()
    async with asyncio.timeout(DEADLINE):
        first, second = await asyncio.gather(shared.take(5).count_async(), shared.count_async())
    assert first == 5
    assert 195 <= second <= 200  # it may have come after the first element


class OnAThread:
    """A foreign publisher that introduces its subscribers on a thread of its own."""

    def __init__(self, publisher: rsf.Publisher[int]) -> None:
        self.publisher = publisher

    def subscribe(self, subscriber: rsf.Subscriber[int], /) -> None:
        start_thread(lambda: self.publisher.subscribe(subscriber)).result()


@pytest.mark.usefixtures("slow_sources")
async def test_all_is_asked_for_of_what_was_subscribed_to_on_another_thread() -> None:
    async with asyncio.timeout(DEADLINE):
        assert await rsf.from_publisher(OnAThread(by_fours(1000))).count_async() == 4000
        elements = [
            n async for n in rsf.from_publisher(OnAThread(by_fours(50))).iterate(prefetch=8)
        ]
    assert len(elements) == 200


@pytest.mark.usefixtures("slow_sources")
async def test_plain_code_on_the_loop_reads_a_window_to_its_end() -> None:
    """The loop cannot go on before that code does: a pause would be for ever."""
    found: list[list[int]] = []
    async for window in rsf.range_(100).window(50):
        found.append(list(window.filter(lambda n: n % 9 == 0)))
    assert found == [list(range(0, 50, 9)), list(range(54, 100, 9))]


def test_a_loop_that_ends_in_a_pause_lets_the_source_be_closed() -> None:
    source = Source()

    async def main() -> None:
        task = asyncio.create_task(source.numbers().filter(never).run_async())
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(main())
    gc.collect()
    wait_until(lambda: source.closed == 1, "the close of the source")


async def read_until_closed(iteration: Any, reading: threading.Event) -> None:
    reading.set()
    async for _ in iteration:
        pass


@pytest.mark.usefixtures("slow_sources")
def test_a_close_from_another_thread_races_with_the_pauses(dropped: list[BaseException]) -> None:
    for _ in range(50):
        source, reading = Source(), threading.Event()
        iteration = source.numbers().filter(never).concat_map(nothing).iterate()
        closer = start_thread(lambda i=iteration, r=reading: (wait_for(r), i.close()))
        asyncio.run(read_until_closed(iteration, reading))
        closer.result()
        assert source.closed == source.opened
    assert not dropped


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("stream", BARREN_SEQUENCES)
def test_a_close_from_another_thread_ends_a_paused_sequence(
    stream: str, dropped: list[BaseException]
) -> None:
    for _ in range(5):
        reading = threading.Event()
        iteration = BARREN_SEQUENCES[stream]().iterate()
        closer = start_thread(lambda i=iteration, r=reading: (wait_for(r), i.close()))
        asyncio.run(read_until_closed(iteration, reading))
        closer.result()
    assert not dropped
