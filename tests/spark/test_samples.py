"""Samples, rates and stalls: metrics as the stages write them, a clock that is set by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.report.samples import STALL_SECONDS, Watch
from rstreams_fast.spark.report.waits import Stall

STAGES = ("first", "last")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(path: Path, stage: str, partition: int = 0, **counts: Any) -> None:
    metrics = rs.StageMetrics(stage=stage, key=stage, partition=partition, **counts)
    file = path / f"{stage}-{partition}.metrics.json"
    file.write_text(json.dumps(asdict(metrics)), encoding="utf-8")


def test_a_sample_sums_up_the_tasks_of_each_stage(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "first", 0, rows_out=500, calls=70, running=64, buffered_bytes=1000)
    write(tmp_path, "first", 1, rows_out=400, calls=60, running=30, buffered_bytes=500)
    write(tmp_path, "last", 0, rows_out=100, calls=90, running=5, buffered_bytes=7)
    sample = Watch(rs.Metrics(tmp_path), STAGES, clock).look()
    assert sample.rows == 100
    assert sample.calls == {"first": 130, "last": 90}
    assert sample.running == {"first": 94, "last": 5}
    assert sample.buffered == {"first": 1500, "last": 7}


def test_a_job_that_has_not_begun_is_no_stall(tmp_path: Path, clock: Clock) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    assert looking.look().rows == 0
    clock.now += 100 * STALL_SECONDS
    looking.look()
    assert looking.stalls == []
    assert looking.rate() == 0


def test_the_rate_is_that_of_the_last_seconds(tmp_path: Path, clock: Clock) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    rows = 0
    for per_second in [10] * 10 + [300] * 10:
        rows += per_second
        write(tmp_path, "last", rows_out=rows)
        looking.look()
        clock.now += 1
    assert looking.rate() == pytest.approx(300)


@pytest.mark.slow
def test_the_samples_of_a_long_run_are_thinned(tmp_path: Path, clock: Clock) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    for number in range(6_000):
        if number % 500 == 0:
            write(tmp_path, "last", rows_out=number)
        latest = looking.look()
        clock.now += 1
        assert looking.samples[-1] is latest
    assert 1_000 < len(looking.samples) <= 2_400
    seconds = [sample.seconds for sample in looking.samples]
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (0, 5_999)


def test_calls_that_are_not_answered_are_a_stall_until_one_is(tmp_path: Path, clock: Clock) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    write(tmp_path, "first", rows_out=10, calls=70, running=0)
    write(tmp_path, "last", rows_out=10, calls=74, running=64)
    looking.look()
    clock.now += STALL_SECONDS / 2
    looking.look()
    assert looking.stalls == []
    clock.now += STALL_SECONDS
    looking.look()
    (stall,) = looking.stalls
    assert (stall.stage, stall.running) == ("last", 64)
    assert stall.seconds == pytest.approx(1.5 * STALL_SECONDS)
    write(tmp_path, "last", rows_out=10, calls=75, running=64)  # one ended, one began
    looking.look()
    assert looking.stalls == []


@pytest.mark.parametrize("cause", ["limit", "service", "retry"])
def test_calls_that_wait_before_an_attempt_are_no_stall(
    cause: str, tmp_path: Path, clock: Clock
) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    waits = 100.0

    def look(waiting: int) -> list[Stall]:
        nonlocal waits
        waits += waiting * 0.25
        clock.now += 0.25
        write(tmp_path, "last", calls=12, running=12, **{f"waited_{cause}": waits})
        looking.look()
        return looking.stalls

    assert [look(12) for _ in range(40)] == [[]] * 40
    for _ in range(40):
        found = look(11)
    (stall,) = found
    assert stall.running == 12


def test_a_stage_that_waits_for_input_has_not_stalled(tmp_path: Path, clock: Clock) -> None:
    looking = Watch(rs.Metrics(tmp_path), STAGES, clock)
    write(tmp_path, "last", rows_out=10, calls=10, running=0)
    for _ in range(10):
        looking.look()
        clock.now += STALL_SECONDS
    assert looking.stalls == []
