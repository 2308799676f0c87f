"""What leaves through a thread where nobody waits for it, and what comes after the end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE
from tests.operators.entry import NoStream
from tests.rules.probes import HandTimer, Recorder, subscribed


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
