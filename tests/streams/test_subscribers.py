"""``SyncSubscriber`` and ``AsyncSubscriber``: one function, all of the rules."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast import AsyncSubscriber, SyncSubscriber
from tests.helpers import DEADLINE, start_thread, wait_for, wait_gone, wait_until
from tests.rules.probes import ManualPublisher, raising, send
from tests.streams.loops import executor_of

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

Make = Callable[..., Any]


@pytest.fixture(params=["sync", "own worker", "pool", "loop", "caller"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a subscriber of either kind, on each kind of resource."""
    if request.param == "sync":
        yield SyncSubscriber
        return
    with executor_of(request.param) as executor:
        yield lambda fn, **options: AsyncSubscriber(fn, executor, **options)


def fail(_element: Any) -> None:
    raise ValueError("the function failed, as it should")


# -- both ------------------------------------------------------------------------------------------
def test_false_is_enough(make: Make) -> None:
    seen: list[int] = []
    cancels: list[int] = []
    completed: list[int] = []

    def until_three(element: int) -> bool:
        seen.append(element)
        return element < 3

    subscriber = make(until_three, on_complete=lambda: completed.append(1))
    rf.range_(10**9).do_on_cancel(lambda: cancels.append(1)).subscribe(subscriber)
    assert subscriber.run.result(DEADLINE) is None
    assert seen == [0, 1, 2, 3]
    assert cancels == [1]
    assert completed == []


@pytest.mark.parametrize("answer", [0, None, "", 0.0, [], True])
def test_only_false_itself_is_enough(make: Make, answer: object) -> None:
    seen: list[int] = []

    def note(element: int) -> object:
        seen.append(element)
        return answer

    subscriber = make(note)
    rf.range_(5).subscribe(subscriber)
    subscriber.run.result(DEADLINE)
    assert seen == [0, 1, 2, 3, 4]


def test_what_the_function_raises_is_reported_once(make: Make, dropped: list[Any]) -> None:
    publisher = ManualPublisher()
    errors: list[BaseException] = []
    subscriber = make(fail, on_error=errors.append)
    publisher.subscribe(subscriber)
    publisher.wait_requested(1)
    publisher.subscriber.on_next(1)
    publisher.wait_cancelled()
    with pytest.raises(ValueError, match="as it should"):
        subscriber.run.result(DEADLINE)
    del subscriber
    publisher.subscriber = None
    gc.collect()
    assert [type(error) for error in dropped] == [ValueError]
    assert errors == []  # that is for upstream's


def test_an_error_that_nobody_looks_at_is_reported(make: Make, dropped: list[Any]) -> None:
    subscriber = make(ignore)
    waiting = start_thread(partial(subscriber.run.result, DEADLINE))
    rf.error(ValueError("unseen")).subscribe(subscriber)
    with pytest.raises(ValueError, match="unseen"):
        waiting.result()
    del subscriber, waiting
    gc.collect()
    assert dropped == []  # the thread has seen it
    subscriber = make(ignore)
    rf.error(ValueError("unseen")).subscribe(subscriber)
    wait_until(lambda run=subscriber.run: run.done, "the end")
    del subscriber
    gc.collect()
    assert [type(error) for error in dropped] == [ValueError]


def ignore(_element: Any) -> None:
    """An element that nobody needs."""


def test_cancel_before_the_subscription_cancels_that(make: Make) -> None:
    subscriber = make(ignore)
    subscriber.run.cancel()
    publisher = ManualPublisher()
    publisher.subscribe(subscriber)
    publisher.wait_cancelled()
    assert publisher.requested == 0


@pytest.mark.parametrize("end", ["complete", "false", "failure", "cancel"])
def test_nothing_of_the_user_stays_after_the_end(make: Make, end: str, dropped: list[Any]) -> None:
    def work(_element: int) -> bool:
        if end == "failure":
            fail(_element)
        return end != "false"

    subscriber = make(work)
    gone = weakref.ref(work)
    del work
    publisher = ManualPublisher()
    publisher.subscribe(subscriber)
    publisher.wait_requested(1)
    if end == "cancel":
        subscriber.run.cancel()
    elif end == "complete":
        publisher.subscriber.on_complete()
    else:
        publisher.subscriber.on_next(1)
    try:
        subscriber.run.result(DEADLINE)
    except (ValueError, CancelledError) as raised:
        raised.__traceback__ = None

    if end != "failure":  # whose traceback is its function's
        wait_gone(gone, "the function")  # the drain may be on its way out
    del subscriber, publisher
    dropped.clear()
    gc.collect()


def test_a_publisher_that_breaks_3_16_ends_it(make: Make, dropped: list[BaseException]) -> None:
    subscriber = make(ignore)
    ManualPublisher(raising(ValueError("request raised"))).subscribe(subscriber)
    with pytest.raises(ValueError, match="request raised"):
        subscriber.run.result(DEADLINE)
    dropped.clear()


