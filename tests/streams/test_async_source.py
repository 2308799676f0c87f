"""``from_async_iterable``: awaited on demand, one at a time, closed once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, run_python, run_threads, wait_gone, wait_until
from tests.rules.probes import Recorder, subscribed
from tests.stepping import Step, steps
from tests.streams.loops import turns

BOOM = RuntimeError("boom")


class Source:
    """An asynchronous iterator that notes what is done with it; odd elements have to be awaited."""

    def __init__(self, total: int = 10**9, fail_at: int = -1) -> None:
        self.total = total
        self.fail_at = fail_at
        self.pulled = 0
        self.inside = 0
        self.closes = 0
        self.closed_inside = False

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> int:
        self.inside += 1
        try:
            n = self.pulled
            self.pulled += 1
            if n == self.fail_at:
                raise BOOM
            if n == self.total:
                raise StopAsyncIteration
            if n % 2:
                await asyncio.sleep(0)
            return n
        finally:
            self.inside -= 1

    async def aclose(self) -> None:
        self.closes += 1
        self.closed_inside = self.closed_inside or bool(self.inside)


class Hanging(Source):
    """Never gives its second element."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = 0

    async def __anext__(self) -> int:
        if self.pulled == 1:
            self.inside += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                await asyncio.sleep(0)  # takes its time
                raise
            finally:
                self.inside -= 1
        return await super().__anext__()


def subscribe(source: Any, request: Any, **options: Any) -> Recorder:
    return subscribed(rsf.from_async_iterable(source), request, **options)


async def generate(n: int = 5) -> AsyncIterator[int]:
    for x in range(n):
        yield x


class Repeatable:
    """Can be iterated any number of times."""

    def __aiter__(self) -> AsyncIterator[int]:
        return generate(5)


@pytest.mark.parametrize("source", [generate, Repeatable(), Repeatable, Source])
def test_functions_and_iterables_serve_any_number_of_subscribers(
    source: Any, no_leaked_threads: None
) -> None:
    stream = rsf.from_async_iterable(source).take(5)
    assert stream.to_list() == [0, 1, 2, 3, 4]
    assert stream.to_list() == [0, 1, 2, 3, 4]
    assert run_threads([stream.to_list] * 3) == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("make", [generate, lambda: Source(5)])
def test_an_iterator_serves_one_and_the_next_gets_a_runtime_error(
    make: Callable[[], Any], no_leaked_threads: None
) -> None:
    stream = rsf.from_async_iterable(make())
    assert stream.to_list() == [0, 1, 2, 3, 4]
    with pytest.raises(rsf.AlreadySubscribedError, match="function"):
        stream.to_list()
    recorder = subscribed(stream, 1)
    assert [name for name, *_ in recorder.signals] == ["on_subscribe", "on_error"]


async def test_an_element_that_is_there_at_once_costs_no_task() -> None:
    tasks: set[Any] = set()

    async def ready() -> AsyncIterator[int]:
        for x in range(1000):
            tasks.add(asyncio.current_task())
            yield x

    recorder = subscribe(ready, 2000)
    while recorder.terminal is None:  # noqa: ASYNC110 - it is the recorder's, not the loop's
        await asyncio.sleep(0)
    assert len(recorder.elements) == 1000
    assert len(tasks) == 1


async def test_a_source_that_is_always_ready_lets_the_loop_run() -> None:
    recorder = subscribe(lambda: generate(10**9), rsf.UNBOUNDED)
    others = 0
    while len(recorder.elements) < 5000:
        others += 1
        await asyncio.sleep(0)
    recorder.subscription.cancel()
    await turns()
    assert others > 5


def test_a_loop_closed_while_the_source_is_parked_is_an_error() -> None:
    loop = asyncio.new_event_loop()

    async def main() -> Recorder:
        recorder = subscribe(generate, 1)
        await turns()
        return recorder

    recorder = loop.run_until_complete(main())
    assert recorder.elements == [0]
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    recorder.subscription.request(1)
    recorder.wait_terminal()
    assert isinstance(recorder.error, RuntimeError)
    assert "loop" in str(recorder.error)


