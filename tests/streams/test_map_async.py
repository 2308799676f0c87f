"""``map_async``: bounded calls on one loop, results on demand, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, Living, Problem, start_thread, wait_for, wait_gone
from tests.rules.probes import Forgetful, ManualPublisher, Recorder, send, subscribed
from tests.stepping import Step, steps
from tests.streams.loops import turns

BOOM = RuntimeError("boom")


async def identity(x: Any) -> Any:
    return x


class Gates:
    """An async function whose calls end when the test says so. All on one loop."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self._gates: dict[Any, asyncio.Future[Any]] = {}

    async def __call__(self, x: Any) -> Any:
        self.started.append(x)
        self._gates[x] = asyncio.get_running_loop().create_future()
        try:
            result = await self._gates[x]
        except asyncio.CancelledError:
            self.cancelled.append(x)
            raise
        self.ended.append(x)
        return result

    def finish(self, *items: Any) -> None:
        for x in items:
            self._gates[x].set_result(x)

    def fail(self, x: Any, error: BaseException) -> None:
        self._gates[x].set_exception(error)


def subscribe(
    publisher: Any, fn: Callable[[Any], Awaitable[Any]], request: Any, **options: Any
) -> Recorder:
    return subscribed(rsf.from_publisher(publisher).map_async(fn, **options), request)


@pytest.mark.parametrize("ordered", [True, False])
async def test_ordered_results_keep_the_order_and_others_come_as_they_are_ready(
    ordered: bool,
) -> None:
    gates, publisher = Gates(), ManualPublisher()
    recorder = subscribe(publisher, gates, 10, concurrency=4, ordered=ordered)
    await turns()
    send(publisher, *range(3))
    for n in (2, 0, 1):
        await turns()
        gates.finish(n)
    publisher.subscriber.on_complete()
    await turns()
    assert recorder.elements == ([0, 1, 2] if ordered else [2, 0, 1])
    assert recorder.terminal == ("on_complete",)
    recorder.check()


def test_callables_of_every_kind_that_return_an_awaitable_will_do() -> None:
    class Called:
        async def __call__(self, x: int) -> int:
            return x + 1

    async def add(n: int, x: int) -> int:
        return n + x

    def future(x: int) -> asyncio.Future[int]:
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        made.set_result(x + 1)
        return made

    for fn in (Called(), functools.partial(add, 1), lambda x: add(1, x), future):
        assert rsf.range_(4).map_async(fn).to_list() == [1, 2, 3, 4]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_no_more_calls_than_concurrency_run_at_once(concurrency: int) -> None:
    running = most = 0

    async def call(x: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return x

    assert rsf.range_(200).map_async(call, concurrency=concurrency).to_list() == list(range(200))
    assert most == concurrency


@pytest.mark.parametrize("prefetch", [1, 3, 16])
@pytest.mark.parametrize("ordered", [True, False])
async def test_no_more_elements_than_the_prefetch_are_in_flight(
    prefetch: int, ordered: bool
) -> None:
    living, complete, recorder = Living(), asyncio.Event(), Forgetful(request=rsf.UNBOUNDED)
    # One thread for all: without a GIL, who made an element frees it, when it runs again.
    stream = rsf.range_(300).map(living.make)
    stream = stream.map_async(identity, concurrency=4, prefetch=prefetch, ordered=ordered)
    stream.do_on_complete(complete.set).subscribe(recorder)
    await complete.wait()
    assert recorder.taken == 300
    gc.collect()
    assert 0 < living.most <= prefetch
    assert living.alive.value == 0


@pytest.mark.parametrize("ordered", [True, False])
async def test_calls_of_one_key_take_turns_and_others_go_on_beside_them(ordered: bool) -> None:
    gates = Gates()
    stream = rsf.from_iterable(["a1", "a2", "b1", "a3", "c1", "b2"])
    stream = stream.map_async(gates, concurrency=2, prefetch=8, ordered=ordered, key=lambda x: x[0])
    assert "2 calls at once, one of each" in stream.describe()
    recorder = subscribed(stream, 10)
    await turns()
    assert gates.started == ["a1", "b1"]
    gates.finish("b1")
    await turns()
    assert gates.started == ["a1", "b1", "c1"]  # asked for room before b2, whose turn came now
    gates.finish("a1", "c1")
    await turns()
    assert set(gates.started[3:]) == {"a2", "b2"}
    gates.finish("a2", "b2")
    await turns()
    gates.finish("a3")
    await turns()
    assert recorder.terminal == ("on_complete",)
    assert [x for x in recorder.elements if x[0] == "a"] == ["a1", "a2", "a3"]
    assert not ordered or recorder.elements == ["a1", "a2", "b1", "a3", "c1", "b2"]


# It also leaves through the private thread, as it would through any other.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kept", [False, True])
def test_an_exit_in_a_call_that_waited_for_its_turn_ends_the_stream(
    no_leaked_threads: None, kept: bool
) -> None:
    tasks = []

    async def call(n: int) -> int:
        if kept:
            tasks.append(asyncio.current_task())
        if n == 2:
            raise SystemExit(5)
        await asyncio.sleep(0)
        return n

    stream = rsf.range_(6).map_async(call, concurrency=4, key=lambda _: "one")
    with pytest.raises(SystemExit, match="5"):
        stream.to_list()


def test_a_key_without_a_hash_is_an_error() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        rsf.range_(5).map_async(identity, key=lambda _: []).to_list()


async def test_a_slow_call_in_order_does_not_hold_up_those_after_it() -> None:
    others = asyncio.Event()

    async def call(n: int) -> int:
        if n == 0:
            await asyncio.wait_for(others.wait(), DEADLINE)
        if n == 200:
            others.set()
        return n

    calls = rsf.range_(300).map_async(call, concurrency=4)
    assert await calls.to_list_async() == list(range(300))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 3}, "3 calls at once and 192 elements"),
        ({"concurrency": 3, "ordered": False}, "3 calls at once and 12 elements"),
        ({"concurrency": 2**14}, f"{2**14} calls at once and {2**16} elements"),
        ({"concurrency": 2**30}, f"{2**30} calls at once and {2**30} elements"),
        ({"concurrency": 2**40}, f"{2**31} calls at once"),
    ],
)
def test_however_many_calls_the_prefetch_that_goes_with_them_is_a_possible_one(
    options: dict[str, Any], said: str
) -> None:
    assert said in rsf.range_(3).map_async(identity, **options).describe()


