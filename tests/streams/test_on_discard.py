"""on_discard: each element is delivered, or the hook is called for it, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, start_thread, wait_for
from tests.rules.probes import HandTimer, ManualPublisher, Recorder, send, subscribed

Op = Callable[[rsf.Stream[Any]], rsf.Stream[Any]]

NUMBERS = rsf.from_iterable([10, 11, 12, 13, 14, 15])


def fail_at(n: int) -> Callable[[int], int]:
    def fn(x: int) -> int:
        if x == n:
            raise ValueError(x)
        return x

    return fn


def ends(stream: rsf.Stream[Any], request: int = rsf.UNBOUNDED) -> tuple[list[Any], list[Any]]:
    """What was delivered, and what was discarded, also by a cancel after that."""
    discarded: list[Any] = []
    recorder = Recorder(request=request)
    stream.on_discard(discarded.append).subscribe(recorder)
    if recorder.terminal is None:
        recorder.subscription.cancel()
    recorder.check()
    return recorder.elements, sorted(discarded)


DROPPING: dict[str, tuple[Op, list[Any], list[Any]]] = {
    "filter": (lambda s: s.filter(lambda x: x % 2), [11, 13, 15], [10, 12, 14]),
    "skip": (lambda s: s.skip(2), [12, 13, 14, 15], [10, 11]),
    "skip_while": (lambda s: s.skip_while(lambda x: x < 12), [12, 13, 14, 15], [10, 11]),
    "take_while": (lambda s: s.take_while(lambda x: x < 12), [10, 11], [12]),
    "map_not_none": (lambda s: s.map_not_none(lambda x: x if x > 13 else None), [14, 15],
                     [10, 11, 12, 13]),
    "map": (lambda s: s.map(fail_at(12)), [10, 11], [12]),
    "distinct": (lambda s: s.distinct_until_changed(lambda x: x // 4), [10, 12],
                 [11, 13, 14, 15]),
    "reduce": (lambda s: s.reduce(lambda a, b: a + fail_at(12)(b)), [], [12, 21]),
    "take below a ring": (lambda s: s.publish_on("caller", prefetch=6).skip(1).take(1), [11],
                          [10]),
    "zip": (lambda s: s.zip(rsf.range_(2)), [(10, 0), (11, 1)], [12, 13, 14, 15]),
    "merge": (lambda s: rsf.merge(s.map(fail_at(12)), rsf.never()), [10, 11], [12]),
    "concat": (lambda s: rsf.concat(s.publish_on("caller").skip(5), s.take(1)), [15, 10],
               [10, 11, 12, 13, 14]),
    "switch_map": (lambda s: s.switch_map(lambda x: rsf.from_iterable([x])), [15],
                   [10, 11, 12, 13, 14]),
    "flat_map": (lambda s: s.flat_map(lambda x: rsf.never(), concurrency=2), [], []),
    "concat_map": (lambda s: s.concat_map(lambda x: rsf.never(), prefetch=3), [], [11, 12]),
    "on_overflow": (lambda s: s.on_overflow(rsf.Overflow.LATEST), [10, 11, 12, 13, 14, 15], []),
    "unbatch": (lambda s: s.batch(3).unbatch().take(4), [10, 11, 12, 13], [14, 15]),
    "take_until": (lambda s: s.take_until(rsf.from_iterable([7])), [], []),
    "with_latest_from": (lambda s: rsf.range_(1).with_latest_from(s), [(0, 15)],
                         [10, 11, 12, 13, 14]),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPING)
def test_what_is_dropped_is_discarded(name: str) -> None:
    op, delivered, discarded = DROPPING[name]
    assert ends(op(NUMBERS)) == (delivered, discarded)


@pytest.mark.parametrize(
    ("op", "delivered", "discarded"),
    [
        (lambda s: s.batch(4), [[10, 11, 12, 13]], []),
        (lambda s: s.batch(2).publish_on("caller"), [[10, 11]], [[12, 13], [14, 15]]),
        (lambda s: s.batch(4, seconds=9, timer=HandTimer()), [[10, 11, 12, 13]], []),
        (lambda s: s.publish_on("caller", prefetch=3), [10], [11, 12]),
        (lambda s: s.on_overflow(rsf.Overflow.DROP_OLDEST, capacity=2), [10], [11, 12, 13, 14, 15]),
        (lambda s: s.merge(rsf.range_(2), prefetch=2), [10], [0, 1, 11]),
        (lambda s: s.map(lambda x: [x, -x]).unbatch(), [10], [-10]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("fast_sources")
def test_what_waits_is_discarded_when_the_subscriber_cancels(
    op: Op, delivered: list[Any], discarded: list[Any]
) -> None:
    assert ends(op(NUMBERS), 1) == (delivered, discarded)


def test_a_batch_begun_is_discarded_element_by_element() -> None:
    publisher, discarded = ManualPublisher(), [0]
    recorder = Recorder(request=1)
    rsf.from_publisher(publisher).batch(3).on_discard(discarded.append).subscribe(recorder)
    send(publisher, 1, 2)
    late = publisher.subscriber
    recorder.subscription.cancel()
    late.on_next(3)  # on its way
    assert discarded == [0, 1, 2, 3]


def test_results_and_calls_of_map_async_are_discarded() -> None:
    """The first result was delivered, the second waits, the third call is cancelled."""
    discarded: list[Any] = []
    started = threading.Event()
    recorder = Recorder(request=1)

    async def fn(x: int) -> int:
        if x == 12:
            started.set()
            await asyncio.Event().wait()
        return -x

    loop = asyncio.new_event_loop()
    thread = start_thread(loop.run_forever, "loop")
    stream = NUMBERS.take(3).map_async(fn, concurrency=3, loop=loop)
    ended = threading.Event()
    stream.do_finally(ended.set).on_discard(discarded.append).subscribe(recorder)
    recorder.wait_elements(1)
    wait_for(started)
    recorder.subscription.cancel()
    wait_for(ended)

    async def rest() -> None:
        await asyncio.gather(
            *(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True
        )

    asyncio.run_coroutine_threadsafe(rest(), loop).result(DEADLINE)
    loop.call_soon_threadsafe(loop.stop)
    thread.result(DEADLINE)
    loop.close()
    assert recorder.elements == [-10]
    assert sorted(discarded) == [-11, 12]


def test_the_inner_publishers_leftovers_are_discarded_when_it_ends_and_not_later() -> None:
    discarded: list[Any] = []
    outer = ManualPublisher()
    recorder = Recorder(request=9)
    stream = rsf.from_publisher(outer).switch_map(lambda s: s)
    stream.on_discard(discarded.append).subscribe(recorder)
    a = ManualPublisher()
    send(outer, rsf.from_publisher(a).batch(3))
    send(a, 1, 2)
    send(outer, rsf.never())
    assert sorted(discarded) == [1, 2]
    recorder.subscription.cancel()
    assert sorted(discarded) == [1, 2]


@pytest.mark.parametrize("strategy", rsf.Overflow)
def test_what_comes_to_an_overflow_after_the_end_is_discarded(strategy: rsf.Overflow) -> None:
    discarded: list[Any] = []
    source, recorder = ManualPublisher(), Recorder(request=9)
    stream = rsf.from_publisher(source).on_overflow(strategy)
    stream.on_discard(discarded.append).subscribe(recorder)
    send(source, 1)
    recorder.subscription.cancel()
    send(source, 2)  # which was under way
    assert recorder.elements == [1]
    assert discarded == [2]


def test_the_hook_below_gets_what_leaves_the_one_above() -> None:
    above: list[int] = []
    below: list[int] = []
    stream = NUMBERS.filter(lambda x: x > 11).on_discard(above.append).filter(lambda x: x > 13)
    assert stream.on_discard(below.append).to_list() == [14, 15]
    assert (above, below) == ([10, 11], [12, 13])


def test_what_a_hook_raises_is_made_known_and_ends_nothing(unraisable: list[Any]) -> None:
    stream = NUMBERS.filter(lambda x: x > 12).on_discard(lambda x: 1 // 0)
    assert stream.to_list() == [13, 14, 15]
    assert [given.exc_type for given in unraisable] == [ZeroDivisionError] * 3


def test_an_element_that_is_cancelled_while_a_function_uses_it_waits_for_the_function() -> None:
    """The hook may free what the function reads."""
    inside, go_on = threading.Event(), threading.Event()
    discarded: list[int] = []

    def slow(x: int) -> bool:
        inside.set()
        wait_for(go_on)
        assert discarded == []
        return True

    recorder = Recorder()
    NUMBERS.filter(slow).on_discard(discarded.append).subscribe(recorder)
    asking = start_thread(lambda: recorder.subscription.request(1))
    wait_for(inside)
    recorder.subscription.cancel()
    go_on.set()
    asking.result(DEADLINE)
    assert (recorder.elements, discarded) == ([], [10])


def test_an_element_that_comes_several_times_is_discarded_as_often() -> None:
    same = object()
    discarded: list[object] = []
    source = ManualPublisher()
    stream = rsf.from_publisher(source).on_overflow(rsf.Overflow.BUFFER)
    recorder = subscribed(stream.on_discard(discarded.append), 1)
    send(source, same, same, same)
    recorder.subscription.cancel()
    send(source, same)
    assert (recorder.elements, discarded) == ([same], [same] * 3)
