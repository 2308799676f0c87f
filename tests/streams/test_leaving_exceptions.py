"""What leaves through a thread where nobody waits for it, and what comes after the end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, Problem, start_thread, wait_until
from tests.operators.entry import NoStream
from tests.rules.probes import HandTimer, ManualPublisher, Recorder, raising, send, subscribed


class Leaving(BaseException):
    """Like ``SystemExit``: no ``Exception``."""


def leave(_element: object = None) -> NoReturn:
    raise Leaving


async def numbers() -> AsyncIterator[int]:
    yield 1


async def same(element: int) -> int:
    return element


def join_ours() -> None:
    """What a thread says when it ends belongs to the test."""
    for thread in threading.enumerate():
        if thread.name.startswith("rstreams-fast"):
            thread.join(DEADLINE)


#: Streams that have a segment without a resource of its own on somebody else's thread.
BUILDS: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "push on a worker": lambda: rsf.range_(5).publish_on().do_on_cancel(lambda: None).map(leave),
    "unbatch on a worker": lambda: rsf.range_(5).batch(2).publish_on().unbatch().map(leave),
    "push on a loop": lambda: rsf.from_async_iterable(numbers).map(leave),
    "push below calls": lambda: rsf.range_(5).map_async(same).map(leave),
    "pull asked on a worker": lambda: (
        rsf.from_callable(leave).do_on_cancel(lambda: None).subscribe_on()
    ),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_downstream_learns_what_left_through_another_thread(
    build: Callable[[], rsf.Stream[Any]],
) -> None:
    recorder = subscribed(build().publish_on(), rsf.UNBOUNDED)
    recorder.wait_terminal()
    assert isinstance(recorder.error, Leaving)
    join_ours()


def test_who_waits_for_a_run_learns_that_it_is_cancelled_though_a_clean_up_does_not_return() -> (
    None
):
    run = rsf.create(lambda emitter: emitter.on_cancel(leave)).for_each(lambda _element: None)
    with pytest.raises(Leaving):
        run.cancel()
    with pytest.raises(CancelledError):
        run.result(DEADLINE)


class Steps:
    """An integer that is another one each time it is asked."""

    def __init__(self, *answers: int) -> None:
        self._answers = iter(answers)

    def __index__(self) -> int:
        return next(self._answers)


@pytest.mark.parametrize(
    "operator",
    [
        lambda stream: stream,
        lambda stream: stream.concat(stream),
        lambda stream: stream.race(rsf.never()),
        lambda stream: stream.expand(lambda _n: rsf.empty()),
        lambda stream: stream.switch_map(lambda _n: rsf.range_(10)),
    ],
)
def test_a_request_is_looked_at_once(
    operator: Callable[[rsf.Stream[int]], rsf.Stream[int]],
) -> None:
    recorder = subscribed(operator(rsf.from_publisher(NoStream(rsf.range_(10)))))
    recorder.subscription.request(Steps(3))
    assert recorder.elements == [0, 1, 2]


def test_what_leaves_an_asynchronous_source_is_known_and_not_reported_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(Leaving):
        asyncio.run(rsf.from_async_iterable(numbers).map(leave).run_async())
    gc.collect()
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_is_signalled_though_a_clean_up_leaves() -> None:
    timer = HandTimer()
    source = rsf.create(lambda emitter: emitter.on_cancel(leave))
    recorder = subscribed(source.timeout(1, timer=timer), 1)
    timer.advance(2)
    recorder.wait_terminal()
    assert isinstance(recorder.error, TimeoutError)
    join_ours()


def test_a_worker_ends_though_a_clean_up_leaves_through_cancel() -> None:
    before = set(threading.enumerate())
    source = rsf.create(lambda emitter: emitter.next(1) and emitter.on_cancel(leave))
    recorder = subscribed(source.publish_on(), 1)
    recorder.wait_elements(1)
    with pytest.raises(Leaving):
        recorder.subscription.cancel()
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_who_waits_learns_that_an_executor_refuses_though_a_clean_up_leaves() -> None:
    with ThreadPoolExecutor(1) as executor:
        source = rsf.range_(5).do_on_cancel(leave).publish_on(executor)
    recorder: Recorder[int] = Recorder()
    with pytest.raises(Leaving):
        source.subscribe(recorder)
    recorder.wait_terminal()
    assert isinstance(recorder.error, RuntimeError)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_learns_what_left_though_a_clean_up_leaves_too() -> None:
    stream = rsf.range_(5).do_on_cancel(leave).publish_on().map(leave)
    with pytest.raises(Leaving):
        stream.for_each(lambda _: None).result(DEADLINE)
    join_ours()


def test_all_clean_ups_are_called_though_one_leaves() -> None:
    called: list[int] = []

    def fn(emitter: rsf.Emitter[int]) -> None:
        emitter.on_cancel(leave)
        emitter.on_cancel(lambda: called.append(1))

    with pytest.raises(Leaving):
        subscribed(rsf.create(fn)).subscription.cancel()
    assert called == [1]


@pytest.mark.parametrize("fails", [False, True], ids=["complete", "error"])
@pytest.mark.parametrize("raised", [Leaving, ValueError])
def test_a_resource_is_closed_though_the_last_signal_leaves(
    fails: bool, raised: type[BaseException]
) -> None:
    closed: list[int] = []
    source = rsf.error(OSError()) if fails else rsf.empty()
    using = rsf.using(lambda: 1, lambda _one: source, closed.append)
    with suppress(Leaving):
        subscribed(using, raises=("on_error" if fails else "on_complete", raised()))
    assert closed == [1]


def fail(_element: object) -> NoReturn:
    raise Problem


def consume(stream: rsf.Stream[Any], fn: Callable[[Any], object]) -> None:
    subscriber = rsf.SyncSubscriber(fn, prefetch=1)
    stream.subscribe(subscriber)
    subscriber.run.result(DEADLINE)


End = Callable[[rsf.Stream[Any]], object]

#: Ends of a stream whose clean-up leaves through another thread, and how they end.
ENDS: dict[str, tuple[End, object]] = {
    "first": (lambda s: s.first(), 0),
    "for_each": (lambda s: s.for_each(fail, prefetch=1).result(DEADLINE), Problem),
    "SyncSubscriber, error": (lambda s: consume(s, fail), Problem),
    "SyncSubscriber, end": (lambda s: consume(s, lambda _element: False), None),
    "to_arrow": (lambda s: s.to_arrow(), TypeError),
    "zip": (lambda s: s.zip(rsf.range_(1)).to_list(), [(0, 0)]),
    "take_until": (lambda s: s.skip(5).concat(rsf.never()).take_until(rsf.range_(1)).run(), None),
}


@pytest.mark.parametrize("kind", [Leaving, SystemExit, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_end_returns_though_a_clean_up_leaves_through_another_thread(
    name: str, kind: type[BaseException]
) -> None:
    end, expected = ENDS[name]
    if name == "to_arrow":
        pytest.importorskip("pyarrow")
    stream = rsf.using(int, lambda _resource: rsf.range_(5), raising(kind()))
    thread = start_thread(lambda: end(stream.publish_on(prefetch=1)))
    if isinstance(expected, type):
        with pytest.raises(expected):
            thread.result()
    else:
        assert thread.result() == expected
    join_ours()


class LeavingPublisher(ManualPublisher):
    """A publisher whose ``cancel`` leaves."""

    def cancel(self) -> None:
        super().cancel()
        raise Leaving


def multicast(source: ManualPublisher) -> rsf.MulticastProcessor[Any]:
    processor = rsf.MulticastProcessor[Any](buffer_size=1)
    source.subscribe(processor)
    return processor


#: Publishers below a publisher that sends too much, and is cancelled for that.
FAILING: dict[str, Callable[[ManualPublisher], Any]] = {
    "on_overflow": lambda source: rsf.from_publisher(source).on_overflow(rsf.Overflow.ERROR),
    "multicast": multicast,
    "merge": lambda source: rsf.never().merge(source, prefetch=1),
    "zip": lambda source: rsf.never().zip(source, prefetch=1),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_of_a_publisher_is_signalled_though_its_cancel_leaves(name: str) -> None:
    source = LeavingPublisher()
    recorder = subscribed(FAILING[name](source), 1)
    with pytest.raises(Leaving):
        send(source, *range(10))
    recorder.wait_terminal()
    assert isinstance(recorder.error, rsf.DemandExceededError | rsf.BufferOverflowError)


def test_a_consumer_that_waits_wakes_though_a_clean_up_leaves_through_close() -> None:
    source, seen = LeavingPublisher(), list[int]()
    # Subscribe here: a thread that is still in ``request`` would make the cancellation itself.
    elements = rsf.from_publisher(source).iterate().__enter__()
    thread = start_thread(lambda: [seen.append(element) for element in elements])
    send(source, 1)
    wait_until(lambda: seen == [1], "the element")
    with pytest.raises(Leaving):
        elements.close()
    thread.result()
    assert seen == [1]


@pytest.mark.parametrize("losers", [1, 2])
@pytest.mark.parametrize("wins", ["on_next", "on_complete", "on_error"])
def test_the_first_to_signal_wins_a_race_though_clean_ups_of_others_leave(
    wins: str, losers: int
) -> None:
    winner, problem = ManualPublisher(), Problem()
    others = [LeavingPublisher() for _ in range(losers)]
    recorder = subscribed(rsf.from_publisher(winner).race(*others), 3)
    args: dict[str, tuple[Any, ...]] = {"on_next": (1,), "on_error": (problem,)}
    with pytest.raises(Leaving):
        getattr(winner.subscriber, wins)(*args.get(wins, ()))
    assert recorder.signals[1] == (wins, *args.get(wins, ()))
    assert [other.cancels for other in others] == [1] * losers


@pytest.mark.parametrize("operator", ["merge", "zip", "combine_latest", "race"])
def test_all_publishers_are_cancelled_though_clean_ups_leave(operator: str) -> None:
    sources = [LeavingPublisher() for _ in range(3)]
    stream = getattr(rsf.from_publisher(sources[0]), operator)(*sources[1:])
    with pytest.raises(Leaving):
        subscribed(stream).subscription.cancel()
    assert [source.cancels for source in sources] == [1, 1, 1]


def test_clean_ups_below_are_called_though_one_above_leaves() -> None:
    called: list[object] = []
    stream = rsf.from_publisher(LeavingPublisher()).do_finally(lambda: called.append(1))
    with pytest.raises(Leaving):
        subscribed(stream).subscription.cancel()
    assert called == [1]


def test_on_discard_gets_what_waits_though_a_clean_up_leaves() -> None:
    source, discarded = ManualPublisher(), list[int]()
    stream = rsf.from_publisher(source).publish_on("caller").do_finally(leave)
    stream = stream.on_discard(discarded.append)
    recorder = subscribed(stream)
    recorder.subscription.request(1)
    send(source, 1, 2, 3)
    with pytest.raises(Leaving):
        recorder.subscription.cancel()
    assert discarded == [2, 3]


@pytest.mark.parametrize("operator", ["merge", "map"])
def test_an_error_of_a_subscriber_is_reported_though_a_clean_up_leaves(
    operator: str, dropped: list[BaseException]
) -> None:
    source, problem = LeavingPublisher(), Problem()
    stream: rsf.Stream[int] = rsf.from_publisher(source)
    stream = stream.merge(rsf.never()) if operator == "merge" else stream.map(abs)
    subscribed(stream, 1, on_next=lambda *_args: raising(problem)(0))
    with pytest.raises(Leaving):
        send(source, 1)
    assert dropped == [problem]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ends", ["fails", "takes"])
def test_a_stream_ends_though_a_generator_leaves_when_it_is_closed(ends: str) -> None:
    def generate() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            leave()

    stream = rsf.from_iterable(generate())
    if ends == "fails":
        with pytest.raises(Problem):
            stream.map(fail).publish_on().to_list()
    else:
        assert stream.publish_on(prefetch=1).zip(rsf.range_(1)).to_list() == [(1, 0)]
    join_ours()
