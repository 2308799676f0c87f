"""An error that comes together with a cancel, or after it, is delivered or reported, and once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import rstreams_fast as rsf
from tests.helpers import case, wait_until
from tests.operators import USES
from tests.operators.entry import NoStream, Op, ignore
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed


class Late(Exception):
    """The error of a source."""


class Failing:
    """Sends elements as they are asked for, then an error, at the moment that ``when`` names."""

    def __init__(self, when: str) -> None:
        self._when = when
        self._subscriber: Any = None
        self._sent = 0
        self._first = threading.Lock()  # taken by the first thread that fails
        self.errors: list[BaseException] = []
        self.cancelled = False

    def subscribe(self, subscriber: Any, /) -> None:
        if self._subscriber is not None:
            rsf.never().subscribe(subscriber)
            return
        self._subscriber = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int, /) -> None:
        for _ in range(n):
            if self._sent == 3 or self.cancelled or self.errors:
                break
            self._sent += 1
            self._subscriber.on_next(self._sent)
        if self._when == "after elements" and self._sent:
            self.fail()

    def cancel(self) -> None:
        self.cancelled = True
        if self._when == "in cancel":
            self.fail()

    def fail(self) -> None:
        if self._subscriber is not None and self._first.acquire(blocking=False):
            self.errors.append(Late())
            self._subscriber.on_error(self.errors[0])


def parts(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from parts(each)
    else:
        yield error


Over = Callable[[Any], Any]

#: Every use of every operator over a source, and with the source beside or within it.
PLACES: dict[str, tuple[type[Op], Over]] = {
    **{name: (op, use.over) for name, (op, use) in USES.items() if not use.slow},
    **{
        f"{name}, within": (op, use.within)
        for name, (op, use) in USES.items()
        if use.within is not None
    },
}

#: What goes on without subscribers: an error is for those that come later.
KEEPS = {"MulticastSmallBuffer"}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")


def check(name: str, stream: Any, below: Recorder, raised: list[Any], dropped: list[Any]) -> None:
    """Each error was delivered or reported, and once; an operator that recovers may use it up."""
    op = PLACES[name][0] if name in PLACES else Op
    recovers = op.recovers or op.__name__ == "OnErrorContinue"
    if name in KEEPS and below.error is None:
        below = subscribed(stream)  # the error is for those that come later

    def seen() -> list[int]:
        told = [*dropped, *([below.error] if below.error else [])]
        return [id(each) for error in told for each in parts(error) if each in raised]

    if not recovers:
        wait_until(lambda: len(seen()) >= len(raised), "the error")
    found = seen()
    assert len(found) == len(set(found))


def hook(stream: Any, hooked: bool) -> Any:
    return stream.on_discard(ignore) if hooked else stream


@pytest.mark.parametrize("name", PLACES)
def test_an_error_of_a_source_beside_a_cancel_is_delivered_or_reported_once(
    name: str, dropped: list[BaseException]
) -> None:
    over = PLACES[name][1]

    def stop(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.cancel()

    for when, hooked in product(("after elements", "in cancel", "before", "after"), (False, True)):
        with case(f"{when}, hooked {hooked}"):
            dropped.clear()
            source = Failing(when)
            below = Recorder(request=1, on_next=stop if when == "after elements" else None)
            stream = hook(over(rsf.from_publisher(source)), hooked)
            stream.subscribe(below)
            if when == "before":
                source.fail()
            below.subscription.cancel()
            source.fail()
            check(name, stream, below, source.errors, dropped)


@pytest.mark.parametrize("name", PLACES)
def test_an_error_of_a_function_that_cancels_is_delivered_or_reported_once(
    name: str, dropped: list[BaseException]
) -> None:
    over = PLACES[name][1]
    raised: list[BaseException] = []
    below = Recorder()

    def fail(_element: object) -> int:
        below.subscription.cancel()
        raised.append(Late())
        raise raised[-1]

    for foreign, hooked in product((False, True), (False, True)):
        with case(f"foreign {foreign}, hooked {hooked}"):
            raised.clear()
            dropped.clear()
            below = Recorder(request=1)
            source = rsf.from_publisher(NoStream(rsf.range_(3))) if foreign else rsf.range_(3)
            stream = hook(over(source.map(fail)), hooked)
            stream.subscribe(below)
            below.subscription.cancel()
            check(name, stream, below, raised, dropped)


def awaits(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(element: Any) -> Any:
        return fn(element)

    return call


#: The functions of operators themselves.
OF_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda s, fn: s.publish_on("caller").map(fn),
    "scan": lambda s, fn: s.scan(lambda _, x: fn(x), 0),
    "flat_map": lambda s, fn: s.flat_map(fn),
    "flat_map_sequential": lambda s, fn: s.flat_map_sequential(fn),
    "concat_map": lambda s, fn: s.concat_map(fn),
    "switch_map": lambda s, fn: s.switch_map(fn),
    "expand": lambda s, fn: s.expand(fn),
    "map_blocking": lambda s, fn: s.map_blocking(fn),
    "map_async": lambda s, fn: s.map_async(awaits(fn)),
    "group_by": lambda s, fn: s.group_by(fn),
    "publish_on, the weigher": lambda s, fn: s.publish_on("caller", max_bytes=9, weigher=fn),
}


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_an_error_of_an_operators_function_that_cancels_is_reported(
    name: str, dropped: list[BaseException]
) -> None:
    below = Recorder(request=9)
    error = Late()

    def fail(_element: object) -> Any:
        below.subscription.cancel()
        raise error

    stream = OF_OPERATORS[name](rsf.range_(3), fail)
    stream.subscribe(below)
    check(name, stream, below, [error], dropped)


@pytest.mark.parametrize(
    ("leave", "count", "served"),
    [
        *product(["cancel"], [1, 2], [False, True]),
        ("invalid request", 1, False),
        ("second subscription", 1, False),
    ],
)
def test_an_error_that_waits_in_a_stream_that_restarts_is_reported_if_all_leave(
    leave: str, count: int, served: bool, dropped: list[BaseException]
) -> None:
    source, error = ManualPublisher(), Late()
    shared = rsf.from_publisher(source).multicast(on_last_cancel="restart", delay_error=True)
    first, *others = [subscribed(shared, 1) for _ in range(count)]
    send(source, 1, 2)  # the second one waits, and the error behind it
    source.subscriber.on_error(error)
    if served:
        first.subscription.request(1)
    for recorder in (*others, first):
        if leave == "cancel":
            recorder.subscription.cancel()
        elif leave == "invalid request":
            recorder.subscription.request(0)
        else:
            shared.subscribe(recorder)
    assert dropped == ([] if served else [error])
    if leave == "cancel":
        assert first.error is (error if served else None)
    else:
        assert isinstance(first.error, ValueError | rsf.AlreadySubscribedError)


def test_an_error_is_reported_if_all_who_share_the_stream_have_cancelled_but_not_left(
    dropped: list[BaseException],
) -> None:
    source, error = ManualPublisher(), Late()
    recorder = subscribed(rsf.from_publisher(source).multicast(on_last_cancel="restart"), 1)
    publisher = recorder.subscription._publisher

    def leave(subscription: Any) -> None:
        subscription._publisher = publisher
        source.subscriber.on_error(error)
        publisher.leave(subscription)

    recorder.subscription._publisher = Mock(leave=leave)
    recorder.subscription.cancel()
    assert (recorder.error, dropped) == (None, [error])


class Unsliceable(np.ndarray[Any, Any]):
    """An array that calls ``fail`` when it is sliced."""

    fail: Callable[[Any], Any]

    def __getitem__(self, index: Any) -> Any:
        return self.fail(index)


@pytest.mark.parametrize("executor", [None, "caller"])
@pytest.mark.parametrize("of", ["records", "bytes"])
def test_an_error_on_the_thread_of_upstream_is_reported_after_a_cancel_that_took_effect(
    of: str, executor: Any, dropped: list[BaseException]
) -> None:
    source, below, error = ManualPublisher(), Recorder(request=1), Late()
    upstream = threading.get_ident()

    def fail(_element: Any) -> Any:
        below.subscription.cancel()
        if threading.get_ident() == upstream:  # or the thread that delivers, which makes the end
            wait_until(lambda: below.subscription._subscriber is None, "the end")
        raise error

    stream = rsf.from_publisher(source)
    if of == "bytes":
        stream = stream.publish_on(executor, max_bytes=9, weigher=fail)
    else:
        stream = stream.publish_records_on("i8", executor, capacity=2)
    stream.subscribe(below)
    source.wait_requested(1)
    array = np.arange(5).view(Unsliceable)
    array.fail = fail
    send(source, array)
    wait_until(lambda: dropped, "the report")
    assert dropped == [error]