@pytest.mark.parametrize("before", [0, 1])
async def test_an_error_is_no_end_to_a_drain_that_looks_while_it_comes(before: int) -> None:
    loop = asyncio.get_running_loop()
    for step in steps():
        publisher = ManualPublisher()
        recorder = subscribe(publisher, identity, ...)
        if before:
            recorder.subscription.request(before)
            await turns()
            publisher.subscriber.on_next(0)
            await turns()

        def look(recorder: Recorder = recorder) -> None:
            recorder.subscription.request(5)
            asyncio.run_coroutine_threadsafe(turns(), loop).result(DEADLINE)

        def fail(step: Step = step, publisher: Any = publisher, look: Any = look) -> None:
            with step.meanwhile(look):
                publisher.subscriber.on_error(BOOM)

        await asyncio.to_thread(fail)
        await turns()
        assert recorder.elements == [0] * before, step
        assert recorder.terminal == ("on_error", BOOM), step


async def test_everything_happens_on_the_loop() -> None:
    where: set[tuple[str, int]] = set()

    def note(what: str) -> None:
        where.add((what, threading.get_ident()))

    publisher = ManualPublisher(lambda _me: note("request"))
    stream = rsf.from_publisher(publisher).map_async(identity, prefetch=2)
    recorder = subscribed(stream, on_next=lambda _me, _element: note("on_next"))

    def elsewhere() -> None:
        recorder.subscription.request(10)
        publisher.wait_requested(2)
        for n in range(10):
            publisher.wait_requested(n + 1)
            publisher.subscriber.on_next(n)
        publisher.subscriber.on_complete()

    thread = start_thread(elsewhere)
    await asyncio.to_thread(recorder.wait_terminal)
    thread.result()
    assert recorder.elements == list(range(10))
    recorder.check()
    assert where == {("request", threading.get_ident()), ("on_next", threading.get_ident())}


