"""publish_on: its bounds, its errors, its resources."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, HAS_GIL, Element, NoMoreThreads, wait_for
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed
from tests.stepping import steps
from tests.streams.loops import executor_of, loop_thread


@pytest.fixture(params=["own worker", "pool", "single", "loop"])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    with executor_of(request.param) as executor:
        yield executor


class Alive:
    """Counts how many of it are alive, and the most there have been."""

    lock = threading.RLock()  # one may die, on this thread, while another is made
    now = most = 0

    def __init__(self) -> None:
        with Alive.lock:
            Alive.now += 1
            Alive.most = max(Alive.most, Alive.now)

    def __del__(self) -> None:
        if HAS_GIL:  # else it is freed later, when the thread that made it gets to it
            self.drop_references()

    def drop_references(self) -> None:
        with Alive.lock:
            Alive.now -= 1


@pytest.mark.parametrize("prefetch", [1, 4, 16])
@pytest.mark.parametrize("upstream", ["same resource", "other thread"])
def test_no_more_elements_are_alive_than_the_prefetch(prefetch: int, upstream: str) -> None:
    Alive.now = Alive.most = 0

    class Forgetting(Recorder):
        def on_next(self, element: Any, /) -> None:
            if not HAS_GIL:
                element.drop_references()

    recorder = Forgetting(request=rsf.UNBOUNDED)
    stream: Any = rsf.range_(500).map(lambda _x: Alive())
    if upstream == "other thread":
        stream = stream.subscribe_on()
    stream.publish_on(prefetch=prefetch).subscribe(recorder)
    recorder.wait_terminal()
    assert Alive.most <= prefetch + 1  # and one that upstream's loop still has in hand


def test_bytes_held_stay_below_max_bytes_plus_one_element() -> None:
    publisher = ManualPublisher()
    stream = rsf.from_publisher(publisher).publish_on("caller", max_bytes=10, weigher=len)
    recorder = subscribed(stream)
    sent = held = 0
    while publisher.requested > sent:
        assert held < 10, "asked although max_bytes are held"
        assert publisher.requested == sent + 1, "more than one element asked for at a time"
        publisher.subscriber.on_next("xxxx")
        sent, held = sent + 1, held + 4
    assert (sent, held) == (3, 12)
    recorder.subscription.request(1)  # 8 bytes are left
    assert publisher.requested == 4


def test_upstream_goes_on_within_the_byte_bound_while_an_element_is_worked_on() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(_r: Recorder, _x: Any) -> None:
        entered.set()
        assert leave.wait(DEADLINE)

    publisher, recorder = ManualPublisher(), Recorder(request=100, on_next=slow)
    rsf.from_publisher(publisher).publish_on(max_bytes=10, weigher=lambda _x: 4).subscribe(recorder)
    publisher.wait_requested(1)
    publisher.subscriber.on_next(0)
    wait_for(entered)
    publisher.subscriber.on_next(1)
    assert publisher.requested == 3  # asked by the thread that brought the element
    send(publisher, 2)
    assert publisher.requested == 3  # 12 bytes are held
    leave.set()
    publisher.wait_requested(4)
    publisher.subscriber.on_complete()
    recorder.wait_terminal()
    assert recorder.elements == [0, 1, 2]
    recorder.check()


class ByHand(Executor):
    """An executor that works when the test says so."""

    def __init__(self) -> None:
        self._work: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._work.append(functools.partial(fn, *args, **kwargs))
        return Future()

    def run(self) -> None:
        while self._work:
            self._work.pop(0)()


def test_room_made_while_upstream_looks_for_some_is_asked_for() -> None:
    """The upstream's thread sees no room; the drain makes some, before that thread has left."""
    for step in steps():
        by_hand, publisher = ByHand(), ManualPublisher()
        stream = rsf.from_publisher(publisher).publish_on(by_hand, max_bytes=1, weigher=len)
        recorder = subscribed(stream, rsf.UNBOUNDED)
        by_hand.run()
        with step.meanwhile(by_hand.run):
            publisher.subscriber.on_next("a")
        by_hand.run()
        assert (recorder.elements, publisher.requests) == (["a"], [1, 1]), step
        recorder.subscription.cancel()
        by_hand.run()


def test_with_delay_error_one_that_comes_when_the_elements_are_enough_is_none() -> None:
    for step in steps():
        publisher, recorder = ManualPublisher(), Recorder(request=9)
        stream = rsf.from_publisher(publisher).publish_on("caller", delay_error=True)
        stream.take(2).subscribe(recorder)
        send(publisher, 1)
        late = OSError("late")
        with step.meanwhile(lambda p=publisher, e=late: p.subscriber.on_error(e)):
            send(publisher, 2)
        if recorder.elements == [1, 2]:
            assert recorder.terminal == ("on_complete",), step
        else:
            assert recorder.terminal == ("on_error", late), step
        recorder.check()


