"""Each word of a policy, and all together: what a service sees, and what its callers get.

A service writes each attempt into a file, so that calls of any process and thread count. A case
says how the service behaves, which policy surrounds the calls, and what must come of it. The suites
make the calls in every place that calls functions.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from tests.spark.stages import V

KEYS: Final = list(range(12))
ANSWERS: Final = [k + 1 for k in KEYS]
CALLS: Final = 4
"""Calls at once, so that a limit has something to hold back."""

AT_ONCE: Final = 2
"""The concurrency of the limits."""


class Service:
    """Answers a key with the next number, as its case says; it lives in a folder."""

    def __init__(self, folder: Path, behaviour: str) -> None:
        self.log = folder / "attempts"
        self.behaviour = behaviour

    def seen(self) -> Counter[int]:
        """Return how many attempts there were of each key."""
        return Counter(int(line.split()[1]) for line in self._lines() if line.startswith("+"))

    def most_at_once(self) -> int:
        """Return how many attempts ran at once, at most."""
        inside = most = 0
        for line in self._lines():
            inside += 1 if line.startswith("+") else -1
            most = max(most, inside)
        return most

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def _note(self, line: str) -> int:
        with self.log.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read().splitlines().count(line)
            file.write(f"{line}\n")
        return before + 1

    def _attempt(self, key: int) -> int:
        """Note an attempt, and do what the case wants of it; return its number."""
        number = self._note(f"+ {key}")
        if self.behaviour == "fails" or (self.behaviour == "fails once" and number == 1):
            raise OSError("refused")
        if self.behaviour == "asks to wait" and number == 1 and key % 3 == 0:
            raise rs.RetryAfter(0.01)
        return number

    def call(self, key: int) -> int:
        """Make an attempt on this thread."""
        try:
            self._attempt(key)
            time.sleep(0.005)
            return key + 1
        finally:
            self._note(f"- {key}")

    async def acall(self, key: int) -> int:
        """Make an attempt on this loop."""
        try:
            number = self._attempt(key)
            hangs = self.behaviour == "hangs" or (self.behaviour == "hangs once" and number == 1)
            await asyncio.sleep(3600 if hangs and key == 3 else 0.005)
            return key + 1
        finally:
            self._note(f"- {key}")


@dataclass(frozen=True)
class Case:
    """A policy, a service, and what must come of them."""

    name: str
    behaviour: str
    words: Callable[[Path], dict[str, Any]]
    """The policy's words, for a folder."""
    error: type[Exception] | None = None
    """What a call fails with; ``None``: all calls are answered."""
    attempts: Callable[[Counter[int]], bool] = lambda seen: seen == Counter(KEYS)
    """Whether the service may have seen these attempts, after the keys were called once."""
    again: bool = True
    """Whether the service sees the calls again, when all are made a second time."""
    plain: bool = True
    """Whether a plain function may have it."""
    at_once: int | None = None
    """How many attempts may run at once."""

    def __str__(self) -> str:
        return self.name


def _twice(seen: Counter[int]) -> bool:
    return seen == Counter(KEYS * 2)


def _some_twice(seen: Counter[int]) -> bool:
    return seen == Counter([*KEYS, *KEYS[::3]])


def _third_twice(seen: Counter[int]) -> bool:
    return seen == Counter([*KEYS, 3])


def _limit(folder: Path) -> rs.Limit:
    return rs.Limit(f"policies {folder}", concurrency=AT_ONCE)


def _units(folder: Path) -> rs.Limit:
    quotas = {"tokens": rs.per_second(1e6), "bytes": rs.per_minute(1e9)}
    return rs.Limit(f"units {folder}", units=quotas, weigh=lambda *_: {"tokens": 10, "bytes": 9})


def _budget(folder: Path, calls: int = 1000) -> rs.Budget:
    return rs.Budget(f"policies {folder}", calls=calls, tokens=1e6)


def _shared() -> rs.Cache:
    return rs.Cache(bytes=1 << 20, scope="executor")


def _journal(folder: Path) -> rs.Journal:
    return rs.Journal(str(folder / "journal"), version="1")


def _all(folder: Path) -> dict[str, Any]:
    """Return all words that a plain function may have."""
    return {
        "retry": rs.Retry(2, backoff=0),
        "limit": _limit(folder),
        "circuit": rs.Circuit(1000),
        "budget": _budget(folder),
        "cache": rs.Cache(),
        "journal": _journal(folder),
    }


