"""``map_async`` and ``from_async_iterable``: on which loop they run, and how it ends them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE
from tests.rules.probes import Recorder
from tests.streams.loops import loop_thread, turns

Call = Callable[[int], Any]


def calls(fn: Call, **options: Any) -> rsf.Stream[Any]:
    async def call(n: int) -> Any:
        await asyncio.sleep(0)
        return fn(n)

    return rsf.range_(5).map_async(call, **options)


def iterable(fn: Call, **options: Any) -> rsf.Stream[Any]:
    async def numbers() -> AsyncIterator[Any]:
        for n in range(5):
            await asyncio.sleep(0)
            yield fn(n)

    return rsf.from_async_iterable(numbers, **options)


#: Each makes a stream of what ``fn`` gives for 0 to 4, called on the loop.
both = pytest.mark.parametrize("make", [calls, iterable])


def here(_n: int) -> Any:
    return asyncio.get_running_loop(), threading.current_thread()


@both
def test_the_running_loop_is_used_and_no_thread_is_started(make: Any) -> None:
    async def main() -> None:
        found = set(await make(here).to_list_async())
        assert found == {(asyncio.get_running_loop(), threading.current_thread())}

    before = set(threading.enumerate())
    asyncio.run(main())
    assert set(threading.enumerate()) <= before


@both
def test_without_a_loop_there_is_a_private_one_that_ends_with_the_stream(make: Any) -> None:
    ((loop, thread),) = set(make(here).to_list())
    assert thread is not threading.current_thread()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert loop.is_closed()


@both
def test_another_loop_may_run_in_another_thread(make: Any) -> None:
    with loop_thread() as loop:
        assert {used for used, _thread in make(here, loop=loop).to_list()} == {loop}


@both
def test_a_closed_loop_is_an_error_after_on_subscribe(make: Any) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    recorder = Recorder(request=1)
    make(here, loop=loop).subscribe(recorder)
    assert [name for name, *_ in recorder.signals] == ["on_subscribe", "on_error"]
    assert "closed" in str(recorder.error)


@both
def test_one_context_per_subscribe(make: Any) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    stream = make(lambda _n: variable.get())
    token = variable.set("outer")
    try:
        assert set(stream.to_list()) == {"outer"}
    finally:
        variable.reset(token)
    assert set(stream.to_list()) == {"unset"}


def test_what_a_call_sets_is_not_seen_by_the_next() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)

    async def call(n: int) -> int:
        before = variable.get()
        variable.set(n)
        await asyncio.sleep(0)
        return before

    assert rsf.range_(3).map_async(call, concurrency=1).to_list() == [-1, -1, -1]


@both
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_through_the_loop(make: Any, kind: type[BaseException]) -> None:
    def interrupt(n: int) -> int:
        if n == 1:
            raise kind
        return n

    loop = asyncio.new_event_loop()
    recorder = Recorder(request=9)

    async def main() -> None:
        make(interrupt).subscribe(recorder)
        await turns(20)

    task = loop.create_task(main())
    with pytest.raises(kind):
        loop.run_until_complete(task)
    loop.run_until_complete(task)
    loop.close()
    assert isinstance(recorder.error, kind)
    recorder.check()


@both
def test_a_cancelled_error_is_an_error_and_no_silent_stop(make: Any) -> None:
    def cancelled(n: int) -> int:
        if n == 1:
            raise asyncio.CancelledError
        return n

    with pytest.raises(RuntimeError, match=r"asyncio\.CancelledError") as raised:
        make(cancelled).to_list()
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