def test_process_pools_are_rejected() -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(TypeError, match="ProcessPoolExecutor"):
            rsf.range_(3).publish_on(pool)
        with pytest.raises(TypeError, match="ProcessPoolExecutor"):
            rsf.range_(3).subscribe_on(pool)


@pytest.mark.parametrize("where", ["publish_on", "loop", "subscribe_on", "subscribe_on foreign"])
def test_an_executor_that_refuses_work_cancels_upstream_and_signals_on_error(where: str) -> None:
    pool, loop = ThreadPoolExecutor(1), asyncio.new_event_loop()
    pool.shutdown()
    loop.close()
    publisher = ManualPublisher()
    foreign: rsf.Stream[int] = rsf.from_publisher(publisher)
    stream = {
        "publish_on": foreign.publish_on(pool),
        "loop": foreign.publish_on(loop),
        "subscribe_on": rsf.range_(3).subscribe_on(pool),
        "subscribe_on foreign": foreign.subscribe_on(pool),
    }[where]
    recorder = subscribed(stream, 3)
    assert publisher.cancels == (where in ("publish_on", "loop"))
    assert isinstance(recorder.error, RuntimeError)
    assert recorder.elements == []
    recorder.check()


@pytest.mark.parametrize("kind", ["pool", "loop"])
def test_work_that_is_accepted_and_dropped_cancels_upstream_and_signals_on_error(kind: str) -> None:
    blocked, leave = threading.Event(), threading.Event()
    pool, loop = ThreadPoolExecutor(1), asyncio.new_event_loop()
    pool.submit(lambda: (blocked.set(), leave.wait(DEADLINE)))
    wait_for(blocked)
    publisher = ManualPublisher()
    stream = rsf.from_publisher(publisher).publish_on(pool if kind == "pool" else loop)
    recorder = subscribed(stream, 3)
    pool.shutdown(wait=False, cancel_futures=True)
    loop.close()
    leave.set()
    recorder.wait_terminal()
    assert isinstance(recorder.error, RuntimeError)
    assert publisher.cancels == 1


@pytest.mark.parametrize("taken", [False, True], ids=["kept", "taken"])
def test_work_that_a_pool_keeps_though_it_starts_no_thread_is_run_once(taken: bool) -> None:
    """A pool puts work in its queue, then fails to start one more thread, and raises."""
    blocked, leave = threading.Event(), threading.Event()
    with NoMoreThreads(1, taken=taken) as pool:
        publisher = ManualPublisher()
        recorder = subscribed(rsf.from_publisher(publisher).publish_on(pool), 3)
        publisher.wait_requested(3)
        if not taken:
            pool.submit(lambda: (blocked.set(), leave.wait(DEADLINE)))
            wait_for(blocked)
        pool.full = True
        publisher.subscriber.on_next(1)
        leave.set()
        if taken:
            publisher.subscriber.on_complete()
        recorder.wait_terminal()
    recorder.check()
    assert recorder.elements == ([1] if taken else [])
    assert isinstance(recorder.error, RuntimeError) is not taken
    assert publisher.cancels == (not taken)


