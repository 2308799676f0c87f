"""A journal in tests: as a process finds it that is new, and with segments of few answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.worker import journal, journal_writer

V = pa.schema([("v", pa.int64())])


def forget() -> None:
    """Have this process know no journal, as a new one does."""
    journal._known.clear()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments of few answers, which are opened again and again."""
    for module, name, value in (
        (journal_writer, "SEGMENT_ROWS", 16),
        (journal, "READ_BYTES", 1),
        (journal, "OPEN_SEGMENTS", 1),
    ):
        monkeypatch.setattr(module, name, value)


def batches(*keys: Any, kind: Any = pa.int64()) -> Iterator[pa.RecordBatch]:  # noqa: B008
    for some in keys:
        yield pa.RecordBatch.from_pydict({"k": pa.array(some, kind)})


def values(stage: Any, *keys: Any, **words: Any) -> list[Any]:
    """Run a stage as a new process does; return what it appended."""
    forget()
    outputs = stage.as_map_fn()(batches(*keys, **words))
    return [row for batch in outputs for row in batch.column(1).to_pylist()]


def stage_of(fn: Any, uri: str, *, max_bytes: int | None = None, **words: Any) -> rs.Enrich:
    journaled = rs.Journal(uri, version="1", max_bytes=max_bytes)
    return rs.enrich(fn, on="k", output=V, journal=journaled, **words)


def files(uri: str) -> list[Path]:
    """Return the segments, and what else is beside them."""
    return sorted(Path(uri).glob("*/*"))
