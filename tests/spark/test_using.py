"""``using`` is opened, used and closed in one task, and in one context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, start_thread
from tests.spark.conftest import Frozen
from tests.spark.stages import V, made, outputs, parts

ROWS = 20

LOOPS: list[Any] = [asyncio.SelectorEventLoop]
if importlib.util.find_spec("uvloop"):
    import uvloop

    LOOPS.append(uvloop.new_event_loop)

loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__module__.split(".")[0])

base: ContextVar[int] = ContextVar("base", default=0)


def batches() -> Iterator[pa.RecordBatch]:
    return iter(parts(ROWS, 5))


async def added(client: Any, k: int) -> int:
    await asyncio.sleep(0)
    return base.get() + k


async def added_to_each(client: Any, keys: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return [base.get() + k for k in keys]


def added_by_thread(client: Any, k: int) -> int:
    return base.get() + k


async def added_to_batch(*given: Any) -> list[dict[str, int]]:
    return added_to_batch_by_thread(*given)


def added_to_batch_by_thread(*given: Any) -> list[dict[str, int]]:
    return [{"v": base.get() + k} for k in given[1]["k"].to_pylist()]


def enriched(fn: Callable[..., Any], **words: Any) -> Any:
    return made(rs.enrich, fn, on="k", output=V, **words)


#: Stages whose calls are made by a loop, as a function of further words.
ON_A_LOOP: dict[str, Callable[..., Any]] = {
    "rows": lambda **words: enriched(added, **words),
    "lists": lambda **words: enriched(added_to_each, batch=rs.Batching(4, linger=0), **words),
    "threads": lambda **words: enriched(added_by_thread, concurrency=2, **words),
    "batches": lambda **words: made(rs.map_batches, added_to_batch, V, **words),
    "retried": lambda **words: made(
        rs.map_batches, rs.Policy(retry=rs.Retry(1))(added_to_batch_by_thread), V, **words
    ),
}
#: A stage whose calls are made by threads, and which has no loop.
ON_THREADS: dict[str, Callable[..., Any]] = {
    "plain": lambda **words: made(rs.map_batches, added_to_batch_by_thread, V, **words),
}
kinds = pytest.mark.parametrize("kind", [*ON_A_LOOP, *ON_THREADS])
kinds_on_a_loop = pytest.mark.parametrize("kind", ON_A_LOOP)


def values(stage: Any) -> list[int]:
    """Run a stage with a deadline; return its column ``v``."""
    return start_thread(lambda: list(outputs(stage, batches())["v"].to_pylist())).result()


class Scope:
    """A context manager that must be left by the task, and in the context, that entered it."""

    def __enter__(self) -> None:
        self._where = self._here()
        self._token = base.set(100)

    def __exit__(self, *_: object) -> None:
        assert self._here() == self._where
        base.reset(self._token)

    def _here(self) -> Any:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return threading.get_ident()


@contextlib.asynccontextmanager
async def async_scope() -> AsyncIterator[None]:
    async with asyncio.TaskGroup(), asyncio.timeout(DEADLINE):
        await asyncio.sleep(0)
        with Scope():
            yield
        await asyncio.sleep(0)


@loops
@kinds_on_a_loop
@pytest.mark.parametrize("scope", [Scope, async_scope])
def test_it_is_left_by_the_task_that_entered_it(loop: Any, kind: str, scope: Any) -> None:
    opened = list[Any]()

    def using() -> Any:
        opened.append(scope())
        return opened[-1]

    stage = ON_A_LOOP[kind](using=using, loop_factory=loop)
    assert values(stage) == [100 + k for k in range(ROWS)]
    assert len(opened) == 1


def test_the_thread_that_entered_it_leaves_it_in_the_same_context() -> None:
    assert values(ON_THREADS["plain"](using=Scope)) == [100 + k for k in range(ROWS)]
    assert base.get() == 0

    # A generator runs in the context of its caller, and each call may have another one.
    outputs = ON_THREADS["plain"](using=Scope).as_map_fn()(batches())
    found = [contextvars.copy_context().run(next, outputs) for _ in range(ROWS // 5)]
    assert contextvars.copy_context().run(next, outputs, None) is None
    assert [v for batch in found for v in batch["v"].to_pylist()] == [100 + k for k in range(ROWS)]


@kinds
def test_what_it_sets_for_the_worker_all_partitions_see(kind: str) -> None:
    left = list[bool]()

    class Pool:
        def __enter__(self) -> None:
            base.set(base.get() + 100)

        def __exit__(self, *_: object) -> None:
            left.append(True)

    using = rs.PerWorker(Pool)
    for _ in range(2):
        stage = {**ON_A_LOOP, **ON_THREADS}[kind](using=using)
        assert values(stage) == [100 + k for k in range(ROWS)]
    assert not left
    assert base.get() == 0


class Lost(Exception):
    """What a child of a task group raises."""


def raised_by(stage: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        values(stage)
    return caught.value


async def hangs(_: None, k: int) -> int:
    await asyncio.sleep(3600)
    return k


@loops
@pytest.mark.parametrize("waits", [True, False])
def test_a_child_that_fails_in_its_group_ends_the_task_at_once(loop: Any, waits: bool) -> None:
    running = asyncio.Event()
    ended = list[str]()

    @contextlib.asynccontextmanager
    async def using() -> AsyncIterator[None]:
        async def watch() -> None:
            await running.wait()
            raise Lost("the connection")

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            try:
                yield
            finally:
                ended.append("using")

    async def look(_: None, k: int) -> int:
        running.set()
        try:
            await asyncio.sleep(3600 if waits else 0.001)
        finally:
            ended.append("call")
        return k

    def upstream() -> Iterator[pa.RecordBatch]:
        yield from batches()
        if not waits:  # no call runs when the group fails
            deadline = time.monotonic() + DEADLINE
            while "using" not in ended and time.monotonic() < deadline:
                time.sleep(0.001)
            yield from batches()

    stage = rs.enrich(look, on="k", output=V, using=using, loop_factory=loop)
    with pytest.raises(ExceptionGroup) as caught:
        start_thread(lambda: list(stage.as_map_fn()(upstream()))).result()
    assert [str(error) for error in caught.value.exceptions] == ["the connection"]
    assert "given by 'using'" in caught.value.__notes__[0]
    assert ended[-1] == "using"  # after all calls


@loops
def test_a_time_out_in_it_ends_the_task(loop: Any) -> None:
    @contextlib.asynccontextmanager
    async def using() -> AsyncIterator[None]:
        async with asyncio.timeout(0.05):
            yield

    raised = raised_by(enriched(hangs, using=using, loop_factory=loop))
    assert type(raised) is TimeoutError
    assert "given by 'using'" in raised.__notes__[0]


@loops
@pytest.mark.parametrize("swallows", [True, False])
def test_a_cancellation_that_it_makes_nothing_of_loses_no_row_silently(
    loop: Any, swallows: bool
) -> None:
    @contextlib.asynccontextmanager
    async def using() -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        try:
            yield
        except asyncio.CancelledError:  # as anyio.move_on_after does
            if not swallows:
                raise

    raised = raised_by(enriched(hangs, using=using, loop_factory=loop))
    assert isinstance(raised, RuntimeError)
    assert str(raised) == "using: the context manager was cancelled while it was used"


@loops
def test_the_failure_of_a_call_is_what_is_raised_also_with_a_group(loop: Any) -> None:
    told = list[Any]()

    @contextlib.asynccontextmanager
    async def using() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            try:
                yield
            except BaseException as raised:
                told.append(raised)
                raise

    async def look(_: None, k: int) -> int:
        raise Lost(k)

    raised = raised_by(enriched(look, using=using, loop_factory=loop))
    assert type(raised) is Lost
    assert told == [raised]


class Raising:
    """Raises ``error`` in one place; for a loop or for threads."""

    def __init__(self, where: str, error: BaseException) -> None:
        self._where, self._error = where, error
        self._come_to("factory")

    def _come_to(self, place: str) -> None:
        if self._where == place:
            raise self._error

    def __enter__(self) -> None:
        self._come_to("enter")

    def __exit__(self, *_: object) -> None:
        self._come_to("exit")

    async def __aenter__(self) -> None:
        self._come_to("enter")

    async def __aexit__(self, *_: object) -> None:
        self._come_to("exit")


@loops
@kinds
@pytest.mark.parametrize("where", ["factory", "enter", "exit"])
@pytest.mark.parametrize(
    "error",
    [
        *(Lost("gone"), SystemExit(), KeyboardInterrupt()),
        *(GeneratorExit(), asyncio.CancelledError(), Frozen(7)),
    ],
    ids=repr,
)
def test_what_it_raises_is_the_failure(
    loop: Any, kind: str, where: str, error: BaseException
) -> None:
    words = {"loop_factory": loop} if kind in ON_A_LOOP else {}
    stage = {**ON_A_LOOP, **ON_THREADS}[kind](using=lambda: Raising(where, error), **words)
    found = raised_by(stage)
    if kind in ON_THREADS and isinstance(error, GeneratorExit | asyncio.CancelledError):
        return  # as it is
    if isinstance(error, asyncio.CancelledError):
        assert type(found) is RuntimeError
        assert "using: the context manager was cancelled" in str(found)
    elif isinstance(error, GeneratorExit):  # who has closed the stage
        assert type(found) is RuntimeError
        assert found.__cause__ is error
    else:
        assert found is error
        assert not isinstance(error, Lost | Frozen) or "given by 'using'" in found.__notes__[0]


@kinds
@pytest.mark.parametrize("how", ["done", "failed", "stopped"])
def test_it_is_left_once_and_told_how_the_calls_ended(kind: str, how: str) -> None:
    told = list[Any]()

    class Manager:
        def __enter__(self) -> None:
            base.set("not a number" if how == "failed" else 100)  # type: ignore[arg-type]

        def __exit__(self, *exc: object) -> bool:
            told.append(exc[0])
            return True  # which swallows nothing

    stage = {**ON_A_LOOP, **ON_THREADS}[kind](using=Manager)
    if how == "failed":
        assert type(raised_by(stage)) is TypeError
    elif how == "done":
        assert values(stage) == [100 + k for k in range(ROWS)]
    else:
        outputs = stage.as_map_fn()(batches())
        next(outputs)
        outputs.close()
    assert len(told) == 1
    assert (told[0] is TypeError) == (how == "failed")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_it_is_told_of_what_is_no_failure(kind: type[BaseException]) -> None:
    told: list[Any] = []

    class Manager:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *exc: object) -> bool:
            await asyncio.sleep(0)
            told.append(exc[0])
            return True

    async def look(_: None, k: int) -> int:
        raise kind

    assert type(raised_by(enriched(look, using=Manager))) is kind
    assert told == [kind]


@kinds
def test_it_must_be_a_context_manager(kind: str) -> None:
    raised = raised_by({**ON_A_LOOP, **ON_THREADS}[kind](using=int))
    assert isinstance(raised, TypeError)
    assert "gave int, which is no " in str(raised)
    assert "context manager" in str(raised)


def test_it_is_left_when_the_stage_ends_while_it_opens() -> None:
    log = list[str]()

    @contextlib.asynccontextmanager
    async def using() -> AsyncIterator[None]:
        try:
            await asyncio.sleep(3600)
            yield
        finally:
            log.append("left")

    raised = raised_by(enriched(added, using=using, bounds=rs.Bounds(seconds=0.2)))
    assert type(raised) is TimeoutError
    assert "Bounds(seconds=0.2)" in str(raised)
    assert log == ["left"]


def test_calls_see_nothing_that_other_calls_set() -> None:
    async def look(client: Any, keys: list[int]) -> list[int]:
        seen = base.get()
        base.set(seen + 1)
        await asyncio.sleep(0)
        return [seen] * len(keys)

    stage = enriched(look, using=Scope, batch=rs.Batching(2, linger=0), concurrency=2)
    assert values(stage) == [100] * ROWS
