"""The units that the call of each row has spent: the field ``usage`` of its outcome."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import D, batches, in_or_out_of_order, outputs

PLENTY = 1e12
COLUMN: Any = {"on_failure": "column"}
Usages = list[dict[str, float]]


def counting(**words: Any) -> Any:
    """Return a policy that counts tokens, with the key as estimate, and money."""
    quota = {"tokens": rs.per_second(PLENTY)}
    limit = rs.Limit(uuid.uuid4().hex, scope="process", units=quota, weigh=lambda *key: key[0])
    budget = rs.Budget(uuid.uuid4().hex, scope="process", tokens=PLENTY, money=PLENTY)
    return rs.Policy(limit=limit, budget=budget, **words)


def usages(stage: Any, *keys: list[Any]) -> Usages:
    found = outputs(stage, batches(*keys)).sort_by("k").column("outcome").to_pylist()
    return [outcome["usage"] for outcome in found]


def check_sum(found: Usages, policy: Any) -> None:
    """The rows together have spent what the budget says."""
    for unit, amount in policy.budget.spent.items():
        assert sum(usage[unit] for usage in found) == pytest.approx(amount)


class Flaky:
    """Spends ten times the key, and money; the first attempts of odd keys fail."""

    def __init__(self) -> None:
        self.begun = Counter[int]()
        self._lock = threading.Lock()

    def plain(self, k: int) -> int:
        with self._lock:
            self.begun[k] += 1
        if k == 4 and self.begun[k] < 3:
            raise rs.RetryAfter(0.001)
        if k != 6:
            rs.spent(tokens=10 * k)
            rs.spent(money=1)
        if k % 2 and (self.begun[k] < 3 or k == 9):
            raise OSError("down")
        return k

    async def suspending(self, k: int) -> int:
        await asyncio.sleep(0.001)
        return self.plain(k)


@in_or_out_of_order
@pytest.mark.parametrize("kind", ["plain", "suspending"])
def test_a_row_has_what_all_attempts_have_spent(kind: str, ordered: bool) -> None:
    """An attempt that says nothing has its estimate; one that the service refuses has nothing."""
    policy, fn = counting(retry=rs.Retry(2, backoff=0)), getattr(Flaky(), kind)
    stage = rs.enrich(policy(fn), on="k", output=D, ordered=ordered, **COLUMN)
    found = usages(stage, [3, 4, 6, 8], [9])
    assert found == [
        {"money": 3, "tokens": 90},
        {"money": 1, "tokens": 40},
        {"money": 0, "tokens": 6},
        {"money": 1, "tokens": 80},
        {"money": 3, "tokens": 270},
    ]
    check_sum(found, policy)


def test_rows_of_a_list_share_its_units_by_weight() -> None:
    """A unit without weights is divided equally. A row that joins another list adds up."""
    policy, asked = counting(retry=rs.Retry(1, backoff=0)), list[list[int]]()

    async def fn(keys: list[int]) -> list[Any]:
        asked.append(keys)
        rs.spent(tokens=100, money=2)
        return [OSError("down") if k == 3 and len(asked) < 4 else k for k in keys]

    stage = rs.enrich(policy(fn), on="k", output=D, batch=2, concurrency=1, **COLUMN)
    found = usages(stage, [1, 3, 0, 0])
    assert asked == [[1, 3], [0, 0], [3]]
    assert found == [
        {"money": 1, "tokens": 50},
        {"money": 1, "tokens": 50},
        {"money": 1, "tokens": 25},
        {"money": 3, "tokens": 175},
    ]
    check_sum(found, policy)


def test_a_list_that_fails_has_spent_its_units() -> None:
    policy = counting()

    async def fn(keys: list[int]) -> list[Any]:
        rs.spent(money=1)
        raise OSError("down")

    found = usages(rs.enrich(policy(fn), on="k", output=D, batch=2, **COLUMN), [1, 3])
    assert found == [{"money": 0.5, "tokens": 1}, {"money": 0.5, "tokens": 3}]
    check_sum(found, policy)


@pytest.mark.parametrize("words", [{}, {"batch": 8}])
@in_or_out_of_order
def test_one_row_of_a_shared_call_has_its_units(words: Any, ordered: bool) -> None:
    policy, asked = counting(), list[int]()

    async def fn(keys: Any) -> Any:
        await asyncio.sleep(0.01)
        asked.extend(keys if type(keys) is list else [keys])
        return keys

    words = {"dedupe": True, "ordered": ordered, **words}
    found = usages(rs.enrich(policy(fn), on="k", output=D, **words, **COLUMN), [5, 7] * 8)
    assert sorted(asked) == [5, 7]
    assert sorted(usage["tokens"] for usage in found) == [0] * 14 + [5, 7]
    check_sum(found, policy)


def test_a_row_that_is_remembered_has_spent_nothing(tmp_path: Path) -> None:
    async def fn(k: int) -> int:
        if k == 2:
            raise OSError("down")
        return k

    for words in (
        {"cache": rs.Cache(failure_ttl=60)},
        {"journal": rs.Journal(str(tmp_path), version="1")},
    ):
        policy = counting(**words)
        for again in (False, True):
            found = usages(rs.enrich(policy(fn), on="k", output=D, **COLUMN), [1, 2])
            paid = [0, 2 if "journal" in words else 0] if again else [1, 2]
            assert [usage["tokens"] for usage in found] == paid


@pytest.mark.parametrize("word", ["timeout", "deadline"])
def test_a_call_that_is_late_has_spent_its_units(word: str) -> None:
    policy = counting(**{word: 0.05})

    async def fn(k: int) -> int:
        rs.spent(tokens=k + 1)
        await asyncio.sleep(600)
        return k

    found = usages(rs.enrich(policy(fn), on="k", output=D, **COLUMN), [1, 2])
    assert [usage["tokens"] for usage in found] == [2, 3]
    check_sum(found, policy)


# -- frames ----------------------------------------------------------------------------------------


def half(k: int) -> int:
    rs.spent(tokens=10 * k)
    if k % 2:
        raise ValueError("odd")
    return k // 2


async def half_async(k: int) -> int:
    return half(k)


def halves(batch: pa.RecordBatch) -> Any:
    keys = batch["id"].to_pylist()
    rs.spent(tokens=10 * sum(keys))
    if keys[0] == 0:
        raise ValueError("zero")
    return [{"d": k // 2} for k in keys]


async def halves_async(batch: pa.RecordBatch) -> Any:
    return halves(batch)


def kept(rows: list[dict[str, Any]]) -> list[Any]:
    rs.spent(tokens=1000)
    return [OSError("refused") if row["id"] % 2 else None for row in rows]


def spending(fn: Any) -> Any:
    return rs.Policy(budget=rs.Budget(uuid.uuid4().hex, tokens=PLENTY))(fn)


@pytest.mark.spark
@pytest.mark.parametrize("is_async", [False, True])
def test_frames_say_what_each_row_has_spent(spark: Any, tmp_path: Path, is_async: bool) -> None:
    numbers, fn = spark.range(0, 8, 1, 2), half_async if is_async else half
    look = rs.lookup(spending(fn), "long", on_failure="column")
    told = numbers.select("id", look("id").alias("d"))
    rich = numbers.transform(rs.enrich(spending(fn), on="id", output="d long", **COLUMN))
    for frame, column in ((told, "d"), (rich, "outcome")):
        found = dict(frame.select("id", f"{column}.usage.tokens").collect())
        assert found == {k: 10 * k for k in range(8)}
        assert rs.split_failures(frame, column)[1].agg({f"{column}.usage.tokens": "sum"}).first()[
            0
        ] == 10 * (1 + 3 + 5 + 7)
    each = rs.map_batches(spending(halves_async if is_async else halves), "d long", **COLUMN)
    found = numbers.transform(each).select("outcome.input.id", "outcome.usage.tokens").collect()
    assert sorted(found, key=str) == sorted(
        [*((k, 15) for k in range(4)), *((None, 55) for _ in range(4))], key=str
    )


@pytest.mark.spark
def test_dead_letters_say_what_each_row_has_spent(spark: Any, tmp_path: Path) -> None:
    letters = rs.dead_letters(tmp_path / "dead")
    rs.write(spark.range(0, 8, 1, 2), spending(kept), on_failure=letters, batch=4)
    dead = spark.read.parquet(str(tmp_path / "dead"))
    found = dead.select("id", "outcome.usage.tokens").collect()
    assert sorted(found) == [(k, 250) for k in (1, 3, 5, 7)]