class Immediate(Executor):
    """An executor that works within ``submit``."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as raised:
            future.set_exception(raised)
        return future


def test_an_executor_that_works_within_submit_does_not_nest() -> None:
    recorder = subscribed(rsf.range_(5000).publish_on(Immediate()), rsf.UNBOUNDED)
    assert recorder.terminal == ("on_complete",)
    assert len(recorder.elements) == 5000
    recorder.check()


@pytest.mark.parametrize("kind", ["single", "loop"])
@pytest.mark.parametrize("operator", ["publish_on", "subscribe_on"])
def test_no_stream_starves_another_on_a_shared_executor(kind: str, operator: str) -> None:
    def take(element: int, plenty: threading.Event) -> None:
        if element == 20_000:
            plenty.set()

    with executor_of(kind) as executor:
        stream = getattr(rsf.range_(10**15), operator)(executor)
        plenties = [threading.Event() for _ in range(3)]
        endless = [stream.for_each(functools.partial(take, plenty=each)) for each in plenties]
        for each in plenties:
            wait_for(each)
        for run in endless:
            run.cancel()


@pytest.mark.usefixtures("slow_sources")
@pytest.mark.parametrize("operator", ["publish_on", "subscribe_on"])
def test_slow_elements_leave_a_shared_loop_turns_from_the_first_on(operator: str) -> None:
    done = threading.Event()
    seen_by_others: list[int] = []

    with loop_thread() as loop:

        def slow(recorder: Recorder, element: int) -> None:
            if element == 0:
                loop.call_soon(lambda: seen_by_others.append(len(recorder.elements)))
            if element == 19:
                done.set()

        stream = getattr(rsf.range_(20), operator)(loop)
        stream.subscribe(Recorder(request=rsf.UNBOUNDED, on_next=slow))
        wait_for(done)
    assert seen_by_others == [1]


@pytest.mark.usefixtures("no_leaked_threads")
def test_an_own_worker_of_an_abandoned_subscription_ends_when_that_is_collected() -> None:
    before = set(threading.enumerate())
    recorder = subscribed(rsf.never().publish_on(), 3)
    (worker,) = set(threading.enumerate()) - before
    del recorder
    end = time.monotonic() + DEADLINE
    while worker.is_alive() and time.monotonic() < end:
        gc.collect()  # again, if the worker was still inside its first piece of work
        worker.join(0.05)


def test_one_copied_context_per_boundary_entered_for_every_burst(executor: Any) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []
    variable.set("at subscribe")
    stream = rsf.range_(4).publish_on(executor).map(lambda x: seen.append(variable.get()) or x)
    recorder = subscribed(stream)
    variable.set("later")
    for n in range(1, 5):
        recorder.subscription.request(1)
        recorder.wait_elements(n)
    assert seen == ["at subscribe"] * 4


def test_what_a_boundary_sets_in_its_context_is_still_there_in_the_next_burst() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    def count(x: int) -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    recorder = Recorder(request=1, on_next=lambda r, _x: r.subscription.request(1))
    rsf.range_(5).publish_on(prefetch=1).map(count).subscribe(recorder)
    recorder.wait_terminal()
    assert recorder.elements == [1, 2, 3, 4, 5]
    assert variable.get() == 0


def test_subscribe_on_subscribes_and_asks_on_the_executor(executor: Any) -> None:
    threads: set[int] = set()

    class Foreign(ManualPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            threads.add(threading.get_ident())
            super().subscribe(subscriber)

    publisher = Foreign(lambda _: threads.add(threading.get_ident()))
    recorder = subscribed(rsf.from_publisher(publisher).subscribe_on(executor), 3)
    recorder.subscription.request(4)
    publisher.wait_requested(7)
    assert threading.get_ident() not in threads
    publisher.subscriber.on_next(1)
    assert recorder.elements == [1]
    recorder.subscription.cancel()
    publisher.wait_cancelled()  # by who asks, which may still be about it
    assert publisher.cancels == 1


def test_demand_that_comes_while_subscribe_runs_is_not_served_on_the_subscribing_thread() -> None:
    threads: list[int] = []
    asked = threading.Event()

    class SlowToReturn:
        """Its ``on_subscribe`` returns after the boundary could have asked, had it begun."""

        def subscribe(self, subscriber: Any, /) -> None:
            class Inner(Recorder):
                def on_subscribe(self, subscription: Any, /) -> None:
                    subscriber.on_subscribe(subscription)
                    for _ in range(3):
                        pool.submit(lambda: None).result()

                def on_next(self, element: Any, /) -> None:
                    threads.append(threading.get_ident())
                    asked.set()
                    subscriber.on_next(element)

            rsf.range_(10).subscribe(Inner())

    with ThreadPoolExecutor(1) as pool:
        recorder = subscribed(rsf.from_publisher(SlowToReturn()).publish_on(pool), 5)
        wait_for(asked)
        recorder.wait_elements(5)
        recorder.subscription.cancel()
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("build", [lambda s: s.publish_on(), lambda s: s.subscribe_on()])
def test_a_generator_is_closed_on_the_resource_it_runs_on(build: Callable[[Any], Any]) -> None:
    threads: list[int] = []
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                threads.append(threading.get_ident())
                yield 1
        finally:
            threads.append(threading.get_ident())
            closed.set()

    recorder = subscribed(build(rsf.from_iterable(source()).take(5)), 2)
    recorder.wait_elements(2)
    recorder.subscription.request(9)
    wait_for(closed)
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_an_element_on_its_way_while_everything_is_let_go_of_is_not_kept() -> None:
    recorder, upstream = Recorder(request=1), ManualPublisher()

    def weigh_and_cancel(_element: object) -> int:
        recorder.subscription.cancel()
        return 1

    how: Any = {"max_bytes": 8, "weigher": weigh_and_cancel}
    rsf.from_publisher(upstream).publish_on("caller", **how).subscribe(recorder)
    upstream.wait_requested(1)
    element = Element()
    gone = weakref.ref(element)
    upstream.subscriber.on_next(element)
    del element
    assert gone() is None
    assert recorder.subscription is not None
