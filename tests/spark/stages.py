"""What goes into stages as plain iterator functions, and what comes out. Needs no Spark."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, wait_until

K = pa.schema([("k", pa.int64())])
D = pa.schema([("d", pa.int64())])
V = pa.schema([("v", pa.int64())])

SCOPES = ("process", "executor", "job")
scopes = pytest.mark.parametrize("scope", SCOPES)
between_processes = pytest.mark.parametrize("scope", ["executor", "job"])
in_or_out_of_order = pytest.mark.parametrize("ordered", [True, False])


def batches(*keys: Iterable[Any], kind: pa.DataType = K[0].type) -> Iterator[pa.RecordBatch]:
    """Yield a batch of a column ``k`` for each of these."""
    for some in keys:
        yield pa.RecordBatch.from_pydict({"k": pa.array(some, kind)})


def waiting(more: threading.Event, *keys: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield a batch of each of these, the last one when ``more`` is set."""
    yield from batches(*keys[:-1])
    assert more.wait(DEADLINE)
    yield from batches(keys[-1])


def parts(rows: int, size: int) -> list[pa.RecordBatch]:
    """Return batches of the keys 0, 1, ..., of so many each."""
    return list(batches(*(range(i, min(i + size, rows)) for i in range(0, rows, size))))


def one(**columns: Any) -> list[pa.RecordBatch]:
    """Return one batch of these columns."""
    return [pa.RecordBatch.from_pydict(columns)]


def outputs(stage: Any, inputs: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return all that a stage makes of some batches."""
    return pa.Table.from_batches(list(stage.as_map_fn()(iter(inputs))))


def rows(stage: Any, *keys: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of what a stage makes of keys."""
    made = stage.as_map_fn()(batches(*keys))
    return [tuple(row.values()) for batch in made for row in batch.to_pylist()]


def values(stage: Any, *keys: Iterable[Any], **words: Any) -> list[Any]:
    """Return the last column of what a stage makes of keys."""
    made = stage.as_map_fn()(batches(*keys, **words))
    return [value for batch in made for value in batch.column(-1).to_pylist()]


POLICY = {field.name for field in fields(rs.Policy)}


def made(make: Any, fn: Any, *args: Any, **words: Any) -> Any:
    """Return a stage of ``fn``; the words of a policy are put around ``fn``."""
    policy = {word: words.pop(word) for word in POLICY & set(words)}
    return make(rs.Policy(**policy)(fn) if policy else fn, *args, **words)


def as_async(fn: Callable[..., Any]) -> Any:
    """Return an ``async def`` function that lets others run, and then does what ``fn`` does."""

    @functools.wraps(fn)
    async def call(*args: Any, **words: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args, **words)

    return call


def result_of(called: Any) -> Any:
    """Return what a call has returned; a coroutine runs on a loop of its own for it."""
    return asyncio.run(called) if asyncio.iscoroutine(called) else called


async def same(k: Any) -> Any:
    return k


async def doubled(k: int) -> int:
    if k % 3:
        await asyncio.sleep(0.001 * (k % 5))
    return 2 * k


class Service:
    """Counts the calls that it is in; its first ones wait until it has been in ``meet`` at once."""

    def __init__(self, meet: int = 1) -> None:
        self.inside = self.most = 0
        self.calls: list[Any] = []
        self._meet = meet
        self._lock = threading.Lock()

    @contextmanager
    def entered(self, key: Any) -> Iterator[None]:
        with self._lock:
            self.calls.append(key)
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1

    async def look(self, k: Any) -> Any:
        with self.entered(k):
            async with asyncio.timeout(DEADLINE):
                while self.most < self._meet:  # noqa: ASYNC110 - of several loops
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
        return k

    def answer(self, k: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        with self.entered(k):
            wait_until(lambda: self.most >= self._meet, f"{self._meet} calls at once")
        return k

    async def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        await self.look(batch.num_rows)
        return batch

    def batch_sync(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.answer(batch.num_rows)
        return batch