@pytest.mark.parametrize("who", ["request", "on_next", "on_complete"])
def test_a_loop_closed_meanwhile_cancels_upstream_and_is_an_error(who: str) -> None:
    loop = asyncio.new_event_loop()
    publisher = ManualPublisher()

    async def main() -> Recorder:
        recorder = subscribe(publisher, identity, 1)
        await turns()
        return recorder

    recorder = loop.run_until_complete(main())
    assert publisher.requests
    loop.close()
    if who == "on_complete":
        publisher.subscriber.on_complete()
    else:
        publisher.subscriber.on_next(1)
    if who == "request":
        recorder.subscription.request(1)
    assert isinstance(recorder.error, rsf.WorkDroppedError)
    assert "loop" in str(recorder.error)
    assert publisher.cancels == (who != "on_complete")
    recorder.check()


def test_a_loop_that_throws_its_queue_away_cancels_upstream_and_is_an_error() -> None:
    loop = asyncio.new_event_loop()
    publisher = ManualPublisher()
    recorder = subscribe(publisher, identity, 1, loop=loop)  # accepted, never to be run
    assert recorder.terminal is None
    loop.close()
    gc.collect()
    assert isinstance(recorder.error, RuntimeError)
    assert publisher.cancels == 1


async def test_none_is_found_among_results_that_are_handed_over_at_once() -> None:
    async def nothing(x: int) -> int | None:
        return None if x == 2 else x

    seen: list[Any] = []

    async def consume() -> None:
        async for x in rsf.range_(5).map_async(nothing):
            seen.append(x)

    with pytest.raises(rsf.StageReturnedNoneError, match="nothing"):
        await consume()
    assert seen == [0, 1]


@pytest.mark.parametrize("how", ["cancelled", "together", "after another"])
async def test_every_error_of_a_call_is_raised_or_reported(
    how: str, dropped: list[BaseException]
) -> None:
    errors = [Problem(n) for n in range(3)]
    begun, fail = asyncio.Event(), asyncio.Event()

    async def fails(n: int) -> None:
        if n == 2:
            begun.set()
        if n == 0 or how == "together":
            await fail.wait()
            raise errors[n]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise errors[n] from None  # as a clean-up does that fails

    stream = rsf.range_(1 if how == "cancelled" else 0, 3).map_async(fails)
    task = asyncio.create_task(stream.run_async())
    await asyncio.wait_for(begun.wait(), DEADLINE)
    fail.set()
    if how == "cancelled":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(Problem) as raised:
            await task
        assert raised.value is errors[0]
    assert sorted(dropped, key=errors.index) == errors[1:]


async def test_none_is_not_passed_on_though_a_cancel_comes_at_that_moment(
    dropped: list[BaseException],
) -> None:
    async def nothing(_x: int) -> None:
        pass

    for step in steps():
        publisher = ManualPublisher()
        recorder = subscribe(publisher, nothing, 10)
        await turns()
        send(publisher, 1, 2)
        with step.meanwhile(recorder.subscription.cancel):
            await turns()
        await turns()
        assert recorder.elements == [], step
        assert len(dropped) + (recorder.error is not None) <= 1, step
        dropped.clear()
        recorder.check()


def test_a_synchronous_function_is_a_type_error_that_points_at_map() -> None:
    def double(x: int) -> int:
        return 2 * x

    with pytest.raises(TypeError, match=r"double returned int.*use map\(fn\)"):
        rsf.range_(3).map_async(double).to_list()  # type: ignore[arg-type]


async def test_an_error_cancels_the_other_calls_and_upstream_and_is_signalled_as_itself() -> None:
    gates, publisher = Gates(), ManualPublisher()
    recorder = subscribe(publisher, gates, 10, concurrency=4)
    await turns()
    send(publisher, *range(6))
    await turns()
    gates.finish(0)
    await turns()
    gates.fail(2, BOOM)
    await turns()
    assert recorder.elements == [0]
    assert recorder.error is BOOM
    assert publisher.cancels == 1
    assert sorted(gates.cancelled) == [1, 3, 4]
    assert gates.started == [0, 1, 2, 3, 4]  # the last one never starts
    recorder.check()


