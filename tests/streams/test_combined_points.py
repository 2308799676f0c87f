"""Combinations: what they keep when they are over, and how errors name their place."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Element, Living, start_thread, wait_for
from tests.rules.probes import Forgetful, ManualPublisher, Plain, send, subscribed
from tests.stepping import steps
from tests.streams.held import Hold, references_alone

UNBOUNDED = rsf.UNBOUNDED


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")  # it reports what was dropped


class Keeper:
    """A publisher that never drops its subscribers."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def subscribe(self, subscriber: Any, /) -> None:
        self.kept.append(subscriber)
        subscriber.on_subscribe(self)
        subscriber.on_next  # noqa: B018 - a bound method would keep it, too

    def request(self, n: int, /) -> None:
        pass

    def cancel(self) -> None:
        pass


WITH_KEEPER: dict[str, Callable[[Keeper], rsf.Stream[Any]]] = {
    "merge": lambda keeper: rsf.merge(keeper, rsf.range_(3), keeper),
    "merge delayed": lambda keeper: rsf.merge(keeper, rsf.range_(3), delay_error=True),
    "zip": lambda keeper: rsf.zip_(rsf.range_(3), keeper),
    "concat": lambda keeper: rsf.concat(keeper, rsf.range_(3)),
    "flat_map": lambda keeper: rsf.range_(3).flat_map(lambda _n: keeper),
    "flat_map outer": lambda keeper: rsf.from_publisher(keeper).flat_map(rsf.range_),
    "concat_map": lambda keeper: rsf.range_(3).concat_map(lambda _n: keeper),
    "concat_map outer": lambda keeper: rsf.from_publisher(keeper).concat_map(rsf.range_),
}


@pytest.mark.parametrize("end", ["cancel", "complete", "fail", "bad request"])
@pytest.mark.parametrize("name", WITH_KEEPER)
def test_nothing_keeps_the_subscriber_though_its_publishers_keep_theirs(
    name: str, end: str
) -> None:
    keeper = Keeper()
    subscriber = Plain()
    WITH_KEEPER[name](keeper).subscribe(subscriber)
    subscription = subscriber.subscription
    subscription.request(1)
    error = ValueError("from above")
    match end:
        case "cancel":
            subscription.cancel()
        case "bad request":
            subscription.request(0)
        case _:
            for link in keeper.kept:  # those that are opened by this are ended, too
                link.on_complete() if end == "complete" else link.on_error(error)
    gone = weakref.ref(subscriber)
    with references_alone():
        del subscriber
        if end in ("complete", "fail"):
            subscription.request(UNBOUNDED)  # what still waits
        assert gone() is None


@pytest.mark.parametrize("name", ["merge", "zip", "flat_map", "flat_map outer", "concat_map outer"])
def test_nothing_keeps_what_waits_after_cancel(name: str) -> None:
    keeper = Keeper()
    stream = WITH_KEEPER[name](keeper)
    if name.endswith("outer"):  # whose elements wait while the first is at work
        stream = getattr(rsf.from_publisher(keeper), name.removesuffix(" outer"))(
            lambda _e: rsf.never()
        )
    recorder = subscribed(stream, 1)
    link = keeper.kept[0]
    elements = [Element() for _ in range(3)]
    waiting = [weakref.ref(element) for element in elements[1:]]
    for element in elements:
        link.on_next(element)
    del element
    recorder.subscription.cancel()
    recorder.signals.clear()
    elements.clear()
    assert [gone() for gone in waiting] == [None, None]


@pytest.mark.parametrize("name", ["flat_map", "concat_map"])
def test_publishers_that_are_over_are_let_go(name: str) -> None:
    living, recorder = Living(), Forgetful(request=UNBOUNDED)
    options = {"concurrency": 4} if name == "flat_map" else {"prefetch": 4}
    with references_alone():
        getattr(rsf.range_(500), name)(
            lambda n: rsf.from_iterable([living.make(n)]), **options
        ).subscribe(recorder)
    assert (recorder.taken, living.alive.value) == (500, 0)
    assert living.most <= 6


class OneThenOver:
    """A publisher of one element that drops its subscribers, but tells which are alive."""

    def __init__(self) -> None:
        self.links: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most = 0

    def subscribe(self, subscriber: Any, /) -> None:
        self.links.add(subscriber)
        self.most = max(self.most, len(self.links))
        rsf.from_iterable((1,)).subscribe(subscriber)


