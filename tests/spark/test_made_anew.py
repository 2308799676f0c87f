"""Policies that a job makes anew for each micro-batch: a worker keeps what it used last."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.journals import wait_for_merges
from tests.spark.stages import made, rows

pytestmark = [pytest.mark.usefixtures("no_leaked_threads"), pytest.mark.timeout(300)]

MICRO_BATCHES = 90
KEPT = 64
OUTPUT = pa.schema([("v", pa.int64()), ("w", pa.int64())])


class Answer(dict[str, int]):
    """A result that can be watched."""


def test_the_results_of_caches_made_anew_are_dropped_but_not_those_of_one_in_use() -> None:
    answers: list[weakref.ref[Answer]] = []

    async def asked(k: int) -> Answer:
        answer = Answer(v=k, w=k)
        answers.append(weakref.ref(answer))
        return answer

    def run(cache: rs.Cache) -> None:
        stage = made(rs.enrich, asked, on="k", output=OUTPUT, cache=cache, circuit=rs.Circuit())
        assert rows(stage, [1]) == [(1, 1, 1)]

    used = rs.Cache()
    for number in range(MICRO_BATCHES):
        run(rs.Cache())
        if number % 10 == 0:
            run(used)
    gc.collect()
    assert len(answers) == MICRO_BATCHES + 1, "calls"
    assert sum(answer() is not None for answer in answers) <= KEPT
    assert answers[1]() is not None, "the cache in use"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc/self/fd")
def test_the_files_of_caches_and_journals_made_anew_are_closed(tmp_path: Path) -> None:
    async def asked(k: int) -> dict[str, int]:
        return {"v": k, "w": k}

    counts = []
    for number in range(MICRO_BATCHES):
        words: dict[str, Any] = {
            "cache": rs.Cache(bytes=1 << 20, scope="executor"),
            "journal": rs.Journal(str(tmp_path), version=str(number // 2)),
        }
        stage = made(rs.enrich, asked, on="k", output=OUTPUT, **words)
        assert rows(stage, [number]) == [(number, number, number)]
        wait_for_merges()
        gc.collect()
        counts.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
    assert counts[-1] <= counts[KEPT + 2] + 5
    found = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert not [path for path in found if path.endswith(".arrow")], "segments are open"
