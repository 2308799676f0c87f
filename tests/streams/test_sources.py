"""Sources: what they publish, when they complete, what they refuse."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.errors import AlreadySubscribedError
from tests.helpers import run_threads
from tests.rules.probes import Recorder, subscribed


def collected(stream: Any, request: int = 1000) -> Recorder:
    recorder = subscribed(stream, request)
    recorder.check()
    return recorder


@pytest.mark.parametrize("args", [(5,), (2, 5), (5, 2), (10, 0, -3), (0,), (2**70, 2**70 + 3)])
def test_range_is_like_range(args: tuple[int, ...]) -> None:
    assert collected(rsf.range_(*args)).elements == list(range(*args))


@pytest.mark.parametrize("args", [(), ("5",), (1, 2, 0), (1.5,), (1, 2, 3, 4)])
def test_range_refuses_what_range_refuses_when_it_is_called(args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        rsf.range_(*args)


def test_a_stream_is_a_description_and_nothing_runs_before_subscribe() -> None:
    calls: list[str] = []

    class Source:
        def __iter__(self) -> Iterator[int]:
            calls.append("iter")
            return iter([1, 2])

    stream = rsf.from_iterable(Source()).map(lambda x: calls.append("map") or x)
    stream.describe()
    repr(stream)
    assert calls == []
    collected(stream)
    assert calls == ["iter", "map", "map"]


def test_a_one_shot_iterator_subscribed_twice_is_a_runtime_error() -> None:
    stream = rsf.from_iterable(x for x in range(3))
    assert collected(stream).elements == [0, 1, 2]
    second = collected(stream)
    assert isinstance(second.error, RuntimeError)
    assert isinstance(second.error, AlreadySubscribedError)
    assert "one-shot" in str(second.error)
    assert second.elements == []


def test_of_many_threads_one_subscribes_to_a_one_shot_iterator() -> None:
    stream = rsf.from_iterable(x for x in range(3))
    recorders = run_threads([lambda: collected(stream)] * 4)
    assert sorted(len(r.elements) for r in recorders) == [0, 0, 0, 3]
    assert sum(isinstance(r.error, RuntimeError) for r in recorders) == 3


def test_an_iter_that_raises_is_an_on_error_after_on_subscribe() -> None:
    boom = OSError("no such thing")

    class Source:
        def __iter__(self) -> Iterator[int]:
            raise boom

    recorder = subscribed(rsf.from_iterable(Source()))
    assert recorder.signals == [("on_subscribe",), ("on_error", boom)]


@pytest.mark.parametrize("bad", [5, None, object()])
def test_from_iterable_refuses_what_is_not_iterable(bad: Any) -> None:
    with pytest.raises(TypeError, match="iterable must be iterable"):
        rsf.from_iterable(bad)


def test_from_iterable_points_asynchronous_iterables_to_from_async_iterable() -> None:
    async def generate() -> Any:
        yield 1

    with pytest.raises(TypeError, match="from_async_iterable"):
        rsf.from_iterable(generate())  # type: ignore[arg-type]


# -- completion at the earliest possible moment ----------------------------------------------------
@pytest.mark.parametrize(
    "iterable",
    [
        range(3), [0, 1, 2], (0, 1, 2), "abc", "\u20ac\u20ac\u20ac", b"abc", bytearray(b"abc"),
        {1: 1, 2: 2, 3: 3}, {1, 2, 3}, {1: 1, 2: 2, 3: 3}.values(), {1: 1, 2: 2, 3: 3}.items(),
        deque([1, 2, 3]), range(2**70, 2**70 + 3),
    ],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_on_complete_needs_no_extra_request_where_the_end_is_known(iterable: Any) -> None:
    recorder = collected(rsf.from_iterable(iterable), request=3)
    assert recorder.elements == list(iterable)
    assert recorder.terminal == ("on_complete",)


@pytest.mark.parametrize("stream", [rsf.empty(), rsf.range_(0), rsf.from_iterable([])])
def test_an_empty_source_completes_at_once_without_a_request(stream: Any) -> None:
    recorder = subscribed(stream)
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]


def test_a_container_that_was_changed_is_an_error_and_not_an_early_end() -> None:
    source = {1: 1, 2: 2, 3: 3}
    recorder = collected(rsf.from_iterable(source), request=1)
    source[4] = 4
    recorder.subscription.request(1)
    assert isinstance(recorder.error, RuntimeError)
    assert recorder.elements == [1]


def test_a_container_changed_after_its_last_element_is_an_error() -> None:
    source = {1: 1}
    stream = rsf.from_iterable(source)
    recorder = subscribed(stream, 1, on_next=lambda _r, _x: source.update({2: 2}))
    recorder.subscription.request(1)
    assert isinstance(recorder.error, RuntimeError)


# -- from_callable, error, never -------------------------------------------------------------------
def test_from_callable_is_called_for_each_subscriber_when_it_asks() -> None:
    numbers = itertools.count()
    stream = rsf.from_callable(lambda: next(numbers))
    recorder = subscribed(stream)
    assert recorder.signals == [("on_subscribe",)]
    recorder.subscription.request(1)
    assert recorder.signals == [("on_subscribe",), ("on_next", 0), ("on_complete",)]
    assert collected(stream).elements == [1]


def test_from_callable_returning_none_is_a_type_error_naming_it() -> None:
    def nothing() -> None: ...

    with pytest.raises(TypeError, match="nothing"):
        raise collected(rsf.from_callable(nothing)).error


def test_a_stop_iteration_from_from_callable_is_an_error_and_not_an_end() -> None:
    calls: list[int] = []

    def ended() -> int:
        calls.append(len(calls))
        raise StopIteration

    said = "ended, the function of from_callable, raised StopIteration"
    with pytest.raises(RuntimeError, match=said) as raised:
        raise collected(rsf.from_callable(ended)).error
    assert isinstance(raised.value.__cause__, StopIteration)
    retried = rsf.from_callable(ended).retry(2).on_error_resume(lambda _error: rsf.range_(1))
    assert retried.to_list() == [0]
    assert len(calls) == 4


def test_error_fails_at_once_with_the_very_exception() -> None:
    boom = ValueError("x")
    recorder = subscribed(rsf.error(boom))
    assert recorder.signals == [("on_subscribe",), ("on_error", boom)]
    assert boom.__traceback__ is None
    with pytest.raises(TypeError, match="exception instance"):
        rsf.error(ValueError)  # type: ignore[arg-type]


@pytest.mark.parametrize("remembers", [False, True])
def test_an_error_that_many_raise_keeps_none_of_their_frames(remembers: bool) -> None:
    stream = rsf.error(ValueError("x"))
    if remembers:
        stream = stream.replay(count=1)
    depths = set()
    for _ in range(4):
        with pytest.raises(ValueError, match="x") as caught:
            stream.to_list()
        depths.add(len(caught.traceback))
    assert len(depths) == 1


def test_error_takes_an_exception_that_cannot_be_shown() -> None:
    class Unshown(Exception):
        def __repr__(self) -> str:
            raise OSError("no")

    stream = rsf.error(Unshown())
    assert "error(<Unshown that cannot be shown>)" in stream.describe()
    with pytest.raises(Unshown):
        stream.run()


# -- who subscribes --------------------------------------------------------------------------------
def test_a_subscriber_whose_on_next_would_not_run_is_refused() -> None:
    class Async(Recorder):
        async def on_next(self, element: Any, /) -> None:  # type: ignore[override]
            raise AssertionError(element)

    class Generating(Recorder):
        def on_next(self, element: Any, /) -> Iterator[None]:  # type: ignore[override]
            yield

    for kind in (Async, Generating):
        with pytest.raises(TypeError, match=rf"§1\.9: {kind.__name__}\.on_next must be a plain"):
            rsf.range_(3).map(str).subscribe(kind())


@pytest.mark.parametrize("publisher", [rsf.range_(3), rsf.range_(3).multicast()])
def test_a_class_is_no_subscriber(publisher: rsf.Stream[int]) -> None:
    with pytest.raises(TypeError, match="must be an object, got the class Recorder"):
        publisher.subscribe(Recorder)
