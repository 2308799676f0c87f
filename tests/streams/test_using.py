"""do_finally and using: once, at whichever end."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import run_threads
from tests.rules.probes import ManualPublisher, Recorder, subscribed


@pytest.mark.parametrize("stream", [rsf.range_(3), rsf.error(ValueError()), rsf.empty()])
def test_it_comes_once_and_after_the_end(stream: rsf.Stream[Any]) -> None:
    seen: list[Any] = []
    recorder = Recorder(request=9)
    stream.do_finally(lambda: seen.append(recorder.terminal)).subscribe(recorder)
    recorder.subscription.cancel()
    assert seen == [recorder.terminal]
    assert recorder.terminal is not None


def test_it_comes_once_after_a_cancel_by_many() -> None:
    above, seen = ManualPublisher(), list[int]()
    recorder = subscribed(rsf.from_publisher(above).do_finally(lambda: seen.append(above.cancels)))
    run_threads([recorder.subscription.cancel] * 4)
    assert seen == [1]


@pytest.mark.parametrize(
    "above",
    [
        lambda s: s,
        lambda s: s.concat(s),
        lambda s: s.on_discard(abs),
        lambda s: s.do_on_request(abs),
        lambda s: s.scan(max, 0),
    ],
)
@pytest.mark.parametrize("leaving", [ZeroDivisionError, KeyboardInterrupt])
def test_it_comes_when_the_subscriber_raises(above: Any, leaving: Any, dropped: list[Any]) -> None:
    seen: list[int] = []

    def leave(_recorder: Recorder, _element: int) -> None:
        raise leaving

    stream = above(rsf.range_(3)).do_finally(lambda: seen.append(1)).on_discard(abs)
    with suppress(KeyboardInterrupt):
        subscribed(stream.do_finally(lambda: seen.append(2)), 1, on_next=leave)
    assert seen == [2, 1]


def test_each_subscriber_has_a_resource_that_is_closed_once() -> None:
    made: list[int] = []
    closed: list[int] = []

    def factory() -> int:
        made.append(len(made))
        return made[-1]

    stream = rsf.using(factory, lambda n: rsf.range_(n, n + 3), closed.append)
    assert made == []
    assert stream.to_list() == [0, 1, 2]
    assert stream.first() == 1
    assert (made, closed) == ([0, 1], [0, 1])
    assert "using(" in stream.describe()


def _no_stream(_n: int) -> Any:
    return None


@pytest.mark.parametrize(
    ("stream_of", "message"),
    [(lambda _n: 1 // 0, "by zero"), (_no_stream, "using: what .*_no_stream returned must have")],
)
def test_a_resource_without_a_stream_is_closed(stream_of: Any, message: str) -> None:
    closed: list[int] = []
    recorder = subscribed(rsf.using(lambda: 5, stream_of, closed.append))
    assert recorder.error is not None
    assert re.search(message, str(recorder.error))
    assert closed == [5]


def test_a_close_that_nobody_awaits_is_made_known(unraisable: list[Any]) -> None:
    async def close(_: int) -> None:
        pass

    closing = rsf.using(lambda: 5, lambda _n: rsf.range_(3), lambda n: close(n))  # noqa: PLW0108
    assert closing.to_list() == [0, 1, 2]
    told = [given.exc_value for given in unraisable]
    assert [type(error) for error in told] == [TypeError]
    assert "returned a coroutine, which nobody awaits, so int is not closed" in str(told[0])