CASES: Final = [
    Case("nothing", "answers", lambda _: {}),
    Case("retry", "fails once", lambda _: {"retry": rs.Retry(2, backoff=0)}, attempts=_twice),
    Case("waits", "asks to wait", lambda _: {}, attempts=_some_twice),
    Case(
        "timeout",
        "hangs once",
        lambda _: {"timeout": 1.0, "retry": rs.Retry(1, backoff=0)},
        attempts=_third_twice,
        plain=False,
    ),
    Case(
        "deadline",
        "hangs",
        lambda _: {"deadline": 0.2},
        error=TimeoutError,
        attempts=lambda seen: seen[3] == 1,
        plain=False,
    ),
    Case("limit", "answers", lambda folder: {"limit": _limit(folder)}, at_once=AT_ONCE),
    Case("units", "asks to wait", lambda folder: {"limit": _units(folder)}, attempts=_some_twice),
    Case(
        "circuit",
        "fails",
        lambda _: {"circuit": rs.Circuit(2, reset=3600), "retry": rs.Retry(9, backoff=0)},
        error=rs.CircuitOpenError,
        attempts=lambda seen: 2 <= seen.total() <= 2 * len(KEYS),
    ),
    Case(
        "budget", "asks to wait", lambda folder: {"budget": _budget(folder)}, attempts=_some_twice
    ),
    Case(
        "a spent budget",
        "fails once",
        lambda folder: {"budget": _budget(folder, 3), "retry": rs.Retry(9, backoff=0)},
        error=rs.BudgetSpentError,
        attempts=lambda seen: seen.total() <= 3,
    ),
    Case("cache", "answers", lambda _: {"cache": rs.Cache()}, again=False),
    Case("cache of a host", "answers", lambda _: {"cache": _shared()}, again=False),
    Case("journal", "answers", lambda folder: {"journal": _journal(folder)}, again=False),
    Case(
        "all",
        "fails once",
        _all,
        attempts=_twice,
        again=False,
        at_once=AT_ONCE,
    ),
    Case(
        "all of an async function",
        "fails once",
        lambda folder: {"timeout": 60, "deadline": 60, **_all(folder)},
        attempts=_twice,
        again=False,
        plain=False,
        at_once=AT_ONCE,
    ),
]


@functools.lru_cache(1)
def _of_batches(fn: Any) -> Any:
    """Return what ``map_batches`` may call for batches of one key: the same policy around it."""

    async def answers(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return [{"v": await fn.fn(k)} for k in batch["k"].to_pylist()]

    def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return [{"v": fn.fn(k)} for k in batch["k"].to_pylist()]

    return fn.policy(answers if asyncio.iscoroutinefunction(fn.fn) else plain)


def _stage(fn: Any) -> rs.StreamStage:
    def build(stream: rsf.Stream[Any]) -> rsf.Stream[Any]:
        keys = stream.map(lambda batch: batch["k"].to_pylist()).unbatch()
        calls = keys.map_async if asyncio.iscoroutinefunction(fn.fn) else keys.map_blocking
        answers = calls(fn, concurrency=CALLS)
        return answers.map(lambda v: pa.RecordBatch.from_pylist([{"v": v}], schema=V))

    return rs.stage(build, V)


STAGES: Final[dict[str, Callable[[Any], Any]]] = {
    "lookup": lambda fn: rs.lookup(fn, pa.int64(), concurrency=CALLS),
    "enrich": lambda fn: rs.enrich(fn, on="k", output=V, concurrency=CALLS),
    "map_batches": lambda fn: rs.map_batches(_of_batches(fn), V, concurrency=CALLS),
    "stage": _stage,
}
"""The stages of a function, which gets the column ``k``; all but ``lookup`` return ``v``."""


def judge(case: Case, folder: Path, plain: bool, run: Callable[[Any], list[Any]]) -> None:
    """Judge a place. ``run`` calls the function with all keys there, and returns the answers."""
    folder.mkdir(exist_ok=True)
    service = Service(folder, case.behaviour)
    function = rs.Policy(**case.words(folder))(service.call if plain else service.acall)
    if case.error is not None:
        with pytest.raises(Exception) as raised:
            run(function)
        error: BaseException | None = raised.value
        while error is not None and not isinstance(error, case.error):
            error = error.__cause__
        assert error is not None or case.error.__name__ in str(raised.value), repr(raised.value)
        assert case.attempts(service.seen()), service.seen()
        return
    assert run(function) == ANSWERS
    assert case.attempts(service.seen()), service.seen()
    assert case.at_once is None or service.most_at_once() <= case.at_once
    before = service.seen().total()
    assert run(function) == ANSWERS
    assert (service.seen().total() > before) == case.again, service.seen()
