"""Two calls on a stream at once: at each step of one, the other is made by another thread.

Whatever the step, the end is the same as if the calls had come one after the other. Nothing is
lost, doubled or kept, no signal overlaps another, and each error has one taker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Problem
from tests.rules.probes import HandTimer, ManualPublisher, Recorder, subscribed
from tests.stepping import Step, pairs_of_steps, steps

Numbers = rsf.Stream[Any]
Build = Callable[[Numbers], Numbers]


class Number(float):
    """An element that a weak reference can watch."""


def items(element: int) -> Numbers:
    return rsf.from_iterable([element, element + 0.5])


STREAMS: dict[str, Build] = {
    "map": lambda s: s.map(lambda n: n),
    "filter": lambda s: s.filter(lambda n: n % 2 == 0),
    "scan": lambda s: s.scan(lambda a, b: a + b, 100),
    "take": lambda s: s.take(2),
    "batch": lambda s: s.batch(2).map(tuple),
    "batch with time": lambda s: s.batch(2, seconds=9, timer=HandTimer()).map(tuple),
    "batch by weight": lambda s: s.batch(9, max_bytes=2, weigher=lambda _: 1).map(tuple),
    "unbatch": lambda s: s.map(lambda n: [n, n + 0.5]).unbatch(),
    "publish_on": lambda s: s.publish_on("caller", prefetch=2),
    "publish_on late errors": lambda s: s.publish_on("caller", prefetch=4, delay_error=True),
    "publish_on by weight": lambda s: s.publish_on("caller", max_bytes=2, weigher=lambda _: 1),
    "on_overflow": lambda s: s.on_overflow(rsf.Overflow.BUFFER, capacity=9),
    "concat_map": lambda s: s.concat_map(items),
    "flat_map": lambda s: s.flat_map(items),
    "flat_map_sequential": lambda s: s.flat_map_sequential(items),
    "switch_map": lambda s: s.switch_map(items),
    "expand": lambda s: s.expand(lambda n: rsf.range_(int(n) % 2)),
    "merge": lambda s: s.merge(rsf.range_(100, 102)),
    "concat": lambda s: s.concat(rsf.range_(100, 102)),
    "zip": lambda s: s.zip(rsf.range_(100, 104)),
    "with_latest_from": lambda s: s.with_latest_from(rsf.range_(100, 102)),
    "combine_latest": lambda s: s.combine_latest(rsf.from_iterable([100])),
    "race": lambda s: s.race(rsf.never()),
    "take_until": lambda s: s.take_until(rsf.never()),
    "retry": lambda s: s.retry(1),
    "repeat": lambda s: s.repeat(1),
    "on_error_resume": lambda s: s.on_error_resume(lambda _: rsf.range_(100, 103)),
    "switch_if_empty": lambda s: s.switch_if_empty(rsf.range_(100, 103)),
    "timeout": lambda s: s.timeout(9, timer=HandTimer()),
    "debounce": lambda s: s.debounce(9, timer=HandTimer()),
    "window": lambda s: s.window(2).concat_map(lambda w: w.batch(2)).map(tuple),
    "group_by": lambda s: s.group_by(lambda n: n % 2).flat_map(lambda g: g),
    "multicast": lambda s: s.multicast(buffer_size=4),
    "share": lambda s: s.share(buffer_size=4),
    "replay": lambda s: s.replay(count=2, buffer_size=4),
}


class Scene:
    """A stream between a publisher and a subscriber, with three requested and one received."""

    def __init__(self, build: Build, discards: bool, first: int = 3) -> None:
        self.upstream = ManualPublisher()
        self.recorder = Recorder()
        self.error = Problem()
        self.sent = self.ends = 0
        self.failed = False
        self.elements: list[weakref.ref[Number]] = []
        self.discarded: list[str] = []
        stream = build(rsf.from_publisher(self.upstream))
        if discards:
            stream = stream.on_discard(lambda element: self.discarded.append(repr(element)))
        stream.subscribe(self.recorder)
        if first:
            self.recorder.subscription.request(first)
            self.element()

    def element(self) -> None:
        element = Number(self.sent)
        self.sent += 1
        self.elements.append(weakref.ref(element))
        self.upstream.subscriber.on_next(element)

    def request(self) -> None:
        self.recorder.subscription.request(2)

    def cancel(self) -> None:
        self.recorder.subscription.cancel()

    def complete(self) -> None:
        self.ends += 1
        self.upstream.subscriber.on_complete()

    def fail(self) -> None:
        self.failed = True
        self.ends += 1
        self.upstream.subscriber.on_error(self.error)

    @property
    def lives(self) -> bool:
        """Whether the publisher has a subscription that is neither cancelled nor over."""
        return self.upstream.subscribes > self.ends + self.upstream.cancels

    def settle(self) -> None:
        """Go on to the end."""
        while self.lives and self.upstream.requested > self.sent and self.sent < 5:
            self.element()
        while self.lives:
            self.complete()
        self.request()
        self.recorder.subscription.request(rsf.UNBOUNDED)

    def outcome(self, dropped: list[BaseException]) -> tuple[list[str], str]:
        """The elements, and the terminal signal."""
        recorder = self.recorder
        recorder.check()
        assert not self.lives
        assert self.upstream.cancels <= 1
        assert (recorder.error is self.error) + dropped.count(self.error) <= 1 + self.parts
        assert self.failed or not dropped
        elements = [repr(x) for x in recorder.elements]
        assert not set(elements) & set(self.discarded)
        terminal = repr(recorder.terminal)
        recorder.signals.clear()
        dropped.clear()
        return elements, terminal

    def keeps(self) -> list[Number]:
        """The elements that are alive though all is over."""
        return [element for reference in self.elements if (element := reference()) is not None]

    parts = 0


def play(build: Build, discards: bool, calls: list[str], dropped: list[BaseException]) -> Any:
    scene = Scene(build, discards)
    for call in calls:
        getattr(scene, call)()
    scene.settle()
    return scene.outcome(dropped)


BELOW = ["request", "cancel"]
ABOVE = ["element", "complete", "fail"]

#: One for each part of the engine; the others are for the slow lane.
FIRST = ["map", "publish_on late errors", "concat_map", "batch with time", "repeat", "window",
         "multicast", "zip discards"]  # fmt: skip
OVERLAPS = [("map", "element"), ("filter", "fail"), ("publish_on", "fail")]
CASES = [
    pytest.param(name, discards, id=case, marks=() if case in FIRST else pytest.mark.slow)
    for name in STREAMS
    for discards in (False, True)
    for case in [f"{name} discards" if discards else name]
]


@pytest.mark.parametrize("held", BELOW + ABOVE)
@pytest.mark.parametrize(("name", "discards"), CASES)
def test_two_calls_at_once_end_as_one_after_the_other(
    name: str, held: str, discards: bool, dropped: list[BaseException]
) -> None:
    for other in BELOW + ABOVE if held in BELOW else BELOW:
        check(name, held, other, steps(), dropped, discards=discards)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        pytest.param(name, held, marks=() if (name, held) in OVERLAPS else pytest.mark.slow)
        for name in ("map", "filter", "publish_on")
        for held in ("cancel", "fail", "element")
    ],
)
def test_two_calls_that_overlap_end_as_one_after_the_other(
    name: str, held: str, dropped: list[BaseException]
) -> None:
    for other in ("fail", "element") if held == "cancel" else ("cancel",):
        turns = pairs_of_steps(fine=(name, held) == ("map", "fail"))
        check(name, held, other, turns, dropped)


@pytest.mark.parametrize("name", ["map", "filter"])
def test_two_elements_at_once_are_both_delivered(name: str, dropped: list[BaseException]) -> None:
    """From a publisher that breaks the rules."""
    check(name, "element", "element", steps(), dropped)


def check(
    name: str,
    held: str,
    other: str,
    turns: Iterator[Step],
    dropped: list[BaseException],
    *,
    discards: bool = False,
) -> None:
    build = STREAMS[name]
    one, two = (play(build, discards, calls, dropped) for calls in ([held, other], [other, held]))
    short, long = sorted((one[0], two[0]), key=len)
    for step in turns:
        scene = Scene(build, discards)
        scene.parts = name in ("group_by", "window")  # one has a reader of its own
        with step.meanwhile(getattr(scene, other)):
            getattr(scene, held)()
        scene.settle()
        takers = (scene.recorder.error is scene.error) + dropped.count(scene.error)
        found = scene.outcome(dropped)
        what = f"{other} in {held}, {step}: {found}, not {one} or {two}"
        if name in ("map", "filter") and not discards:
            assert takers == scene.failed, what
        if held == other == "element":
            found[0].sort()
        if {held, other} & {"cancel", "fail"}:
            assert found[0][: len(short)] == short, what
            assert found[0] == long[: len(found[0])], what
            assert found[1] in (one[1], two[1]), what
        else:
            assert found in (one, two), what
        assert name == "replay" or not scene.keeps(), what


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_the_last_element_comes_before_the_end_while_a_seed_is_delivered(end: str) -> None:
    for step in steps(fine=True):
        scene = Scene(STREAMS["scan"], discards=False, first=0)
        recorder = scene.recorder = subscribed(
            STREAMS["scan"](rsf.from_publisher(scene.upstream)),
            on_next=lambda r, x: r.subscription.request(2) if x == 100 else None,
        )

        def last(scene: Scene = scene) -> None:
            if scene.upstream.requested:
                scene.element()
            getattr(scene, end)()

        with step.meanwhile(last):
            recorder.subscription.request(1)
        assert recorder.elements == [100, 100.0][: 1 + scene.sent] or end == "fail", step
        assert recorder.terminal is not None, step
        recorder.check()


def test_no_element_overtakes_a_seed() -> None:
    for step in steps():
        scene = Scene(STREAMS["scan"], discards=False, first=0)

        def ask_and_answer(scene: Scene = scene) -> None:
            scene.recorder.subscription.request(5)
            scene.element()

        with step.meanwhile(ask_and_answer):
            scene.recorder.subscription.request(1)
        assert scene.recorder.elements == [100, 100.0], step
        scene.recorder.check()
