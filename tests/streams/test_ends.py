"""The ends: ``for_each`` and its ``Run``; ``to_list``, ``first``, ``run`` and their async twins."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import UNBOUNDED
from tests.helpers import DEADLINE, Element, run_python, start_thread
from tests.rules.probes import ManualPublisher, Synchronous, raising

BOOM = RuntimeError("boom")


class Ends:
    """The ends of a stream of any publisher, as functions of the publisher."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def end(publisher: Any, *args: Any, **options: Any) -> Any:
            return getattr(rsf.from_publisher(publisher), name)(*args, **options)

        return end


ends = Ends()


class Failing(ManualPublisher):
    """Signals ``error`` when it is asked."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def request(self, n: int, /) -> None:
        super().request(n)
        self.subscriber.on_error(self.error)


def no_op(_element: Any) -> None:
    pass


async def awaited(run: Any) -> None:
    await run


def test_for_each_asks_for_everything_at_once_unless_told_otherwise() -> None:
    publisher = Synchronous(3)
    ends.for_each(publisher, no_op)
    assert publisher.requests == [UNBOUNDED]


@pytest.mark.parametrize(
    ("how", "prefetch", "requests"),
    [
        ("for_each", 1, [1] * 9),
        ("for_each", 2, [2] * 5),
        *((how, 4, [4, 3, 3]) for how in ("for_each", "iterate")),
        *((how, 8, [8, 6]) for how in ("for_each", "iterate")),
        *((how, 100, [100]) for how in ("for_each", "iterate")),
    ],
)
def test_it_asks_again_when_three_quarters_are_consumed(
    how: str, prefetch: int, requests: list[int]
) -> None:
    publisher = ManualPublisher()
    iteration = ends.iterate(publisher, prefetch=prefetch)
    if how == "for_each":
        ends.for_each(publisher, no_op, prefetch=prefetch)
    else:
        iteration.__enter__()
    for n in range(8):
        assert publisher.requested - n <= prefetch
        publisher.subscriber.on_next(n)
        if how == "iterate":
            assert next(iteration) == n
    assert publisher.requests == requests


def test_on_next_that_raises_cancels_upstream_once_and_is_the_error(
    dropped: list[BaseException],
) -> None:
    errors: list[BaseException] = []
    completed: list[bool] = []

    def fail(element: int) -> None:
        if element == 2:
            raise BOOM

    publisher = Synchronous(10)
    run = ends.for_each(publisher, fail, errors.append, lambda: completed.append(True))
    assert publisher.cancels == 1
    assert publisher.sent == 3
    assert errors == [BOOM]
    assert not completed
    with pytest.raises(RuntimeError) as raised:
        run.result()
    assert raised.value is BOOM
    assert dropped == []


def test_a_coroutine_that_nobody_awaits_is_the_error() -> None:
    async def save(element: int) -> None:
        """Never awaited."""

    pushed: list[int] = []
    run = rsf.range_(5).do_on_next(pushed.append).for_each(lambda n: save(n))  # noqa: PLW0108
    with pytest.raises(TypeError, match="returned a coroutine, which nobody awaits; make the call"):
        run.result()
    assert len(pushed) == 1


def test_the_traceback_does_not_grow_when_the_error_is_raised_again() -> None:
    run = ends.for_each(Failing(ValueError("again")), no_op)
    for wait_once in (run.result, lambda: asyncio.run(awaited(run))):
        lengths = set()
        for _ in range(3):
            with pytest.raises(ValueError, match="again") as raised:
                wait_once()
            lengths.add(len(raised.traceback))
        assert len(lengths) == 1


def test_on_complete_that_raises_is_the_error(dropped: list[BaseException]) -> None:
    def fail() -> None:
        raise BOOM

    run = ends.for_each(Synchronous(1), no_op, on_complete=fail)
    with pytest.raises(RuntimeError) as raised:
        run.result()
    assert raised.value is BOOM
    assert dropped == []


def test_on_error_that_raises_is_dropped_with_notice(dropped: list[BaseException]) -> None:
    late = OSError("in on_error")
    run = ends.for_each(Failing(BOOM), no_op, raising(late))
    assert dropped == [late]
    with pytest.raises(RuntimeError, match="boom"):
        run.result()


def test_result_waits_for_the_end() -> None:
    publisher = ManualPublisher()
    run = ends.for_each(publisher, no_op)
    waiting = [start_thread(run.result) for _ in range(3)]
    assert not run.done
    publisher.subscriber.on_complete()
    for thread in waiting:
        assert thread.result() is None


def test_result_waits_no_longer_than_it_was_told() -> None:
    run = ends.for_each(ManualPublisher(), no_op)
    with pytest.raises(TimeoutError, match=r"0\.01"):
        run.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        run.result(timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        run.result(timeout=-1)
    run.cancel()


@pytest.mark.parametrize("where", ["on_next", "on_complete", "on_error"])
@pytest.mark.parametrize("on_a_worker", [True, False])
def test_a_function_of_the_stream_does_not_wait_for_it_for_ever(
    where: str, on_a_worker: bool, dropped: list[BaseException]
) -> None:
    publisher, runs = ManualPublisher(), []
    told: list[BaseException] = []

    def wait(*_args: Any) -> None:
        with pytest.raises(TimeoutError):  # it may have a look
            runs[0].result(timeout=0)
        try:
            runs[0].result()
        except RuntimeError as error:
            told.append(error)
            raise

    functions: dict[str, Any] = {"on_next": no_op, where: wait}
    stream = rsf.from_publisher(publisher)
    runs.append(ends.for_each(stream.publish_on() if on_a_worker else stream, **functions))
    publisher.wait_requested(1)
    signal: dict[str, tuple[Any, ...]] = {"on_next": (1,), "on_complete": (), "on_error": (BOOM,)}
    getattr(publisher.subscriber, where)(*signal[where])
    with pytest.raises(RuntimeError) as caught:
        runs[0].result(DEADLINE)
    assert "result() would wait for ever" in str(told[0])
    assert caught.value is (BOOM if where == "on_error" else told[0])
    assert dropped == told * (where == "on_error")


def test_a_stage_does_not_wait_for_the_end_of_its_own_stream() -> None:
    runs: list[Any] = []

    def wait(element: int) -> int:
        runs[0].result()
        return element

    subscriber = rsf.SyncSubscriber[int](no_op)
    runs.append(subscriber.run)
    rsf.range_(3).map(wait).subscribe(subscriber)
    with pytest.raises(RuntimeError, match="would wait for ever"):
        subscriber.run.result(DEADLINE)


@pytest.mark.parametrize("on_a_worker", [False, True])
def test_after_cancel_the_function_is_not_called(on_a_worker: bool) -> None:
    """Though a stage has an element at that moment."""
    seen: list[int] = []
    subscriber = rsf.SyncSubscriber(seen.append)

    def stage(element: int) -> int:
        if element == 3:
            subscriber.run.cancel()
        return element

    stream = rsf.range_(99)
    (stream.publish_on() if on_a_worker else stream).map(stage).subscribe(subscriber)
    with pytest.raises(concurrent.futures.CancelledError):
        subscriber.run.result(DEADLINE)
    assert seen == [0, 1, 2]


def test_a_function_of_one_stream_may_wait_for_another() -> None:
    seen: list[int] = []

    def wait(n: int) -> None:
        ends.for_each(rsf.range_(n).publish_on(), seen.append).result()

    ends.for_each(rsf.range_(1, 3), wait).result()
    assert seen == [0, 0, 1]


async def test_result_inside_a_running_loop_is_refused_if_it_would_wait() -> None:
    run = ends.for_each(ManualPublisher(), no_op)
    with pytest.raises(RuntimeError, match="await the Run"):
        run.result()
    run.cancel()
    done = ends.for_each(Synchronous(1), no_op)
    assert done.result() is None


def test_a_run_is_awaited_from_several_loops() -> None:
    publisher = ManualPublisher()
    run = ends.for_each(publisher, no_op)
    started = threading.Semaphore(0)

    async def main() -> str:
        started.release()
        await run
        return "done"

    threads = [start_thread(lambda: asyncio.run(main())) for _ in range(3)]
    for _ in threads:
        assert started.acquire(timeout=DEADLINE)
    publisher.subscriber.on_complete()
    assert [thread.result() for thread in threads] == ["done"] * 3


async def test_cancelling_the_task_that_awaits_cancels_upstream_once() -> None:
    publisher = ManualPublisher()
    run = ends.for_each(publisher, no_op)
    task = asyncio.create_task(awaited(run))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert run.done
    assert publisher.cancels == 1


async def test_a_cancelled_run_does_not_look_like_a_cancelled_task() -> None:
    run = ends.for_each(ManualPublisher(), no_op)
    asyncio.get_running_loop().call_soon(run.cancel)
    with pytest.raises(concurrent.futures.CancelledError):
        await run
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


def test_a_loop_that_was_closed_meanwhile_does_not_disturb_upstream() -> None:
    publisher = ManualPublisher()
    run = ends.for_each(publisher, no_op)
    loop = asyncio.new_event_loop()
    task = loop.create_task(awaited(run))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    publisher.subscriber.on_complete()
    assert run.done
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_keyboard_interrupt_from_on_next_leaves_through_the_call_it_happened_in() -> None:
    errors: list[BaseException] = []
    publisher = ManualPublisher()
    run = ends.for_each(publisher, raising(KeyboardInterrupt()), errors.append)
    with pytest.raises(KeyboardInterrupt):
        publisher.subscriber.on_next(1)
    assert publisher.cancels == 1
    assert errors == []
    with pytest.raises(KeyboardInterrupt):
        run.result()


def test_cancelled_error_from_on_next_is_an_error_not_a_silent_stop() -> None:
    publisher = ManualPublisher()
    run = ends.for_each(publisher, raising(asyncio.CancelledError()))
    publisher.subscriber.on_next(1)
    assert publisher.cancels == 1
    with pytest.raises(RuntimeError, match=r"CancelledError") as raised:
        run.result()
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


async def _async_function(_element: Any) -> None: ...


async def _async_generator(_element: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "on_next must be callable"),
        ((1,), "on_next must be callable"),
        ((no_op, "x"), "on_error must be callable"),
        ((no_op, None, "x"), "on_complete must be callable"),
        ((_async_function,), "on_next must be a plain function.*map_async"),
        ((_async_generator,), "on_next must be a plain function, not an async generator"),
        ((no_op, _async_function), "on_error must be a plain function"),
    ],
)
def test_for_each_names_a_wrong_argument(arguments: tuple[Any, ...], message: str) -> None:
    publisher = ManualPublisher()
    with pytest.raises(TypeError, match=message):
        ends.for_each(publisher, *arguments)
    assert publisher.subscribes == 0


def test_the_traceback_of_what_on_next_raised_does_not_keep_the_element() -> None:
    publisher = ManualPublisher()
    element = Element()
    run = ends.for_each(publisher, len)  # type: ignore[arg-type]
    publisher.subscriber.on_next(element)
    reference = weakref.ref(element)
    del element
    gc.collect()
    with pytest.raises(TypeError, match="len"):
        run.result()
    assert reference() is None


def test_first_asks_for_exactly_one_and_cancels_right_after_it() -> None:
    publisher = Synchronous(10)
    assert ends.first(publisher) == 0
    assert (publisher.requests, publisher.sent, publisher.cancels) == ([1], 1, 1)


def test_first_of_an_empty_stream() -> None:
    with pytest.raises(LookupError, match="empty"):
        ends.first(Synchronous(0))
    assert ends.first(Synchronous(0), None) is None
    assert ends.first(Synchronous(0), 7) == 7


def test_an_error_that_is_kept_does_not_keep_the_subscriber() -> None:
    class Forgetting(Failing):
        def request(self, n: int, /) -> None:
            subscriber, self.subscriber = self.subscriber, None
            self.kept = weakref.ref(subscriber)
            subscriber.on_next(Element())
            subscriber.on_error(self.error)

    for end in (ends.to_list, ends.run):
        publisher = Forgetting(ValueError("kept"))
        with pytest.raises(ValueError, match="kept") as raised:
            end(publisher)
        gc.collect()
        assert publisher.kept() is None, end
        assert raised.value is publisher.error


async def test_an_async_end_keeps_its_demand_bounded() -> None:
    publisher = ManualPublisher()
    task = asyncio.create_task(ends.to_list_async(publisher))
    await asyncio.sleep(0)
    assert publisher.requested == 1024
    publisher.subscriber.on_complete()
    assert await task == []


async def test_an_error_that_is_kept_does_not_keep_the_elements_of_an_async_end() -> None:
    elements: list[weakref.ref[Element]] = []

    def make(n: int) -> Element:
        if n == 3:
            raise BOOM
        element = Element()
        elements.append(weakref.ref(element))
        return element

    with pytest.raises(RuntimeError, match="boom") as raised:
        await rsf.range_(9).map(make).to_list_async()
    gc.collect()
    assert raised.value is BOOM
    assert [reference() for reference in elements] == [None] * 3


AT_EXIT = """
import asyncio, threading
import rstreams_fast as rsf

