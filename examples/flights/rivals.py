"""What ``--compare`` compares: the same look-up, overlapped in the ways that people do it.

The look-up waits in the process itself (``asyncio.sleep``, ``time.sleep``), so that no HTTP
client's cost covers the differences. How long a key takes depends on the key alone: the same work
for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

__all__ = [
    "Delay",
    "LookUp",
    "LookUpSync",
    "answer_at_once",
    "bare_asyncio",
    "expected",
    "gather_batches",
    "gathered_column",
    "plain_column",
    "plain_loop",
]

#: Knuth's multiplier spreads consecutive keys evenly over 32 bits.
_SPREAD: Final = 2_654_435_761
_BITS: Final = 32


def expected(key: int) -> int:
    """Return the answer for ``key``, by which every result is checked."""
    return key * 3 + 1


@dataclass(frozen=True)
class Delay:
    """The seconds that a key's look-up takes: ``usual``, or ``slow`` for a share of the keys."""

    usual: float = 0.002
    slow: float = 0.050
    slow_share: float = 0.02

    def __call__(self, key: int) -> float:
        place = (key * _SPREAD) % (1 << _BITS)
        return self.slow if place < self.slow_share * (1 << _BITS) else self.usual

    @property
    def mean(self) -> float:
        """The mean over many keys."""
        return self.slow * self.slow_share + self.usual * (1 - self.slow_share)


class LookUp:
    """The look-up as a coroutine function."""

    def __init__(self, delay: Delay) -> None:
        self._delay = delay

    async def __call__(self, key: int) -> int:
        await asyncio.sleep(self._delay(key))
        return expected(key)


class LookUpSync:
    """The look-up as a plain function."""

    def __init__(self, delay: Delay) -> None:
        self._delay = delay

    def __call__(self, key: int) -> int:
        time.sleep(self._delay(key))
        return expected(key)


async def answer_at_once(key: int) -> int:
    """Look up without waiting, as in a cache: what is left is the cost of the machinery."""
    return expected(key)


# -- without Spark ---------------------------------------------------------------------------------


async def bare_asyncio(
    look_up: Callable[[int], Awaitable[int]], keys: Iterable[int], concurrency: int
) -> list[int]:
    """Overlap look-ups with a semaphore and tasks, and nothing else around it: the floor."""
    permits = asyncio.Semaphore(concurrency)

    async def one(key: int) -> int:
        try:
            return await look_up(key)
        finally:
            permits.release()

    tasks = []
    for key in keys:
        await permits.acquire()
        tasks.append(asyncio.create_task(one(key)))
    return [await task for task in tasks]


# -- inside a Spark worker -------------------------------------------------------------------------


def gather_batches(
    look_up: Callable[[int], Awaitable[int]],
    batches: Iterable[Sequence[int]],
    concurrency: int | None,
) -> Iterator[list[int]]:
    """``asyncio.gather`` over each batch on one loop; ``concurrency`` bounds it by a semaphore."""
    permits = None if concurrency is None else asyncio.Semaphore(concurrency)

    async def one(key: int) -> int:
        assert permits is not None
        async with permits:
            return await look_up(key)

    call = look_up if permits is None else one

    async def all_of(keys: Sequence[int]) -> list[int]:
        return await asyncio.gather(*map(call, keys))

    with asyncio.Runner() as runner:
        for keys in batches:
            yield runner.run(all_of(keys))


def gathered_column(look_up: LookUp, concurrency: int) -> Callable[[str], Column]:
    """Return a column function: ``asyncio.gather`` per Arrow batch."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    def gathered(arrays: Iterator[pa.Array]) -> Iterator[pa.Array]:
        keys = (array.to_pylist() for array in arrays)
        for values in gather_batches(look_up, keys, concurrency):
            yield pa.array(values, pa.int64())

    gathered.__annotations__ = {"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]}
    column: Any = arrow_udf(gathered, "long")  # type: ignore[call-overload]
    return column  # type: ignore[no-any-return]


def plain_column(look_up: LookUpSync) -> Callable[[str], Column]:
    """Return a column function: Spark's own row-by-row UDF over Arrow batches."""
    from pyspark.sql.functions import udf

    def plain(key: int) -> int:
        return look_up(key)

    column: Any = udf(plain, "long", useArrow=True)
    return column  # type: ignore[no-any-return]


def plain_loop(batches: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    """Answer in a plain loop: where nothing waits, nothing is cheaper."""
    for keys in batches:
        yield [expected(key) for key in keys]
