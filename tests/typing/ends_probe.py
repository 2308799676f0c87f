"""What a type checker must know about the ends. Checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import rstreams_fast as rsf
from rstreams_fast.streams import ends
from rstreams_fast.streams.iteration import Iteration, iterate


def blocking(numbers: rsf.Publisher[int]) -> None:
    assert_type(ends.to_list(numbers), list[int])
    assert_type(ends.first(numbers), int)
    assert_type(ends.first(numbers, None), int | None)
    assert_type(ends.for_each(numbers, print), ends.Run)
    assert_type(iterate(numbers), Iteration[int])
    for x in iterate(numbers):
        assert_type(x, int)
    with iterate(numbers) as it:
        assert_type(next(it), int)
    ends.for_each(numbers, str.upper)  # type: ignore[arg-type]


async def waiting(numbers: rsf.Publisher[int]) -> None:
    assert_type(await ends.to_list_async(numbers), list[int])
    assert_type(await ends.first_async(numbers, "none"), int | str)
    await ends.for_each(numbers, print)
    async with iterate(numbers) as it:
        async for x in it:
            assert_type(x, int)


def half(numbers: rsf.Stream[int]) -> rsf.Stream[float]:
    return numbers.map(lambda n: n / 2)


def processors(numbers: rsf.Publisher[int]) -> None:
    halved = rsf.processor(half)
    assert_type(halved, rsf.Processor[int, float])
    numbers.subscribe(halved)
    assert_type(rsf.from_publisher(halved).to_list(), list[float])
    serialized = rsf.SerializedProcessor(halved)
    assert_type(serialized, rsf.SerializedProcessor[int, float])
    assert_type(serialized.try_next(1), rsf.Emission)
    again: rsf.Processor[int, float] = serialized
    numbers.subscribe(again)


def take(number: int) -> bool:
    return number < 3


def subscribers(numbers: rsf.Publisher[int]) -> None:
    subscriber = rsf.SyncSubscriber(take)
    assert_type(subscriber, rsf.SyncSubscriber[int])
    numbers.subscribe(subscriber)
    assert_type(subscriber.run, rsf.Run)
    numbers.subscribe(rsf.AsyncSubscriber(take, prefetch=1))
    numbers.subscribe(rsf.AsyncSubscriber(str.upper))  # type: ignore[arg-type]