seen = threading.Semaphore(0)

async def wait(n):
    await asyncio.sleep(0.001)
    return n

endless = rsf.range_(10**12)
runs = [
    stream.for_each(lambda n: seen.release())
    for stream in (
        rsf.interval(0.001, overflow=rsf.Overflow.DROP_LATEST),
        endless.subscribe_on(),
        endless.publish_on(),
        endless.map_async(wait),
        rsf.merge(endless.publish_on(), endless.publish_on()),
    )
]
for _ in range(20):
    seen.acquire()
"""


IN_CALLS_AT_EXIT = """
import asyncio, threading
import rstreams_fast as rsf

begun = threading.Semaphore(0)

async def wait(n):
    begun.release()
    await asyncio.sleep(1000)

run = rsf.range_(10**12).map_async(wait, concurrency=16).for_each(print)
for _ in range(16):
    begun.acquire()
"""


IN_TICKS_AT_EXIT = """
import threading, time
import rstreams_fast as rsf

ticked = threading.Semaphore(0)

def slow(n):
    ticked.release()
    time.sleep(0.05)  # in which the next tick wants another thread

run = rsf.interval(0.01).for_each(slow)
for _ in range(3):
    ticked.acquire()
"""


LEFT_AT_EXIT = """
import rstreams_fast as rsf

async def numbers():
    for n in range(10**9):
        yield n

endless = rsf.from_async_iterable(numbers)
left = [
    iter(stream)
    for stream in (endless, endless.share(), endless.window(3), endless.group_by(lambda n: n % 2))
]
elements = [next(iterator) for iterator in left]
"""


@pytest.mark.parametrize(
    "program",
    [AT_EXIT, IN_CALLS_AT_EXIT, LEFT_AT_EXIT, IN_TICKS_AT_EXIT],
    ids=["at work", "in calls", "left by their readers", "in slow ticks"],
)
def test_streams_that_live_when_the_interpreter_exits_end_in_silence(program: str) -> None:
    done = run_python("-c", program)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("keeps", ["none", "all"])
async def test_a_source_on_the_loop_lets_time_outs_come_though_no_element_does(keeps: str) -> None:
    endless = rsf.range_(2**62).subscribe_on(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await endless.filter(lambda _: keeps == "all").count_async()
