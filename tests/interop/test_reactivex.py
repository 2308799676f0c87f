"""RxPY there and back, on real observables and real threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import reactivex
from reactivex import operators
from reactivex.scheduler import NewThreadScheduler
from reactivex.subject import Subject

import rstreams_fast as rsf
from rstreams_fast.interop.reactivex import from_observable, observe_on, to_observable
from tests.helpers import DEADLINE, run_python, start_thread


def heard(observable: Any) -> list[Any]:
    """What an observer hears until the end."""
    signals: list[Any] = []
    over = threading.Event()
    observable.subscribe(
        signals.append,
        lambda error: (signals.append(error), over.set()),
        lambda: (signals.append("end"), over.set()),
    )
    assert over.wait(DEADLINE)
    return signals


def test_an_observable_that_is_given_as_a_publisher_is_told_how_to_become_one() -> None:
    observable: Any = reactivex.of(1, 2)
    streams = [rsf.from_publisher(observable), rsf.range_(3).flat_map(lambda _: observable)]
    for stream in streams:
        with pytest.raises(AttributeError, match="on_completed") as caught:
            stream.to_list()
        assert "from_observable is for observables" in caught.value.__notes__[0]


@pytest.mark.parametrize("scheduler", [None, NewThreadScheduler()])
def test_an_observable_is_a_stream(scheduler: Any) -> None:
    observable = reactivex.from_iterable(range(500), scheduler)
    assert from_observable(observable).map(lambda n: n + 1).to_list() == list(range(1, 501))


def test_an_error_and_an_overflow_end_the_stream() -> None:
    failed = from_observable(reactivex.throw(LookupError("no")))
    with pytest.raises(LookupError, match="no"):
        failed.to_list()
    few: list[int] = []
    lossy = from_observable(
        reactivex.range(0, 10), overflow=rsf.Overflow.DROP_LATEST, capacity=3, on_drop=few.append
    )
    with lossy.iterate(prefetch=1) as steps:
        assert next(iter(steps)) == 0
    assert few


def test_none_is_no_element() -> None:
    with pytest.raises(TypeError, match=r"§2\.13"):
        from_observable(reactivex.of(1, None, 2)).to_list()


def test_cancel_disposes() -> None:
    subject: Subject[int] = Subject()
    seen: list[int] = []
    run = from_observable(subject).for_each(seen.append)
    subject.on_next(1)
    run.cancel()
    assert subject.observers == []
    assert seen == [1]


def test_a_synchronous_observable_ends_when_nobody_listens() -> None:
    sent = itertools.count()
    endless = reactivex.generate(0, lambda _: True, lambda _: next(sent))
    assert from_observable(endless).take(3).to_list() == [0, 0, 1]
    assert next(sent) < 20


@pytest.mark.parametrize("executor", [None, "pool"])
def test_a_stream_is_an_observable(executor: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = rsf.range_(1000)
        if executor:
            stream = stream.publish_on(pool)
        assert heard(to_observable(stream)) == [*range(1000), "end"]


def test_an_error_reaches_the_observer() -> None:
    error = LookupError("no")
    assert heard(to_observable(rsf.error(error))) == [error]


def test_an_endless_stream_is_cancelled_by_take() -> None:
    asked: list[int] = []
    endless = rsf.from_iterable(itertools.count()).do_on_next(asked.append)
    assert heard(to_observable(endless).pipe(operators.take(3))) == [0, 1, 2, "end"]
    assert len(asked) < 300


def test_observe_on_moves_to_the_executor_and_makes_the_sender_wait() -> None:
    sent: list[int] = []
    first, go_on = threading.Event(), threading.Event()
    threads: set[str] = set()

    def slow(n: int) -> int:
        threads.add(threading.current_thread().name)
        first.set()
        assert go_on.wait(DEADLINE)
        return n

    def send(n: int) -> int:
        sent.append(n)
        return n

    source = reactivex.from_iterable(range(2000), NewThreadScheduler()).pipe(operators.map(send))
    with ThreadPoolExecutor(1, thread_name_prefix="below") as pool:
        observable = source.pipe(observe_on(pool, prefetch=16), operators.map(slow))
        hearing = start_thread(lambda: heard(observable))
        assert first.wait(DEADLINE)
        assert len(sent) <= 17  # 16, and the one whose sender waits
        go_on.set()
        assert hearing.result() == [*range(2000), "end"]
    assert {name.rpartition("_")[0] for name in threads} == {"below"}


def test_observe_on_serves_a_source_that_sends_within_subscribe() -> None:
    with ThreadPoolExecutor(1) as pool:
        moved = reactivex.from_iterable(range(5000)).pipe(observe_on(pool, prefetch=8))
        assert heard(moved) == [*range(5000), "end"]


IN_FLIGHT = """
import threading
import rstreams_fast as rsf
from rstreams_fast.interop.reactivex import to_observable

