"""A policy of each word and of all together, in every place that calls functions, without Spark."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.policies import CALLS, CASES, KEYS, STAGES, Case, judge
from tests.spark.stages import values

Run = Callable[[Any], list[Any]]


def asyncio_program(fn: Any) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*map(fn, KEYS))

    return asyncio.run(main())


IN_STAGES: dict[str, Run] = {  # map_batches makes a call for each batch: each key is one
    place: lambda fn, made=made: values(made(fn), *([k] for k in KEYS))  # type: ignore[misc]
    for place, made in STAGES.items()
}


ASYNC: dict[str, Run] = {
    "asyncio": asyncio_program,
    "map_async": lambda fn: rsf.from_iterable(KEYS).map_async(fn, concurrency=CALLS).to_list(),
    **IN_STAGES,
}

PLAIN: dict[str, Run] = {
    "a loop": lambda fn: [fn(k) for k in KEYS],
    "map": lambda fn: rsf.from_iterable(KEYS).map(fn).to_list(),
    "map_blocking": lambda fn: (
        rsf.from_iterable(KEYS).map_blocking(fn, concurrency=CALLS).to_list()
    ),
    **IN_STAGES,
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
