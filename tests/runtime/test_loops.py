"""``PrivateLoop``: a private loop that starts late, ends when told, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import WorkDroppedError
from rstreams_fast.runtime.loops import PrivateLoop, check_loop, loop_resource
from tests.helpers import DEADLINE, run_python, wait_for


def never(_error: BaseException) -> None:
    raise AssertionError("the work was dropped")


def test_the_thread_starts_with_the_first_work_and_ends_after_close(
    no_leaked_threads: None,
) -> None:
    before = threading.active_count()
    thread = PrivateLoop("test-loop")
    assert threading.active_count() == before
    ran = threading.Event()
    where: list[Any] = []

    def work() -> None:
        where.append((threading.current_thread().name, asyncio.get_running_loop()))
        ran.set()

    thread.execute(work, never)
    wait_for(ran)
    assert where[0][0].startswith("test-loop")
    thread.close()
    thread.close()
    assert thread.join(DEADLINE)
    assert where[0][1].is_closed()
    with pytest.raises(WorkDroppedError, match="closed"):
        thread.execute(work, never)


def test_work_given_before_close_is_done(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    done: list[int] = []
    for n in range(100):
        thread.execute(lambda n=n: done.append(n), never)
    thread.close()
    assert thread.join(DEADLINE)
    assert done == list(range(100))


def test_closing_what_never_started_is_nothing() -> None:
    thread = PrivateLoop()
    thread.close()
    assert thread.join(0)
    with pytest.raises(WorkDroppedError):
        thread.execute(lambda: None, never)


def test_the_thread_does_not_join_itself(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    answers: list[bool] = []

    def work() -> None:
        thread.close()
        answers.append(thread.join())

    thread.execute(work, never)
    assert thread.join(DEADLINE)
    assert answers == [False]


def test_close_cancels_tasks_and_waits_for_generators_and_threads(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    started = threading.Event()
    ended: list[str] = []

    async def generate() -> Any:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def task() -> None:
        generator = generate()
        await anext(generator)
        await asyncio.to_thread(lambda: None)  # its thread has to go, too
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append("task")
            raise

    tasks: list[Any] = []
    thread.execute(lambda: tasks.append(asyncio.ensure_future(task())), never)
    wait_for(started)
    thread.close()
    assert thread.join(DEADLINE)
    assert sorted(ended) == ["generator", "task"]
    assert tasks[0].cancelled()


def test_a_loop_nobody_holds_ends(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    ran = threading.Event()
    thread.execute(ran.set, never)
    wait_for(ran)
    reference = weakref.ref(thread)
    del thread
    gc.collect()
    assert reference() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_out_of_a_callback_leaves_through_the_thread_which_cleans_up(
    no_leaked_threads: None,
) -> None:
    thread = PrivateLoop()
    loops: list[asyncio.AbstractEventLoop] = []

    def interrupt() -> None:
        loops.append(asyncio.get_running_loop())
        raise KeyboardInterrupt

    thread.execute(interrupt, never)
    assert thread.join(DEADLINE)
    assert loops[0].is_closed()
    with pytest.raises(RuntimeError):
        thread.execute(lambda: None, never)


def test_what_is_no_loop_is_a_type_error() -> None:
    check_loop(None)
    with pytest.raises(TypeError, match="loop must be an asyncio event loop or None, got int"):
        check_loop(3)


def test_none_is_the_running_loop_or_a_private_one() -> None:
    assert isinstance(loop_resource(None, "test-loop"), PrivateLoop)

    async def main() -> None:
        done = asyncio.Event()
        loop_resource(None, "test-loop").execute(done.set, never)
        await done.wait()

    asyncio.run(main())


def shared(thread: PrivateLoop) -> Any:
    """What one gets who asks for the running loop where a private one runs."""
    got: list[Any] = []
    there = threading.Event()

    def work() -> None:
        got.append(loop_resource(None, "test-loop"))
        there.set()

    thread.execute(work, never)
    wait_for(there)
    return got.pop()


def test_a_private_loop_is_closed_by_the_last_who_holds_it(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    first, second = shared(thread), shared(thread)
    thread.close()
    thread.close()
    first.close()
    first.close()
    ran = threading.Event()
    second.execute(ran.set, never)
    wait_for(ran)
    assert not thread.join(0)
    second.close()
    assert thread.join(DEADLINE)
    assert thread.share() is None


def test_a_share_that_is_forgotten_holds_nothing(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    share = shared(thread)
    thread.close()
    del share
    gc.collect()
    assert thread.join(DEADLINE)


def test_a_share_keeps_a_private_loop_whose_maker_has_forgotten_it(no_leaked_threads: None) -> None:
    thread = PrivateLoop()
    share = shared(thread)
    del thread
    gc.collect()
    ran = threading.Event()
    share.execute(ran.set, never)
    wait_for(ran)
    share.close()
    del share
    gc.collect()


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