@pytest.mark.parametrize("kind", [SyncSubscriber, AsyncSubscriber])
def test_wrong_arguments_are_refused(kind: Make) -> None:
    async def coroutine(_element: Any) -> None:
        """Nobody would await it."""

    for fn in (None, 7):
        with pytest.raises(TypeError, match="fn must be callable"):
            kind(fn)
    with pytest.raises(TypeError, match="map_async"):
        kind(coroutine)
    with pytest.raises(TypeError, match="on_error must be callable"):
        kind(ignore, on_error=7)
    with pytest.raises(ValueError, match="prefetch"):
        kind(ignore, prefetch=0)
    with pytest.raises(TypeError, match="prefetch"):
        kind(ignore, prefetch="1")


# -- asynchronous ----------------------------------------------------------------------------------
def test_async_signals_do_not_wait_for_the_function() -> None:
    publisher = ManualPublisher()
    go, seen = threading.Event(), []

    def slow(element: int) -> None:
        wait_for(go, "the go")
        seen.append(element)

    subscriber = AsyncSubscriber(slow, prefetch=4)
    publisher.subscribe(subscriber)
    publisher.wait_requested(4)
    send(publisher, *range(4))
    publisher.subscriber.on_complete()
    assert seen == []
    go.set()
    subscriber.run.result(DEADLINE)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("prefetch", [1, 2, 7, 64])
def test_async_holds_no_more_than_its_prefetch(prefetch: int) -> None:
    asked = 0
    done = 0
    most = 0

    def ask(n: int) -> None:
        nonlocal asked, most
        asked += n
        most = max(most, asked - done)

    def work(_element: int) -> None:
        nonlocal done
        done += 1

    subscriber = AsyncSubscriber(work, prefetch=prefetch)
    rf.range_(500).do_on_request(ask).subscribe(subscriber)
    subscriber.run.result(DEADLINE)
    assert done == 500
    assert most <= prefetch + (prefetch > 1)  # the element whose work has just ended


def test_async_runs_on_the_executor_alone() -> None:
    threads: set[str] = set()

    def note(*_args: Any) -> None:
        threads.add(threading.current_thread().name)

    with ThreadPoolExecutor(1, "the-pool") as pool:
        subscriber = AsyncSubscriber(note, pool, on_complete=note)
        rf.range_(3).subscribe(subscriber)
        subscriber.run.result(DEADLINE)
    assert {name.rpartition("_")[0] for name in threads} == {"the-pool"}


def test_async_fails_where_the_executor_refuses_later(dropped: list[BaseException]) -> None:
    publisher = ManualPublisher()
    pool = ThreadPoolExecutor(1)
    errors: list[BaseException] = []
    subscriber = AsyncSubscriber(ignore, pool, on_error=errors.append)
    publisher.subscribe(subscriber)
    publisher.wait_requested(1)
    pool.shutdown()
    publisher.subscriber.on_next(1)
    publisher.wait_cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        subscriber.run.result(DEADLINE)
    assert len(errors) == 1
    assert dropped == []


def test_async_refuses_processes() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(TypeError, match="threads"):
        AsyncSubscriber(ignore, pool)


def test_async_fails_where_more_comes_than_was_asked_for(dropped: list[BaseException]) -> None:
    publisher = ManualPublisher()
    go = threading.Event()
    subscriber = AsyncSubscriber(lambda _x: wait_for(go, "the go"), prefetch=2)
    publisher.subscribe(subscriber)
    publisher.wait_requested(2)
    send(publisher, *range(9))
    publisher.wait_cancelled()
    go.set()
    with pytest.raises(rf.DemandExceededError):
        subscriber.run.result(DEADLINE)
    dropped.clear()


@pytest.mark.parametrize(
    "source",
    [
        lambda: rf.range_(3),
        lambda: rf.range_(3).map(abs),
        lambda: rf.range_(3).publish_on(),
        lambda: rf.range_(3).batch(2).unbatch(),
        lambda: rf.range_(3).multicast(),
        lambda: rf.range_(3).map_blocking(abs),
    ],
)
@pytest.mark.parametrize(
    "kind",
    [rf.MulticastProcessor, rf.ReplayProcessor, rf.SerializedProcessor, SyncSubscriber,
     AsyncSubscriber],
)  # fmt: skip
def test_the_on_next_of_a_subclass_is_called(kind: Any, source: Any) -> None:
    class Own(kind):  # type: ignore[misc]
        def on_next(self, element: int, /) -> None:
            super().on_next(element * 10)

    seen: list[int] = []
    if issubclass(kind, SyncSubscriber | AsyncSubscriber):
        subscriber = Own(seen.append)
        run = subscriber.run
    else:
        subscriber = Own(count=3) if kind is rf.ReplayProcessor else Own()
        run = rf.from_publisher(subscriber).for_each(seen.append)
    source().subscribe(subscriber)
    run.result(DEADLINE)
    assert seen == [0, 10, 20]
