"""The event loop that calls run on: uvloop's where it is installed, asyncio's, or one's own."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import start_thread
from tests.spark.stages import K, made, same, values

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


async def kind_of_loop(_: int) -> str:
    await asyncio.sleep(0)
    loop = type(asyncio.get_running_loop())
    return f"{loop.__module__.split('.')[0]}.{loop.__name__}"


def kinds(**words: Any) -> set[str]:
    return set(values(made(rs.lookup, kind_of_loop, pa.string(), **words), range(200)))


@pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")
def test_calls_run_on_a_loop_of_uvloop_where_it_is_installed() -> None:
    assert kinds() == {"uvloop.Loop"}


def test_without_uvloop_they_run_on_one_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert kinds() == {"asyncio._UnixSelectorEventLoop"}


class Loop(asyncio.SelectorEventLoop):
    """One's own."""


@pytest.mark.parametrize("scope", ["executor", "job"])
def test_loop_factory_makes_the_loop(scope: str) -> None:
    limit = rs.Limit("loop_factory", 3, scope=scope)
    assert kinds(loop_factory=Loop, limit=limit) == {"tests.Loop"}


def test_whole_batches_run_on_it_too() -> None:
    async def kind(_: pa.RecordBatch) -> list[dict[str, str]]:
        return [{"kind": await kind_of_loop(0)}]

    stage = rs.map_batches(kind, pa.schema({"kind": pa.string()}), loop_factory=Loop)
    assert values(stage, [1]) == ["tests.Loop"]


def fails(kind: type[BaseException]) -> Any:
    def factory() -> Any:
        raise kind("no loop")

    return factory


CLOSED, RUNNING = asyncio.new_event_loop(), asyncio.new_event_loop()


@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [
        (dict, TypeError, "loop_factory gave dict, which is no event loop"),
        (lambda: CLOSED, ValueError, "loop_factory gave a loop that is closed; it must make"),
        (lambda: RUNNING, ValueError, "loop_factory gave a loop that runs already"),
        (fails(OSError), OSError, "no loop"),
        (fails(StopIteration), RuntimeError, None),  # no generator raises that
        (fails(KeyboardInterrupt), KeyboardInterrupt, "no loop"),
    ],
)
@pytest.mark.parametrize("of_batches", [True, False])
def test_a_loop_factory_must_give_a_loop_of_its_own_each_time(
    factory: Any, error: type[BaseException], said: str | None, of_batches: bool
) -> None:
    CLOSED.close()

    async def within_another() -> None:
        stage: Any = rs.map_batches(same, K, loop_factory=factory)
        if not of_batches:
            stage = rs.lookup(kind_of_loop, pa.string(), loop_factory=factory)
        with pytest.raises(error, match=said):
            values(stage, [1])

    RUNNING.run_until_complete(within_another())


class BrokenLoop(asyncio.SelectorEventLoop):
    """A loop that cannot do what the test says."""

    broken = ""

    def close(self) -> None:
        super().close()
        if self.broken == "close":
            raise OSError("close")

    def run_forever(self) -> None:
        if self.broken == "run":
            raise OSError("run")
        super().run_forever()

    def create_task(self, *args: Any, **words: Any) -> Any:
        if self.broken == "task":
            args[0].close()
            raise OSError("task")
        return super().create_task(*args, **words)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("broken", ["run", "close", "task"])
def test_a_loop_that_is_broken_ends_the_stage(broken: str) -> None:
    class Broken(BrokenLoop):
        pass

    Broken.broken = broken
    with pytest.raises(OSError, match=broken):
        start_thread(lambda: kinds(loop_factory=Broken)).result()
    gc.collect()  # here, where the warning is expected


LOOPS = [asyncio.SelectorEventLoop, None] if HAS_UVLOOP else [asyncio.SelectorEventLoop]


def run(fn: Any, loop: Any) -> list[Any]:
    stage = rs.lookup(fn, pa.int64(), loop_factory=loop)
    return start_thread(lambda: values(stage, range(200))).result()


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_callback_of_the_function_raises_is_said_and_no_failure(
    loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(k: int) -> int:
        if k == 3:
            asyncio.get_running_loop().call_soon(int, "its own callback")
            asyncio.get_running_loop().call_exception_handler({"message": "its own word"})
        await asyncio.sleep(0)
        return k

    assert run(look, loop) == list(range(200))
    assert "its own callback" in caplog.text
    assert "its own word" in caplog.text


@pytest.mark.parametrize("loop", LOOPS)
def test_a_function_may_handle_what_its_callbacks_raise(loop: Any) -> None:
    handled = list[str]()

    async def look(k: int) -> int:
        if k == 3:
            running = asyncio.get_running_loop()
            running.set_exception_handler(lambda _, context: handled.append(context["message"]))
            running.call_soon(int, "its own callback")
        await asyncio.sleep(0)
        return k

    run(look, loop)
    assert len(handled) == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_callback_of_the_function_that_exits_ends_the_stage(
    loop: Any, kind: type[BaseException]
) -> None:
    def leave() -> None:
        raise kind("from a callback")

    async def look(k: int) -> int:
        if k == 3:
            asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(3600)
        return k

    with pytest.raises(kind, match="from a callback"):
        run(look, loop)
