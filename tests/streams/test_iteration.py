"""``for``, ``async for`` and ``iterate``: bounded, driven by the consumer, cancelled once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Living, start_thread, wait_for, wait_until
from tests.rules.probes import ManualPublisher, Synchronous, send
from tests.stepping import steps
from tests.streams.held import Hold
from tests.streams.loops import turns

BOOM = RuntimeError("boom")


def iterate(publisher: Any, *, prefetch: int = 256) -> Any:
    return rsf.from_publisher(publisher).iterate(prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [1, 2, 3, 4, 5, 256, 5000])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 1000])
def test_for_gives_all_elements_in_order(prefetch: int, count: int) -> None:
    assert list(iterate(Synchronous(count), prefetch=prefetch)) == list(range(count))
    with rsf.range_(count).iterate(prefetch=prefetch) as it:
        assert list(it) == list(range(count))


@pytest.mark.parametrize("prefetch", [1, 3, 256])
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
async def test_async_for_gives_all_elements_in_order(prefetch: int, count: int) -> None:
    assert [x async for x in iterate(Synchronous(count), prefetch=prefetch)] == list(range(count))
    async with rsf.range_(count).iterate(prefetch=prefetch) as it:
        assert [x async for x in it] == list(range(count))


def test_nothing_is_subscribed_to_before_the_first_next() -> None:
    publisher = ManualPublisher()
    it = iterate(publisher)
    assert iter(it) is it
    assert aiter(it) is it
    assert publisher.subscribes == 0
    it.close()
    assert list(it) == []
    assert publisher.subscribes == 0


def test_entering_subscribes_and_asks_for_the_prefetch() -> None:
    publisher = ManualPublisher()
    with iterate(publisher, prefetch=7) as it:
        assert publisher.requests == [7]
        assert it.prefetch == 7
        publisher.subscriber.on_next("a")
        assert it.buffered == 1
    assert publisher.cancels == 1
    assert it.buffered == 0


def test_the_error_comes_after_the_elements_before_it_and_once() -> None:
    publisher = ManualPublisher()
    with iterate(publisher) as it:
        publisher.subscriber.on_next(1)
        publisher.subscriber.on_next(2)
        publisher.subscriber.on_error(BOOM)
        assert [next(it), next(it)] == [1, 2]
        with pytest.raises(RuntimeError) as raised:
            next(it)
        assert raised.value is BOOM
        assert raised.value.__context__ is None
        assert next(it, "over") == "over"
    assert publisher.cancels == 0  # §2.3, and nothing to cancel


async def test_a_cancelled_error_out_of_the_stream_does_not_end_the_task_in_silence() -> None:
    publisher = ManualPublisher()
    async with iterate(publisher) as it:
        publisher.subscriber.on_error(asyncio.CancelledError())
        with pytest.raises(RuntimeError, match="CancelledError"):
            await anext(it)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_a_stop_iteration_out_of_the_stream_is_not_taken_for_its_end(kind: type[Exception]) -> None:
    def stops(n: int) -> int:
        if n == 2:
            raise kind("out of the function")
        return n

    stream = rsf.range_(5).map(stops)
    seen: list[int] = []
    with pytest.raises(RuntimeError, match=kind.__name__) as raised:
        seen.extend(iter(stream))
    assert isinstance(raised.value.__cause__, kind)
    assert seen == [0, 1]

    async def main() -> None:
        with pytest.raises(RuntimeError, match=kind.__name__):
            seen.extend([n async for n in stream])

    asyncio.run(main())


def test_prefetch_one_is_exactly_stop_and_wait() -> None:
    publisher = Synchronous(5)
    with iterate(publisher, prefetch=1) as it:
        for n in range(5):
            assert next(it) == n
            # The next one is asked for when the consumer comes back, having consumed this one.
            assert publisher.requests == [1] * (n + 1)
            assert publisher.sent == n + 1
    assert publisher.requests == [1] * 5


@pytest.mark.parametrize("prefetch", [1, 2, 5, 64])
def test_no_more_than_the_prefetch_is_alive(prefetch: int) -> None:
    living = Living()
    for element in iterate(Synchronous(300, living.make), prefetch=prefetch):
        del element
    assert 0 < living.most <= prefetch
    assert living.alive.value == 0


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_synchronous_upstream_is_driven_on_the_consuming_thread_alone(
    on_a_loop: bool, no_leaked_threads: None
) -> None:
    before = threading.active_count()
    publisher = Synchronous(2000)

    async def main() -> None:
        async for _ in iterate(publisher, prefetch=16):
            assert threading.active_count() == before

    if on_a_loop:
        asyncio.run(main())
    else:
        for _ in iterate(publisher, prefetch=16):
            assert threading.active_count() == before
    assert publisher.threads == {threading.get_ident()}


async def test_the_loop_is_woken_once_per_burst() -> None:
    publisher = ManualPublisher()
    wakes: list[Any] = []
    loop = asyncio.get_running_loop()
    real = loop.call_soon_threadsafe
    async with iterate(publisher, prefetch=256) as it:
        task = asyncio.ensure_future(anext(it))
        await turns()
        loop.call_soon_threadsafe = lambda *args, **how: (wakes.append(args), real(*args, **how))[1]  # type: ignore[method-assign, assignment]
        try:
            start_thread(lambda: send(publisher, *range(200))).result()  # the loop stands still
            assert [await task, *[await anext(it) for _ in range(199)]] == list(range(200))
            assert len(wakes) == 1
        finally:
            del loop.call_soon_threadsafe  # type: ignore[method-assign]


async def test_async_for_lets_the_loop_run_between_bursts() -> None:
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async for _ in iterate(Synchronous(4000), prefetch=16):
        pass
    task.cancel()
    assert others > 50


def leave_by_break(publisher: Any) -> None:
    for _ in iterate(publisher):
        break


def leave_by_with(publisher: Any) -> None:
    with iterate(publisher) as it:
        next(it)


def leave_by_close(publisher: Any) -> None:
    it = iterate(publisher)
    next(it)
    it.close()
    it.close()


def leave_by_forgetting(publisher: Any) -> None:
    it = iterate(publisher)
    next(it)
    del it
    gc.collect()


def leave_by_collection_of_a_cycle(publisher: Any) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.it = iterate(publisher)  # type: ignore[attr-defined]
    holder.me = holder  # type: ignore[attr-defined]
    next(holder.it)  # type: ignore[attr-defined]
    del holder
    gc.collect()


async def leave_by_async_break(publisher: Any) -> None:
    async for _ in iterate(publisher):
        break
    assert publisher.cancels == 1


async def leave_by_async_with(publisher: Any) -> None:
    async with iterate(publisher) as it:
        await anext(it)
    assert publisher.cancels == 1


async def leave_by_aclose(publisher: Any) -> None:
    it = iterate(publisher)
    await anext(it)
    await it.aclose()
    assert [x async for x in it] == []


async def leave_by_task_cancellation(publisher: Any) -> None:
    async def consume() -> None:
        async for _ in iterate(publisher):
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await turns(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


LEAVING = [value for name, value in dict(globals()).items() if name.startswith("leave_by_")]


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_leaving_early_closes_the_source_of_a_stream_once(leave: Callable[[Any], Any]) -> None:
    closed: list[bool] = []

    def source() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    class Once:
        cancels = 0

        def subscribe(self, subscriber: Any, /) -> None:
            def cancelled() -> None:
                self.cancels += 1

            rsf.from_iterable(source()).do_on_cancel(cancelled).subscribe(subscriber)

    publisher = Once()
    leaving = leave(publisher)
    if leaving is not None:
        asyncio.run(leaving)
    gc.collect()
    wait_until(lambda: publisher.cancels and closed, "the cancel")
    assert publisher.cancels == 1
    assert closed == [True]


def test_close_ends_a_next_that_waits_in_another_thread() -> None:
    publisher = ManualPublisher()
    it = iterate(publisher)
    thread = start_thread(lambda: next(it, "closed"))
    publisher.wait_requested(1)
    it.close()
    assert thread.result() == "closed"
    assert publisher.cancels == 1


def test_close_ends_a_next_that_drives_upstream_in_another_thread() -> None:
    hold = Hold()
    publisher = Synchronous(10**9, lambda n: hold(n) if n == 3 else n)
    it = iterate(publisher, prefetch=1)
    thread = start_thread(lambda: list(it))
    wait_for(hold.entered)
    it.close()
    hold.leave.set()
    assert thread.result() == [0, 1, 2]
    assert publisher.cancels == 1


@pytest.mark.parametrize(
    "stream",
    [
        lambda: rsf.range_(3),
        lambda: rsf.range_(3).publish_on("caller"),
        lambda: rsf.from_publisher(Synchronous(3)),
    ],
    ids=["run", "boundary", "foreign"],
)
def test_a_close_at_any_moment_ends_it(
    stream: Callable[[], rsf.Stream[int]], dropped: list[BaseException]
) -> None:
    for step in steps():
        ends: list[str] = []
        it = stream().do_finally(lambda e=ends: e.append("end")).iterate()
        with step.meanwhile(it.close):
            seen = list(it)
        assert seen == [0, 1, 2][: len(seen)], step
        assert list(it) == [], step
        assert len(ends) <= 1, step
    assert dropped == []


async def test_close_ends_an_anext_that_waits_on_a_loop() -> None:
    publisher = ManualPublisher()
    it = iterate(publisher)
    task = asyncio.ensure_future(anext(it, "closed"))
    await turns()
    start_thread(it.close).result()
    assert await task == "closed"
    assert publisher.cancels == 1


def test_a_loop_closed_while_an_anext_waits_cancels_upstream() -> None:
    publisher = ManualPublisher()
    loop = asyncio.new_event_loop()
    it = iterate(publisher)
    task = loop.create_task(it.__anext__())  # type: ignore[arg-type]
    loop.run_until_complete(turns())
    loop.close()
    start_thread(lambda: publisher.subscriber.on_next(1)).result()  # does not raise (§2.13)
    assert publisher.cancels == 1
    task._log_destroy_pending = False


def test_what_is_over_cannot_be_entered_again() -> None:
    publisher = ManualPublisher()
    it = iterate(publisher)
    with it, it:
        pass

    async def enter() -> None:
        async with it:
            pass

    with pytest.raises(RuntimeError, match="for one use"), it:
        pass
    with pytest.raises(RuntimeError, match="for one use"):
        asyncio.run(enter())
    assert next(it, "over") == "over"
    assert publisher.subscribes == publisher.cancels == 1


def test_a_second_consumer_is_refused_while_one_waits() -> None:
    publisher = ManualPublisher()
    it = iterate(publisher)
    thread = start_thread(lambda: next(it))
    publisher.wait_requested(1)

    async def await_it() -> None:
        await anext(it)

    for second in (lambda: next(it), lambda: asyncio.run(await_it())):
        with pytest.raises(RuntimeError, match="one consumer"):
            second()
    publisher.subscriber.on_next("for the first")
    assert thread.result() == "for the first"
    assert publisher.cancels == 0
    it.close()


def test_next_from_within_the_upstream_it_drives_is_refused() -> None:
    refused: list[BaseException] = []

    def make(n: int) -> int:
        try:
            next(it)
        except RuntimeError as error:
            refused.append(error)
        return n

    it = iterate(Synchronous(3, make), prefetch=2)
    assert list(it) == [0, 1, 2]
    assert len(refused) == 3


def test_a_consumer_that_is_overtaken_loses_nothing() -> None:
    """Between its look, which finds nothing, and its turn to fetch, another one fetches."""
    for step in steps():
        it = iterate(Synchronous(9), prefetch=3)
        seen: list[int] = []

        def overtake(it: Any = it, seen: list[int] = seen) -> None:
            with contextlib.suppress(rsf.OverlappingCallsError):
                seen.append(next(it))

        with step.meanwhile(overtake):
            seen.append(next(it))
        seen.extend(it)
        assert sorted(seen) == list(range(9)), step


async def test_waiting_inside_a_running_loop_is_refused_and_synchronous_streams_are_not() -> None:
    publisher = ManualPublisher()
    assert list(rsf.range_(10)) == list(range(10))
    with pytest.raises(RuntimeError, match="async for"):
        next(iterate(publisher))
    assert publisher.cancels == 1


async def test_a_coroutine_may_be_closed_in_another_context() -> None:
    """As the collector closes it, wherever it is at work."""
    iteration = rsf.never().iterate()
    coroutine = iteration.next_burst()
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()
    iteration.close()
