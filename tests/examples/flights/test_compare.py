"""The comparison's ways give the right answers within their bounds, and wrong ones are noticed."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from examples.flights import cpu
from examples.flights.compare import Measured
from examples.flights.rivals import Delay, bare_asyncio, expected, gather_batches
from tests.examples.flights.together import Together


class Counting:
    """A look-up that knows how many of it ran at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    async def __call__(self, key: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.running -= 1
        return expected(key)


def test_the_share_of_slow_keys_is_what_was_asked_for() -> None:
    delay = Delay(usual=0.002, slow=0.050, slow_share=0.02)
    keys = 10_000
    slow = sum(delay(key) == delay.slow for key in range(keys))
    assert slow == pytest.approx(keys * 0.02, rel=0.02)
    mean = sum(map(delay, range(keys))) / keys
    assert mean == pytest.approx(delay.mean, rel=0.02)


def test_bare_asyncio_keeps_order_and_bound() -> None:
    look_up = Counting()
    values = asyncio.run(bare_asyncio(look_up, range(100), 8))
    assert values == [expected(key) for key in range(100)]
    assert look_up.most == 8


@pytest.mark.parametrize(("concurrency", "most"), [(8, 8), (None, 50)])
def test_gather_keeps_order_and_bound(concurrency: int | None, most: int) -> None:
    look_up = Counting()
    batches = [range(50), range(50, 75)]
    found = list(gather_batches(look_up, batches, concurrency))
    assert found == [[expected(key) for key in batch] for batch in batches]
    assert look_up.most == most


@pytest.mark.parametrize("way", [cpu.OURS, cpu.GATHER, cpu.LOOP])
def test_every_way_at_once_is_measured_on_checked_results(way: str) -> None:
    assert cpu.measure(way, 250, 100) > 0


def test_a_wrong_result_at_once_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "expected", lambda key: key)
    with pytest.raises(AssertionError, match="wrong results"):
        cpu.measure(cpu.GATHER, 250, 100)


@pytest.mark.parametrize(("more_is_better", "ratio"), [(True, 2.0), (False, 0.5)])
def test_ratios_are_taken_round_by_round(more_is_better: bool, ratio: float) -> None:
    values = {"ours": [4.0, 2.0], "other": [2.0, 1.0]}
    measured = Measured("", "", "ours", values, {}, more_is_better)
    assert measured.ratios("other") == [ratio, ratio]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_comparison_on_a_tiny_sample(together: Together) -> None:
    done = together["tiny comparison"]
    assert done.status == 0, done.err
    assert "Every result was checked" in done.out
    measured = json.loads((done.folder / "out" / "compare.json").read_text())["measured"]
    assert [len(one["values"]) for one in measured] == [5, 5, 4]
    assert all(
        value > 0 for one in measured for values in one["values"].values() for value in values
    )
    assert done.files == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_way_with_wrong_results_fails_the_comparison(together: Together) -> None:
    done = together["wrong comparison"]
    assert done.status == 1, done.err
    assert "Spark's own concurrency.level: of 64 rows came 64, right are 0" in done.err
    assert done.files == []
    assert sys.platform != "linux" or done.family == []
