"""on_error_resume: another stream in place of one that has failed."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Problem
from tests.rules.probes import ManualPublisher, Recorder, raising, send, subscribed


def failing(n: int, error: BaseException | None = None) -> rsf.Stream[int]:
    """``n`` elements, then ``error``, for each subscriber."""

    class Source:
        def __iter__(self) -> Iterator[int]:
            yield from range(n)
            raise error or ValueError(n)

    return rsf.from_iterable(Source())


def test_the_function_is_told_the_error_and_not_called_without_one() -> None:
    errors: list[BaseException] = []
    boom = ValueError("boom")
    for stream in (failing(2, boom), rsf.range_(2)):
        resumed = stream.on_error_resume(lambda error: errors.append(error) or rsf.empty())
        assert resumed.to_list() == [0, 1]
    assert errors == [boom]


@pytest.mark.parametrize(
    ("on", "error", "resumed"),
    [
        (Exception, ValueError(), True),
        (Exception, KeyboardInterrupt(), False),
        (OSError, ConnectionError(), True),
        (OSError, ValueError(), False),
        ((OSError, ValueError), ValueError(), True),
        ((OSError, ValueError), KeyError(), False),
        ((), ValueError(), False),
        (BaseException, KeyboardInterrupt(), True),
    ],
)
def test_on_says_for_which_errors(on: Any, error: BaseException, resumed: bool) -> None:
    publisher = ManualPublisher()
    stream = rsf.from_publisher(publisher).on_error_resume(lambda _e: rsf.range_(2), on=on)
    recorder = subscribed(stream, 9)
    publisher.subscriber.on_error(error)
    assert recorder.elements == ([0, 1] if resumed else [])
    assert recorder.error is (None if resumed else error)
    recorder.check()


@pytest.mark.parametrize("result", [None, [1, 2], 7, "text"])
def test_a_function_that_returns_no_publisher_is_named(result: Any) -> None:
    def fallback(_error: BaseException) -> Any:
        return result

    recorder = subscribed(failing(0).on_error_resume(fallback), request=1)
    assert isinstance(recorder.error, TypeError)
    for word in ("on_error_resume", "fallback", type(result).__name__):
        assert word in str(recorder.error)
    assert isinstance(recorder.error.__context__, ValueError)


def test_a_function_may_raise_the_same_error_again() -> None:
    boom = ValueError("upstream's")
    recorder = subscribed(failing(1, boom).on_error_resume(raising(boom)), request=5)
    assert recorder.error is boom
    assert boom.__context__ is None


def test_the_other_may_break_every_rule(dropped: list[BaseException]) -> None:
    class Lying:
        def subscribe(self, subscriber: Any, /) -> None:
            self.subscriber = subscriber
            subscriber.on_subscribe(self)
            subscriber.on_subscribe(ManualPublisher())

        def request(self, _n: int, /) -> None:
            send(self, *range(9))
            self.subscriber.on_complete()
            self.subscriber.on_next(9)

        def cancel(self) -> None:
            raise OSError

    recorder = subscribed(failing(0).on_error_resume(lambda _e: Lying()), request=3)
    assert recorder.elements == [0, 1, 2]
    assert isinstance(recorder.error, rsf.DemandExceededError)
    assert [type(error) for error in dropped] == [OSError]
    recorder.check()


def test_cancelled_by_the_function_nothing_is_subscribed_to() -> None:
    recorder = Recorder(request=1)
    other = ManualPublisher()

    def fallback(_error: BaseException) -> ManualPublisher:
        recorder.subscription.cancel()
        return other

    failing(0).on_error_resume(fallback).subscribe(recorder)
    assert other.subscribes == 0
    assert recorder.terminal is None


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)
def test_nothing_keeps_the_error_that_was_dealt_with() -> None:
    publisher, other = ManualPublisher(), ManualPublisher()
    stream = rsf.from_publisher(publisher).on_error_resume(lambda _e: other)
    recorder = subscribed(stream, request=5)
    boom = Problem()
    gone = weakref.ref(boom)
    publisher.subscriber.on_error(boom)
    del boom
    assert gone() is None, gc.get_referrers(gone())
    assert other.requests == [5]
    assert recorder.terminal is None
