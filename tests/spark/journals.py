"""A journal in tests: as a process finds it that is new, and with segments of few answers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

import rstreams_fast.spark as rs
from tests.fresh import forget_journals
from tests.helpers import DEADLINE
from tests.spark import stages
from tests.spark.stages import V, made


def answer(k: Any) -> Any:
    return None if k == 3 else 2 * k


class Doubling:
    """A function that keeps what it was called for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def __call__(self, k: Any) -> Any:
        self.calls.append(k)
        await asyncio.sleep(0)
        return answer(k)


def values(stage: Any, *keys: Any, **words: Any) -> list[Any]:
    """Run a stage as a new process does; return what it appended, when its segments are merged."""
    forget_journals()
    try:
        return stages.values(stage, *keys, **words)
    finally:
        wait_for_merges()


def wait_for_merges() -> None:
    for thread in threading.enumerate():
        if thread.name == "rstreams-journal":
            thread.join(DEADLINE)
            assert not thread.is_alive()


def stage_of(fn: Any, uri: str, *, max_bytes: int | None = None, **words: Any) -> rs.Enrich:
    journaled = rs.Journal(uri, version="1", max_bytes=max_bytes)
    return made(rs.enrich, fn, on="k", output=V, journal=journaled, **words)


def files(uri: str) -> list[Path]:
    """Return the segments, and what else is beside them."""
    return sorted(Path(uri).glob("*/*"))


def read(segment: Path) -> pa.Table:
    """Return what is in a segment."""
    with pa.memory_map(str(segment)) as file:
        return pa.ipc.open_file(file).read_all()
