"""Operators that work for two publishers: what the end of either, a cancel and a function do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import run_threads
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

Two = Callable[[rsf.Stream[Any], Any], rsf.Stream[Any]]

#: The other publisher stands beside the stream.
BESIDE: dict[str, Two] = {
    "merge": lambda s, other: s.merge(other),
    "zip": lambda s, other: s.zip(other),
    "combine_latest": lambda s, other: s.combine_latest(other),
    "with_latest_from": lambda s, other: s.with_latest_from(other),
    "race": lambda s, other: s.race(other),
    "take_until": lambda s, other: s.take_until(other),
}
#: It is made for an element of the stream, by a function.
INNER = ["flat_map", "flat_map_sequential", "concat_map", "switch_map", "expand"]


def made(name: str, stream: rsf.Stream[Any], fn: Callable[[Any], Any]) -> rsf.Stream[Any]:
    return getattr(stream, name)(fn, **{"depth_first": True} if name == "expand" else {})


TWO: dict[str, Two] = BESIDE | {
    name: lambda s, other, name=name: made(name, s, lambda _n: other)  # type: ignore[misc]
    for name in INNER
}


def two(name: str) -> tuple[ManualPublisher, ManualPublisher, Recorder]:
    above, other = ManualPublisher(), ManualPublisher()
    recorder = subscribed(TWO[name](rsf.from_publisher(above), other), 1)
    if name in INNER:
        send(above, 0)
    return above, other, recorder


@pytest.mark.parametrize("combine", [rsf.merge, rsf.zip_, rsf.merge_sorted])
def test_each_is_asked_again_when_three_quarters_were_delivered(combine: Any) -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(combine(a, b, prefetch=8))
    assert a.requests == b.requests == []  # nobody has asked yet
    recorder.subscription.request(1)
    assert a.requests == b.requests == [8]
    for n in range(8):
        send(a, n)
        send(b, n)
    each = 1 if combine is rsf.zip_ else 2
    recorder.subscription.request(5 * each - 1)  # five of each
    assert a.requests == b.requests == [8]
    recorder.subscription.request(each)
    assert a.requests == b.requests == [8, 6]


@pytest.mark.parametrize("failing", [0, 1], ids=["the first", "the other"])
@pytest.mark.parametrize("name", TWO)
def test_an_error_of_either_ends_it_and_cancels_the_other_once(name: str, failing: int) -> None:
    *both, recorder = two(name)
    error = ValueError("of either")
    both[failing].subscriber.on_error(error)
    recorder.subscription.cancel()
    assert recorder.signals[-1] == ("on_error", error)
    assert [each.cancels for each in both] == [int(failing == 1), int(failing == 0)]
    recorder.check()


@pytest.mark.parametrize("name", TWO)
def test_a_cancel_cancels_both_once_from_any_thread(name: str) -> None:
    *both, recorder = two(name)
    run_threads([recorder.subscription.cancel] * 4)
    assert [each.cancels for each in both] == [1, 1]
    both[1].subscriber.on_next(1)  # §2.8
    assert recorder.terminal is None
    recorder.check()


@pytest.mark.parametrize("failing", [0, 1], ids=["the first", "the other"])
@pytest.mark.parametrize("name", ["merge", "zip", "flat_map"])
def test_an_error_overtakes_what_waits(name: str, failing: int) -> None:
    *both, recorder = two(name)
    send(both[1], 1, 2, 3)
    error = ValueError("of either")
    both[failing].subscriber.on_error(error)
    assert recorder.signals[1:] == [("on_next", 1)] * (name != "zip") + [("on_error", error)]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, r"(?s)§2\.13: .*give, the function of OPERATOR, returned None; .* return empty"),
        ([1], "give, the function of OPERATOR, returned list, .* use map.*give.*unbatch"),
        (3, "give, the function of OPERATOR, returned int, which is no publisher"),
    ],
)
@pytest.mark.parametrize("name", INNER)
def test_a_function_of_no_publisher_is_named(name: str, returned: Any, words: str) -> None:
    def give(_n: int) -> Any:
        return returned

    above = ManualPublisher()
    recorder = subscribed(made(name, rsf.from_publisher(above), give), 2)
    send(above, 1, 2)
    with pytest.raises(TypeError, match=words.replace("OPERATOR", name)):
        raise recorder.error
    assert above.cancels == 1


@pytest.mark.parametrize("leaves", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", INNER)
def test_what_the_function_raises_ends_it_and_cancels_all(name: str, leaves: Any) -> None:
    above, inner = ManualPublisher(), ManualPublisher()

    def fn(n: int) -> Any:
        if n:
            raise leaves
        return inner

    recorder = subscribed(made(name, rsf.from_publisher(above), fn), 3)
    send(above, 0)
    if name in ("concat_map", "expand"):
        inner.subscriber.on_complete()
    if leaves is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            send(above, 1)
    else:
        send(above, 1)
    assert isinstance(recorder.error, leaves)
    assert (above.cancels, inner.cancels) == (1, name not in ("concat_map", "expand"))
    recorder.check()


MANY: dict[str, Callable[[], rsf.Stream[Any]]] = {
    "merge": lambda: rsf.merge(*(rsf.range_(n % 2) for n in range(5000)), prefetch=1),
    "zip": lambda: rsf.zip_(*(rsf.range_(20) for _ in range(1000)), prefetch=1).unbatch(),
    **{
        name: lambda name=name: made(  # type: ignore[misc]
            name,
            rsf.range_(5000),
            lambda n: rsf.from_iterable((-2,) if n >= 0 and n % 2 == 0 else ()),
        )
        for name in INNER
        if name != "switch_map"
    },
    "flat_map 1": lambda: rsf.range_(5000).flat_map(lambda n: rsf.range_(n % 2), concurrency=1),
    "concat_map 1": lambda: rsf.range_(5000).concat_map(lambda n: rsf.range_(n % 2), prefetch=1),
    "switch_map": lambda: rsf.range_(5000).switch_map(
        lambda n: rsf.from_iterable((n,)), prefetch=1
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_thousands_of_publishers_do_not_recurse(name: str) -> None:
    recorder = Recorder(request=1, on_next=lambda r, _x: r.subscription.request(1))
    MANY[name]().subscribe(recorder)
    assert recorder.terminal == ("on_complete",)
    assert len(recorder.elements) >= 2500
    assert recorder.max_depth == 1


# -- zip ------------------------------------------------------------------------------------------
def test_an_empty_one_completes_a_zip_without_a_request_and_cancels_the_others_once() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, rsf.empty(), b))
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert (a.subscribes, a.cancels) == (1, 1)
    assert b.subscribes == 0  # by then it was over
    recorder.subscription.cancel()
    assert a.cancels == 1


def test_zip_completes_as_soon_as_one_that_is_over_has_nothing_left() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, b), 2)
    send(a, 1, 2)
    a.subscriber.on_complete()
    assert b.cancels == 0
    send(b, 1)
    assert recorder.terminal is None
    send(b, 2)
    assert recorder.signals[1:] == [("on_next", (1, 1)), ("on_next", (2, 2)), ("on_complete",)]
    assert (a.cancels, b.cancels) == (0, 1)
    send(b, 3)
    b.subscriber.on_complete()
    recorder.check()


def test_the_end_of_the_one_that_is_behind_in_a_zip_is_seen_while_the_other_waits() -> None:
    a, b = ManualPublisher(), ManualPublisher()
    recorder = subscribed(rsf.zip_(a, b), rsf.UNBOUNDED)
    send(a, 1, 2, 3)
    send(b, 1)
    b.subscriber.on_complete()
    assert recorder.signals[1:] == [("on_next", (1, 1)), ("on_complete",)]
    assert (a.cancels, b.cancels) == (1, 0)


def test_one_that_is_ahead_in_a_zip_is_not_asked_further() -> None:
    a = ManualPublisher()
    subscribed(rsf.zip_(a, rsf.never(), prefetch=4), rsf.UNBOUNDED)
    send(a, 1, 2, 3, 4)
    assert a.requests == [4]
