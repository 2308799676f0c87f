"""Whatever a function of a stage raises ends the stage: it never waits for ever."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, start_thread, wait_until

V = pa.schema([("v", pa.int64())])
KEYS = list(range(6))
FOLDER = str(Path(rs.__file__).parent / "worker")

#: The first functions of a stage's threads: they hand on what the others raise.
NETS = {"ThreadGroup._run", "_BatchPublisher.subscribe.<locals>.serve"}


async def one(k: int) -> int:
    await asyncio.sleep(0)
    return k


async def many(keys: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return keys


def by_thread(k: int) -> int:
    return k


def whole(batch: pa.RecordBatch) -> list[dict[str, int]]:
    return [{"v": k} for k in batch["k"].to_pylist()]


async def whole_async(batch: pa.RecordBatch) -> list[dict[str, int]]:
    return whole(batch)


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, ["v"])


Stage = Callable[[], Any]

#: Stages by what runs them.
STAGES: dict[str, list[Stage]] = {
    "pump": [
        lambda: rs.enrich(rs.Policy(timeout=DEADLINE, retry=rs.Retry(1))(one), on="k", output=V),
        lambda: rs.enrich(
            rs.Policy(cache=rs.Cache())(many), on="k", output=V, batch=rs.Batching(2, linger=0.001)
        ),
        lambda: rs.enrich(by_thread, on="k", output=V, concurrency=2, ordered=False),
        lambda: rs.map_batches(whole_async, V),
    ],
    "threads": [lambda: rs.map_batches(whole, V, concurrency=2)],
    "stream": [lambda: rs.stage(lambda batches: batches.map(renamed), V)],
}


def batches() -> Iterator[pa.RecordBatch]:
    for start in (0, 3):
        yield pa.RecordBatch.from_pydict({"k": pa.array(KEYS[start : start + 3], pa.int64())})


class Injected(Exception):
    """Raised in place of what a function would have done."""


class Calls:
    """Counts the calls of the worker's functions in a run; one of them may raise."""

    def __init__(self, function: CodeType | None = None, number: int = 0) -> None:
        self.counts: Counter[CodeType] = Counter()
        self.raised: Injected | None = None
        self._at = function, number
        self._lock = threading.Lock()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDER):
            return
        if code.co_name.startswith("<") or code.co_qualname in NETS:
            return
        with self._lock:
            self.counts[code] += 1
            hit = self._at == (code, self.counts[code])
        if hit:
            self.raised = Injected(code.co_qualname)
            raise self.raised

    def run(
        self, stage: Stage, upstream: Callable[[], Iterator[pa.RecordBatch]] = batches
    ) -> list[int] | BaseException:
        """Return the values that the stage gives, or what it raises."""

        def run() -> list[int] | BaseException:
            try:
                outputs = list(stage().as_map_fn()(upstream()))
            except BaseException as raised:
                return raised
            return sorted(v for batch in outputs for v in batch["v"].to_pylist())

        threading.setprofile(self)
        try:
            return start_thread(run).result()
        except AssertionError as hung:
            hung.add_note(f"call {self._at[1]} of {self._at[0]}")
            raise
        finally:
            threading.setprofile(None)


def is_due_to(raised: BaseException | None, cause: BaseException | None) -> bool:
    while raised is not None and raised is not cause:
        raised = raised.__cause__ or raised.__context__
    return raised is not None


# What breaks off the tidying up leaves coroutines that nobody awaits.
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("runner", STAGES)
def test_a_function_that_raises_ends_the_stage(
    runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    before, seen, raising = set(threading.enumerate()), set[CodeType](), 0

    def left() -> list[str]:
        names = [thread.name for thread in set(threading.enumerate()) - before]
        return [name for name in names if name.startswith("rstreams")]

    for stage in STAGES[runner]:
        list(stage().as_map_fn()(batches()))  # imports what it needs, with no one that counts
        usual = Calls()
        assert usual.run(stage) == KEYS
        for function in usual.counts.keys() - seen:
            for number in {1, usual.counts[function]}:
                calls = Calls(function, number)
                found = calls.run(stage)
                what = f"call {number} of {function.co_qualname}: {found!r}"
                if isinstance(found, BaseException):
                    assert is_due_to(found, calls.raised), what
                    raising += 1
                else:
                    assert found == KEYS, what
                wait_until(lambda: not left(), f"the end of the threads after {what}")
        seen |= usual.counts.keys()
    assert raising > len(seen) / 2
    gc.collect()  # those coroutines, as long as nobody is warned of them


def test_a_loop_that_waits_for_a_batch_hears_of_a_wake_up_that_failed() -> None:
    called = threading.Event()

    async def fn(k: int) -> int:
        called.set()
        return k

    def late() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            yield batch
            assert called.wait(DEADLINE)
            time.sleep(0.05)  # until the loop has found that there is no batch

    def stage() -> Any:
        return rs.enrich(fn, on="k", output=V)

    usual = Calls()
    assert usual.run(stage, late) == KEYS
    (code,) = (code for code in usual.counts if code.co_qualname == "CallStage._wake")
    for number in (1, 2):
        called.clear()
        calls = Calls(code, number)
        found = calls.run(stage, late)
        assert isinstance(found, BaseException)
        assert is_due_to(found, calls.raised)
