"""A policy of each word and of all together, in every place that calls functions, without Spark."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from tests.policies import CASES, KEYS, Case, judge
from tests.spark.stages import V, values

Run = Callable[[Any], list[Any]]

CALLS = 4
"""Calls at once, so that a limit has something to hold back."""


def asyncio_program(fn: Any) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*map(fn, KEYS))

    return asyncio.run(main())


@functools.lru_cache(1)
def of_batches(fn: Any) -> Any:
    """Return what ``map_batches`` may call for batches of one key: the same policy around it."""

    async def answers(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return [{"v": await fn.fn(k)} for k in batch["k"].to_pylist()]

    def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return [{"v": fn.fn(k)} for k in batch["k"].to_pylist()]

    return fn.policy(answers if asyncio.iscoroutinefunction(fn.fn) else plain)


def mapped(fn: Any) -> list[Any]:
    stage = rs.map_batches(of_batches(fn), V, concurrency=CALLS)
    return values(stage, *([k] for k in KEYS))


def staged(fn: Any) -> list[Any]:
    def build(stream: rsf.Stream[Any]) -> rsf.Stream[Any]:
        keys = stream.map(lambda batch: batch["k"].to_pylist()).unbatch()
        answers = keys.map_async(fn, concurrency=CALLS)
        return answers.map(lambda v: pa.RecordBatch.from_pylist([{"v": v}], schema=V))

    return values(rs.stage(build, V), KEYS)


ASYNC: dict[str, Run] = {
    "asyncio": asyncio_program,
    "map_async": lambda fn: rsf.from_iterable(KEYS).map_async(fn, concurrency=CALLS).to_list(),
    "lookup": lambda fn: values(rs.lookup(fn, pa.int64(), concurrency=CALLS), KEYS),
    "enrich": lambda fn: values(rs.enrich(fn, on="k", output=V, concurrency=CALLS), KEYS),
    "map_batches": mapped,
    "stage": staged,
}

PLAIN: dict[str, Run] = {
    "a loop": lambda fn: [fn(k) for k in KEYS],
    "map": lambda fn: rsf.from_iterable(KEYS).map(fn).to_list(),
    "map_blocking": lambda fn: (
        rsf.from_iterable(KEYS).map_blocking(fn, concurrency=CALLS).to_list()
    ),
    "lookup": lambda fn: values(rs.lookup(fn, pa.int64(), concurrency=CALLS), KEYS),
    "enrich": lambda fn: values(rs.enrich(fn, on="k", output=V, concurrency=CALLS), KEYS),
    "map_batches": mapped,
}

ALL = [
    *((case, False, place, ASYNC[place]) for case in CASES for place in ASYNC),
    *((case, True, place, PLAIN[place]) for case in CASES if case.plain for place in PLAIN),
]


@pytest.mark.parametrize(
    ("case", "plain", "place", "run"),
    ALL,
    ids=[f"{case}-{'plain' if plain else 'async'}-{place}" for case, plain, place, _ in ALL],
)
def test_a_word_holds_in_every_place(
    case: Case, plain: bool, place: str, run: Run, tmp_path: Path
) -> None:
    judge(case, tmp_path, plain, run)


def test_a_library_that_another_thread_imports_costs_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = ModuleType("pandas")
    half.__spec__ = ModuleSpec("pandas", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", half)
    calls: list[int] = []
    fetch = rsf.Policy(cache=rsf.Cache())(lambda k: calls.append(k) or k)  # type: ignore[func-returns-value]
    assert [fetch(1), fetch(1)] == [1, 1]
    assert calls == [1]