ticked = threading.Event()
to_observable({source}).subscribe(lambda _: ticked.set())
assert ticked.wait(30)
"""


@pytest.mark.parametrize("source", ["rsf.interval(0.001)", "rsf.range_(10**9).publish_on()"])
def test_an_observer_in_flight_at_exit_is_no_traceback(source: str) -> None:
    assert run_python("-c", IN_FLIGHT.format(source=source)).stderr == ""


def test_disposing_frees_a_sender_that_waits() -> None:
    sender_ended = threading.Event()
    hold, began = threading.Event(), threading.Event()

    def send(observer: Any, _: Any) -> Any:
        def run() -> None:
            for n in range(1000):
                observer.on_next(n)
            sender_ended.set()

        threading.Thread(target=run).start()

    def on_next(_: int) -> None:
        began.set()
        assert hold.wait(DEADLINE)

    with ThreadPoolExecutor(1) as pool:
        subscription = reactivex.create(send).pipe(observe_on(pool, prefetch=4)).subscribe(on_next)
        assert began.wait(DEADLINE)
        subscription.dispose()
        assert sender_ended.wait(DEADLINE)
        hold.set()


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("end", [None, ValueError("its own")])
async def test_a_sender_on_the_loop_is_held_as_far_as_prefetch_goes(
    fits: bool, end: Exception | None
) -> None:
    signals: list[Any] = []
    over = asyncio.Event()
    source = reactivex.from_iterable(range(100))
    if end is not None:
        source = source.pipe(operators.concat(reactivex.throw(end)))
    source.pipe(observe_on(asyncio.get_running_loop(), prefetch=100 if fits else 4)).subscribe(
        signals.append, lambda error: (signals.append(error), over.set()), over.set
    )
    await asyncio.wait_for(over.wait(), DEADLINE)
    if fits:
        assert signals == [*range(100), *([] if end is None else [end])]
    else:
        assert signals[:-1] == list(range(8))  # 4 for the buffer, and 4 that are held
        assert isinstance(signals[-1], RuntimeError)
        assert "prefetch=4 elements is full" in str(signals[-1])


async def test_a_subject_is_fed_on_the_loop_before_and_after_it_is_asked_for() -> None:
    taken: list[int] = []
    sixth, over = asyncio.Event(), asyncio.Event()
    subject: Subject[int] = Subject()

    def take(element: int) -> None:
        taken.append(element)
        if element % 6 == 5:
            sixth.set()

    moved = subject.pipe(observe_on(asyncio.get_running_loop(), prefetch=8))
    moved.subscribe(take, on_completed=over.set)
    async with asyncio.timeout(DEADLINE):
        for start in range(0, 30, 6):
            for element in range(start, start + 6):
                subject.on_next(element)
            await sixth.wait()
            sixth.clear()
        subject.on_next(30)
        subject.on_completed()
        await over.wait()
    assert taken == list(range(31))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: from_observable([1]), TypeError, "observable must be"),  # type: ignore[arg-type]
        (lambda: observe_on(prefetch=0), ValueError, "prefetch"),
        (lambda: observe_on("caller"), TypeError, "executor"),  # type: ignore[arg-type]
        (lambda: to_observable([1]), TypeError, "subscribe"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