def test_a_loop_that_ends_in_the_turn_which_makes_the_task_is_an_error_not_silence() -> None:
    source = Source(5)

    async def main() -> Recorder:
        return subscribe(source, 5)  # the drain has one turn, and its task is cancelled in it

    recorder = asyncio.run(main())
    recorder.wait_terminal()
    assert isinstance(recorder.error, RuntimeError)
    assert (source.pulled, source.closes) == (0, 1)


@pytest.mark.parametrize("how", ["complete", "error", "cancel", "cancel in on_next", "never asked"])
def test_aclose_is_awaited_exactly_once_and_never_inside_an_anext(
    how: str, no_leaked_threads: None
) -> None:
    source = Source(5, fail_at=3 if how == "error" else -1)
    leave = (lambda r, _x: r.subscription.cancel()) if how == "cancel in on_next" else None
    recorder = subscribe(source, {"cancel": 2, "never asked": ...}.get(how, 9), on_next=leave)
    if how in ("complete", "error"):
        recorder.wait_terminal()
    elif how != "cancel in on_next":
        recorder.wait_elements(2 if how == "cancel" else 0)
        recorder.subscription.cancel()
        recorder.subscription.cancel()
    for thread in threading.enumerate():
        if "async-source" in thread.name:
            thread.join(DEADLINE)
    assert source.closes == 1
    assert not source.closed_inside
    recorder.check()


async def test_a_cancel_that_is_seen_before_it_has_returned_is_no_error(
    dropped: list[BaseException],
) -> None:
    loop = asyncio.get_running_loop()

    def some_turns() -> None:
        asyncio.run_coroutine_threadsafe(turns(), loop).result(DEADLINE)

    for step in steps():
        source = Hanging()
        recorder = subscribe(source, 5)
        await turns()

        def cancel(step: Step = step, recorder: Recorder = recorder) -> None:
            with step.meanwhile(some_turns):
                recorder.subscription.cancel()

        await asyncio.to_thread(cancel)
        await turns()
        assert (source.cancelled, source.closes, recorder.terminal) == (1, 1, None), step
    assert dropped == []


async def _for(stream: rsf.Stream[int]) -> None:
    async for _ in stream.take(3):
        pass


async def _iterate(stream: rsf.Stream[int]) -> None:
    async with stream.iterate() as iterator:
        await anext(iterator)


READS: dict[str, Callable[[rsf.Stream[int]], Awaitable[object]]] = {
    "take": lambda stream: stream.take(3).to_list_async(),
    "first": lambda stream: stream.first_async(),
    "for": _for,
    "iterate": _iterate,
}


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("how", [*READS, "cancel", "time-out", "left"])
def test_a_generators_finally_awaits_what_it_wants_though_its_loop_ends(
    how: str, suspends: bool
) -> None:
    """``asyncio.run`` cancels all tasks at its end, but lets a generator of its own end."""
    closed: list[str] = []

    async def main() -> None:
        waits, hour = asyncio.Event(), 3600.0

        async def elements() -> AsyncIterator[int]:
            try:
                for n in range(5):
                    yield n
                    if suspends:
                        await asyncio.sleep(0)
                waits.set()
                await asyncio.sleep(hour)
            finally:
                async with asyncio.TaskGroup() as group:  # whose tasks nobody cancels, either
                    group.create_task(asyncio.sleep(0.02)).add_done_callback(finished.append)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await asyncio.sleep(hour)
                closed.append(how)

        finished: list[asyncio.Task[None]] = []
        stream = rsf.from_async_iterable(elements)
        if how in READS:
            await READS[how](stream)
        elif how == "time-out":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.to_list_async(), 0.02)
        else:
            reader = asyncio.create_task(stream.to_list_async())
            await waits.wait()
            if how == "cancel":
                reader.cancel()
                await asyncio.wait([reader])
        if how != "left":
            assert closed == [how]
            assert not finished[0].cancelled()

    asyncio.run(main())
    assert closed == [how]