@pytest.mark.parametrize("name", ["merge", "flat_map", "concat", "concat_map"])
def test_links_to_publishers_that_are_over_are_let_go(name: str) -> None:
    one = OneThenOver()
    stream = {
        "merge": lambda: rsf.merge(*[one] * 200, rsf.never()),
        "flat_map": lambda: rsf.range_(200).flat_map(lambda _n: one, concurrency=4),
        "concat": lambda: rsf.concat(*[one] * 3000, rsf.never()),
        "concat_map": lambda: rsf.range_(3000).concat_map(lambda _n: one),
    }[name]()
    with references_alone():
        recorder = subscribed(stream, UNBOUNDED)
    assert recorder.elements == [1] * (3000 if "concat" in name else 200)
    assert len(one.links) == 0
    assert one.most <= (200 if name == "merge" else 6)


@pytest.mark.parametrize("name", ["merge", "zip", "flat_map"])
def test_a_publisher_that_is_over_keeps_nothing_of_the_stream(name: str) -> None:
    keeper = Keeper()
    subscriber = Plain()
    stream: rsf.Stream[Any] = {
        "merge": lambda: rsf.merge(keeper, rsf.never()),
        "zip": lambda: rsf.zip_(rsf.range_(1), keeper),
        "flat_map": lambda: rsf.range_(1).merge(rsf.never()).flat_map(lambda _n: keeper),
    }[name]()
    stream.subscribe(subscriber)
    subscriber.subscription.request(2)
    (link,) = keeper.kept
    link.on_next(1)
    link.on_complete()
    gone = weakref.ref(subscriber.subscription)
    subscriber.subscription.cancel()
    del subscriber, stream
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "combine",
    [rsf.merge, rsf.zip_, lambda *sources: rsf.range_(3).flat_map(sources.__getitem__)],
)
def test_sources_are_cancelled_though_a_drain_drops_them_meanwhile(
    combine: Callable[..., rsf.Stream[Any]],
) -> None:
    """At any step of a cancel, the thread that drains sees it and drops all."""
    for step in steps(within="streams/engine/fan_in"):
        sources = [ManualPublisher() for _ in range(3)]
        hold = Hold()
        recorder = subscribed(combine(*sources), UNBOUNDED, on_next=hold)
        signalling = start_thread(lambda s=sources: [send(source, 1) for source in s])
        wait_for(hold.entered)
        with step.meanwhile(lambda h=hold, s=signalling: (h.leave.set(), s.result())):
            recorder.subscription.cancel()
        assert [source.cancels for source in sources] == [1, 1, 1], step


def test_combine_latest_and_race_are_factories_too() -> None:
    one, other = rsf.range_(1), rsf.range_(5, 6)
    assert rsf.combine_latest(one, other).to_list() == one.combine_latest(other).to_list()
    assert rsf.combine_latest(one).to_list() == [(0,)]
    assert rsf.race(rsf.never(), other).to_list() == [5]
    assert rsf.combine_latest().to_list() == rsf.race().to_list() == []
    for factory in (rsf.combine_latest, rsf.race):
        with pytest.raises(TypeError, match=r"publisher 1"):
            factory(3)  # type: ignore[operator]


@pytest.mark.parametrize("how", ["alone", "merge", "zip_"])
def test_an_error_of_map_async_names_the_element_that_failed(how: str) -> None:
    async def divide(n: int) -> float:
        return 6 / (n - 3)

    one, other = rsf.range_(8).map_async(divide), rsf.range_(4, 8).map_async(divide)
    stream: rsf.Stream[Any] = {
        "alone": one, "merge": rsf.merge(one, other), "zip_": rsf.zip_(other, one)
    }[how]  # fmt: skip
    with pytest.raises(ZeroDivisionError) as caught:
        stream.to_list()
    (note,) = caught.value.__notes__
    assert note.startswith("rstreams_fast: map_async(")
    assert note.endswith("divide) failed for the element 3")


def test_an_element_without_a_repr_and_one_error_for_all_take_at_most_one_note() -> None:
    class Dumb:
        def __repr__(self) -> str:
            raise ValueError

    error = ZeroDivisionError()

    async def fail(_element: object) -> int:
        raise error

    for element in (Dumb(), "x", "x"):
        with pytest.raises(ZeroDivisionError):
            rsf.from_iterable([element]).map_async(fail).to_list()
    notes = error.__notes__
    assert sum("'x'" in note for note in notes) == 1
    assert len(notes) <= 2