async def test_cancel_from_within_the_function_starts_no_other_call() -> None:
    called: list[int] = []
    publisher = ManualPublisher()
    recorder = Recorder(request=10)

    async def call(x: int) -> int:
        called.append(x)
        recorder.subscription.cancel()
        return x

    rsf.from_publisher(publisher).map_async(call).subscribe(recorder)
    await turns()
    send(publisher, *range(5))
    await turns()
    assert called == [0]
    assert recorder.elements == []
    assert publisher.cancels == 1


ENDS: dict[str, Callable[[rsf.Stream[int]], Awaitable[object]]] = {
    "take": lambda stream: stream.take(2).to_list_async(),
    "first": lambda stream: stream.first_async(),
    "an error": lambda stream: stream.take(2).map(lambda n: n / (n - 1)).run_async(),
    "a time-out": lambda stream: asyncio.wait_for(stream.run_async(), 0.05),
    "in an inner stream": lambda stream: rsf.range_(2).flat_map(lambda _: stream).first_async(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_who_awaits_the_stream_waits_for_its_cancelled_calls(
    end: Callable[[rsf.Stream[int]], Awaitable[object]],
) -> None:
    running: set[int] = set()
    numbers = itertools.count()

    async def call(n: int) -> int:
        mine = next(numbers)
        running.add(mine)
        try:
            await asyncio.sleep(0 if n < 3 else 3600)
            return n
        finally:
            try:
                await asyncio.sleep(0.02)
            finally:  # whom the cancellation finds here has ended, too
                running.discard(mine)

    with contextlib.suppress(ZeroDivisionError, TimeoutError):
        await end(rsf.range_(100).map_async(call, concurrency=8))
    assert next(numbers) > 3
    assert not running


async def test_who_waits_for_a_cancelled_call_that_does_not_end_can_be_cancelled() -> None:
    is_cancelled, leave = asyncio.Event(), asyncio.Event()

    async def call(n: int) -> int:
        try:
            await asyncio.sleep(0 if n < 3 else 3600)
            return n
        finally:
            if n >= 3:
                is_cancelled.set()
                await leave.wait()

    waiting = asyncio.ensure_future(rsf.range_(9).map_async(call).take(2).to_list_async())
    await is_cancelled.wait()
    while not waiting.done():
        waiting.cancel()
        await asyncio.sleep(0)
    assert waiting.cancelled()
    leave.set()


def test_cancelled_calls_end_in_their_own_time_and_keep_no_subscriber(
    no_leaked_threads: None,
) -> None:
    entered, cleaning, cleaned = threading.Event(), threading.Event(), threading.Event()
    release: list[Callable[[], object]] = []

    async def call(x: int) -> int:
        leave = asyncio.Event()
        loop = asyncio.get_running_loop()
        release.append(lambda: loop.call_soon_threadsafe(leave.set))
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await leave.wait()  # what a client does to close its connection
            cleaned.set()
        return x

    recorder = subscribed(rsf.range_(1).map_async(call), 1)
    wait_for(entered)
    subscription = recorder.subscription
    subscription.cancel()
    wait_for(cleaning)
    gone = weakref.ref(recorder)
    del recorder
    wait_gone(gone, "the subscriber")
    assert subscription is not None  # held on purpose
    assert not cleaned.is_set()
    release[0]()
    wait_for(cleaned, "the end of the call")


async def one_by_one() -> AsyncIterator[int]:
    loops_seen.add(asyncio.get_running_loop())
    for n in range(3):
        await asyncio.sleep(0)
        yield n


loops_seen: set[asyncio.AbstractEventLoop] = set()
failed: list[int] = []


async def noting(n: int) -> int:
    loops_seen.add(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return n


def one_call(n: int) -> rsf.Stream[int]:
    return rsf.from_iterable([n]).map_async(noting)


async def failing_once(n: int) -> int:
    await noting(n)
    if not failed:
        failed.append(n)
        raise BOOM
    return n


async def in_a_call(n: int) -> int:
    return await rsf.from_iterable([n]).publish_on().concat_map(one_call).first_async()


def calls(_: object = None) -> rsf.Stream[int]:
    return rsf.range_(3).map_async(noting)


INNER: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "retry": lambda: rsf.range_(3).map_async(failing_once).retry(1, delay=0.001),
    "interval": lambda: rsf.interval(0.001).take(3).concat_map(one_call),
    "publish_on": lambda: rsf.range_(3).publish_on().flat_map(one_call),
    "subscribe_on": lambda: rsf.defer(calls).subscribe_on(),
    "timeout": lambda: rsf.never().timeout(0.01).on_error_resume(calls),
    "delay": lambda: rsf.range_(3).delay_elements(0.001).switch_map(one_call),
    "in a call": lambda: rsf.range_(3).map_async(in_a_call),
    "iterable": lambda: (
        rsf.range_(1).publish_on().concat_map(lambda _: rsf.from_async_iterable(one_by_one()))
    ),
}


@pytest.mark.parametrize("inner", INNER)
async def test_calls_of_a_publisher_that_comes_later_are_on_the_loop_of_the_program(
    inner: str, no_leaked_threads: None
) -> None:
    """Clients and locks belong to it, whichever thread subscribes."""
    loops_seen.clear()
    failed.clear()
    found = await asyncio.wait_for(INNER[inner]().to_list_async(), DEADLINE)
    # Ticks that come late are left out, and what switch_map leaves.
    assert found if inner in ("interval", "delay") else found == [0, 1, 2]
    assert loops_seen == {asyncio.get_running_loop()}


@pytest.mark.parametrize("how", ["async with", "anext in tasks"])
async def test_an_iteration_is_awaited_however_it_is_gone_through(
    how: str, no_leaked_threads: None
) -> None:
    loops_seen.clear()
    failed.clear()
    found: list[int] = []
    iteration = INNER["retry"]().iterate(prefetch=1)
    if how == "async with":
        async with iteration as elements:
            found.extend([element async for element in elements])
    else:
        while len(found) < 3:
            found.append(await asyncio.ensure_future(anext(iteration)))
        iteration.close()
    assert found == [0, 1, 2]
    assert loops_seen == {asyncio.get_running_loop()}


@pytest.mark.parametrize("how", ["for_each", "share", "map_blocking", "map", "task", "fork"])
def test_what_no_task_awaits_has_its_calls_on_a_private_loop(
    how: str, no_leaked_threads: None
) -> None:
    """The loop of the program may end before it does, or be another one for another subscriber."""
    go = threading.Event()
    waiting = rsf.from_iterable([0]).publish_on().do_on_next(lambda _: go.wait(DEADLINE))
    with_calls = waiting.concat_map(calls)
    found: list[Any] = []

    def in_a_child(_: int) -> int:
        if os.fork() == 0:
            os._exit(len(with_calls.to_list()) + len(from_a_timer().to_list()))
        return os.waitstatus_to_exitcode(os.wait()[1])

    def from_a_timer() -> rsf.Stream[int]:
        return rsf.interval(0.001).take(1).concat_map(calls)

    async def main() -> rsf.Run | None:
        if how == "for_each":
            return with_calls.for_each(found.append)
        if how == "share":
            # Once this thread has left the drain: before, it may be the one that subscribes.
            asyncio.get_running_loop().call_soon(go.set)
            found.extend(await with_calls.share().to_list_async())
        elif how in ("map_blocking", "map"):
            go.set()
            first: rsf.Stream[Any] = rsf.from_iterable([0])
            blocking = first.map_blocking if how == "map_blocking" else first.publish_on().map
            found.extend(await blocking(lambda _: with_calls.to_list()).first_async())
        elif how == "task":
            task = asyncio.ensure_future(with_calls.to_list_async())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return with_calls.for_each(found.append)
        else:
            go.set()
            forked = rsf.from_iterable([0]).publish_on().map(in_a_child)
            assert await forked.first_async() == 6
            found.extend(range(3))
        return None

    loops_seen.clear()
    loop = asyncio.new_event_loop()
    run = loop.run_until_complete(main())
    loop.close()
    go.set()
    if run is not None:
        run.result(DEADLINE)
    assert found == [0, 1, 2]
    assert loop not in loops_seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("waits", [False, True])
def test_what_leaves_a_call_is_raised_and_not_reported(
    waits: bool, dropped: list[BaseException]
) -> None:
    class Leaving(BaseException):
        pass

    async def leave(_n: int) -> int:
        if waits:
            await asyncio.sleep(0)
        raise Leaving

    with pytest.raises(Leaving):
        rsf.range_(3).map_async(leave).to_list()
    assert dropped == []