@pytest.mark.parametrize("how", READS)
def test_who_waits_for_a_generator_that_does_not_close_can_be_cancelled(how: str) -> None:
    interrupted: list[BaseException] = []
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def elements() -> AsyncIterator[int]:
        try:
            for n in itertools.count():
                yield n
        finally:
            closing[0].set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancelled:
                interrupted.append(cancelled)
                raise

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        closing.append(asyncio.Event())
        reading = asyncio.ensure_future(READS[how](rsf.from_async_iterable(elements)))
        await closing[0].wait()
        await turns(20)  # now it waits for the generator
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    closing: list[asyncio.Event] = []
    asyncio.run(main())
    closing.clear()
    assert len(interrupted) == 1
    interrupted.clear()
    wait_gone(loops[0])


def test_a_reader_that_is_cancelled_with_its_loop_is_no_error(dropped: list[BaseException]) -> None:
    """Which of the two tasks ``asyncio.run`` cancels first is chance."""

    async def elements() -> AsyncIterator[int]:
        try:
            for n in itertools.count():
                yield n
        finally:
            await asyncio.sleep(0)

    async def read(parked: asyncio.Event) -> None:
        async for _ in rsf.from_async_iterable(elements).iterate(prefetch=1):
            parked.set()
            await asyncio.Event().wait()

    async def main() -> None:
        parked = asyncio.Event()
        reading.append(asyncio.create_task(read(parked)))
        await parked.wait()
        await asyncio.sleep(0)

    reading: list[asyncio.Task[None]] = []
    for _ in range(20):
        asyncio.run(main())
    assert all(task.cancelled() for task in reading)
    assert dropped == []


async def test_an_error_beside_the_end_of_a_generator_is_made_known(
    dropped: list[BaseException],
) -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise BOOM

    async def elements() -> AsyncIterator[int]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            while True:
                await asyncio.sleep(0)
                yield 1

    assert await rsf.from_async_iterable(elements).take(2).to_list_async() == [1, 1]
    (group,) = dropped
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (BOOM,)


def test_a_generators_finally_awaits_what_it_wants_though_the_process_ends() -> None:
    done = run_python(
        "-c",
        """
import asyncio
import itertools
import os
import rstreams_fast as rsf

def say(line):
    os.write(1, f"{line}\\n".encode())  # whole, though two loops say theirs at once

async def elements():
    try:
        for n in itertools.count():
            yield n
    finally:
        await asyncio.sleep(0.02)
        say("closed")

say(rsf.from_async_iterable(elements).take(2).to_list())
left = iter(rsf.from_async_iterable(elements))
say(next(left))
""",
    )
    assert sorted(done.stdout.splitlines()) == ["0", "[0, 1]", "closed", "closed"]
    assert done.stderr == ""


@pytest.mark.parametrize("cancelled", [False, True])
def test_aclose_that_raises_is_the_error_of_a_stream_that_has_none_or_made_known(
    cancelled: bool, dropped: list[BaseException]
) -> None:
    class Raising(Source):
        async def aclose(self) -> None:
            raise BOOM

    recorder = subscribe(Raising(2), 2 if cancelled else 9)
    recorder.wait_elements(2)
    if cancelled:
        recorder.subscription.cancel()
        wait_until(lambda: dropped, "the report")
    else:
        recorder.wait_terminal()
    assert (recorder.error, dropped) == ((None, [BOOM]) if cancelled else (BOOM, []))


async def _coroutine_function() -> list[int]:
    return [1]


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda: 1 // 0, ZeroDivisionError, "by zero"),
        (lambda: [1, 2], TypeError, "asynchronous iterable"),
        (lambda: _coroutine_function(), TypeError, "asynchronous iterable"),  # noqa: PLW0108
    ],
)
def test_a_function_that_raises_or_returns_something_else_is_an_error(
    fn: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rsf.from_async_iterable(fn).to_list()


@pytest.mark.parametrize(
    ("iterable", "message"),
    [(3, "got int"), ([1, 2], "use from_iterable"), (_coroutine_function, "coroutine function")],
)
def test_what_cannot_be_iterated_is_refused_at_once(iterable: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rsf.from_async_iterable(iterable)
    with pytest.raises(TypeError, match="loop"):
        rsf.from_async_iterable(generate, loop="loop")  # type: ignore[arg-type]
