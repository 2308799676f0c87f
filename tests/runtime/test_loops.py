"""The private loop of a stream: how long it lives, and what it does at its end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, run_python, wait_for
from tests.rules.probes import Recorder, subscribed


async def slowly(n: int) -> AsyncIterator[int]:
    for k in range(n):
        await asyncio.sleep(0.001)
        yield k


async def same(element: int) -> int:
    return element


def later(n: int) -> rsf.Stream[int]:
    return rsf.from_async_iterable(lambda: slowly(n))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (rsf.concat(later(3), later(3)), 6),
        (rsf.concat(later(3), rsf.range_(3).publish_on().map_async(same)), 6),
        (rsf.range_(4).concat_map(lambda _: later(3)), 12),
        (later(3).flat_map(lambda _: later(3)), 9),
        (rsf.concat(later(2), rsf.error(ValueError())).on_error_resume(lambda _: later(3)), 5),
    ],
    ids=["concat", "concat map_async", "concat_map", "flat_map", "resume"],
)
def test_what_is_subscribed_to_on_a_private_loop_outlives_what_that_was_made_for(
    stream: rsf.Stream[int], expected: int, no_leaked_threads: None
) -> None:
    assert len(stream.to_list()) == expected


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_private_loop_lives_as_long_as_somebody_holds_a_stream_on_it(
    forgotten: bool, no_leaked_threads: None
) -> None:
    held: list[Recorder] = []

    async def call(n: int) -> int:
        held.append(subscribed(later(3)))
        return n

    assert rsf.range_(1).map_async(call).to_list() == [0]
    if not forgotten:
        held[0].subscription.request(5)
        held[0].wait_terminal()
        held[0].subscription.cancel()
        assert held[0].elements == [0, 1, 2]
    held.clear()
    gc.collect()


def test_the_end_of_a_private_loop_cancels_tasks_and_waits_for_generators_and_threads(
    no_leaked_threads: None,
) -> None:
    ended: list[str] = []
    began = threading.Event()

    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def beside() -> None:
        generator = generate()
        await anext(generator)
        await asyncio.to_thread(lambda: None)  # its thread has to go, too
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("task")

    tasks: list[asyncio.Task[None]] = []

    async def call(_n: int) -> list[threading.Thread]:
        tasks.append(asyncio.ensure_future(beside()))
        await asyncio.to_thread(wait_for, began)
        return [threading.current_thread()]

    ((thread,),) = rsf.range_(1).map_async(call).to_list()
    thread.join(DEADLINE)
    assert sorted(ended) == ["generator", "task"]
    assert tasks[0].cancelled()


FORGOTTEN = """
import asyncio, threading
import rstreams_fast as rsf
from tests.rules.probes import Recorder

started = threading.Event()

async def hang(x):
    started.set()
    await asyncio.Event().wait()

recorder = Recorder(request=1)
rsf.range_(5).map_async(hang).subscribe(recorder)
assert started.wait(20)
print("over")
"""


def test_a_forgotten_stream_does_not_keep_the_interpreter_from_exiting() -> None:
    process = run_python("-c", FORGOTTEN)
    assert process.stdout.strip() == "over"
    assert process.stderr == ""


def test_asyncio_is_not_imported_by_what_does_not_use_it() -> None:
    code = (
        "import sys, rstreams_fast.runtime.parking, rstreams_fast.runtime.executors\n"
        "print('asyncio' in sys.modules)"
    )
    assert run_python("-c", code).stdout.strip() == "False"
