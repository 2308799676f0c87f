"""The event loop that calls run on: uvloop's where it is installed, asyncio's, or one's own."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs

KEYS = pa.RecordBatch.from_pydict({"k": pa.array(range(200), pa.int64())})
HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


async def kind_of_loop(_: int) -> str:
    await asyncio.sleep(0)
    loop = type(asyncio.get_running_loop())
    return f"{loop.__module__.split('.')[0]}.{loop.__name__}"


def kinds(**words: Any) -> set[str]:
    stage = rs.lookup(kind_of_loop, pa.string(), **words)
    return {v for batch in stage.as_map_fn()([KEYS]) for v in batch.column(1).to_pylist()}


@pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")
def test_calls_run_on_a_loop_of_uvloop_where_it_is_installed() -> None:
    assert kinds() == {"uvloop.Loop"}


def test_without_uvloop_they_run_on_one_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert kinds() == {"asyncio._UnixSelectorEventLoop"}


class Loop(asyncio.SelectorEventLoop):
    """One's own."""


@pytest.mark.parametrize("scope", ["executor", "job"])
def test_loop_factory_makes_the_loop(scope: str) -> None:
    limit = rs.Limit("loop_factory", 3, scope=scope)
    assert kinds(loop_factory=Loop, limit=limit) == {"tests.Loop"}


def test_whole_batches_run_on_it_too() -> None:
    async def kind(_: pa.RecordBatch) -> list[dict[str, str]]:
        return [{"kind": await kind_of_loop(0)}]

    stage = rs.map_batches(kind, pa.schema({"kind": pa.string()}), loop_factory=Loop)
    assert [b.to_pylist() for b in stage.as_map_fn()([KEYS])] == [[{"kind": "tests.Loop"}]]


@pytest.mark.parametrize("make", [rs.lookup, rs.map_batches])
def test_a_loop_factory_must_be_callable(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="loop_factory must make an event loop, got str"):
        make(kind_of_loop, "string", loop_factory="uvloop")


def test_a_loop_factory_must_give_a_loop() -> None:
    with pytest.raises(TypeError, match="loop_factory gave dict, which is no event loop"):
        kinds(loop_factory=dict)
