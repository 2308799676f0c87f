"""A journal in tests: as a process finds it that is new, and with segments of few answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.calls.journal import answers, writer
from tests.spark import stages
from tests.spark.stages import V, made


def forget() -> None:
    """Have this process know no journal, as a new one does."""
    answers._known.clear()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments of few answers, which are opened again and again."""
    for module, name, value in (
        (writer, "SEGMENT_ROWS", 16),
        (answers, "READ_BYTES", 1),
        (answers, "OPEN_SEGMENTS", 1),
    ):
        monkeypatch.setattr(module, name, value)


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
    """Run a stage as a new process does; return what it appended."""
    forget()
    return stages.values(stage, *keys, **words)


def stage_of(fn: Any, uri: str, *, max_bytes: int | None = None, **words: Any) -> rs.Enrich:
    journaled = rs.Journal(uri, version="1", max_bytes=max_bytes)
    return made(rs.enrich, fn, on="k", output=V, journal=journaled, **words)


def files(uri: str) -> list[Path]:
    """Return the segments, and what else is beside them."""
    return sorted(Path(uri).glob("*/*"))
