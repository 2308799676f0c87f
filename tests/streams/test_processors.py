"""``processor(build)`` and ``SerializedProcessor``: a subscriber above, a publisher below."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast.streams.processors import SerializedProcessor, processor
from tests.helpers import run_threads, start_thread, wait_for
from tests.operators import USES
from tests.rules.probes import ManualPublisher, Recorder, subscribed

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

Build = Callable[[rf.Stream[Any]], rf.Stream[Any]]

BUILDS: dict[str, Build] = {
    "identity": lambda s: s,
    **{name: USES[name][1].same for name in ("Map", "PublishOn", "observed", "Multicast")},
}


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


#: A signal, and its argument.
ends = pytest.mark.parametrize(
    "end", [("on_complete",), ("on_error", ValueError("from upstream"))], ids=lambda end: end[0]
)


def square(s: rf.Stream[int]) -> rf.Stream[int]:
    return s.map(lambda x: x * x)


# -- processor(build) ------------------------------------------------------------------------------
@pytest.mark.parametrize("upstream_first", [True, False])
def test_both_sides_may_come_first(build: Build, upstream_first: bool) -> None:
    made, downstream = processor(build), Recorder(request=rf.UNBOUNDED)
    sides = [lambda: rf.range_(5).subscribe(made), lambda: made.subscribe(downstream)]
    for connect in sides if upstream_first else reversed(sides):
        connect()
    assert downstream.wait_terminal() == ("on_complete",)
    assert downstream.elements == [0, 1, 2, 3, 4]
    downstream.check()


@ends
@pytest.mark.parametrize("upstream", [True, False])
def test_who_comes_after_the_end_is_told(build: Build, end: Any, upstream: bool) -> None:
    made = processor(build)
    if upstream:
        ManualPublisher().subscribe(made)
    getattr(made, end[0])(*end[1:])
    for _ in range(2):
        downstream = subscribed(made)
        assert downstream.wait_terminal() == end
        downstream.check()


def test_a_second_subscriber_is_told_so() -> None:
    made = processor(square)
    first, second = subscribed(made, 9), subscribed(made, 9)
    assert isinstance(second.error, rf.AlreadySubscribedError)
    rf.range_(3).subscribe(made)
    assert first.elements == [0, 1, 4]
    first.check()
    second.check()


@pytest.mark.parametrize(
    "sharing", [lambda s: s.multicast(), lambda s: s.share(), lambda s: s.replay(count=9)]
)
def test_a_build_that_ends_in_sharing_serves_several(sharing: Build) -> None:
    made = processor(lambda s: sharing(square(s)))
    several = [subscribed(made) for _ in range(3)]
    for downstream in several:
        downstream.subscription.request(9)
    rf.range_(4).subscribe(made)
    for downstream in several:
        assert downstream.wait_terminal() == ("on_complete",)
        assert downstream.elements == [0, 1, 4, 9]
        downstream.check()


def test_a_second_subscription_is_cancelled(build: Build) -> None:
    made = processor(build)
    publishers = [ManualPublisher() for _ in range(4)]
    publishers[0].subscribe(made)
    publishers[1].subscribe(made)
    made.subscribe(Recorder())
    publishers[2].subscribe(made)
    made.on_complete()
    publishers[3].subscribe(made)
    assert [publisher.cancels for publisher in publishers] == [0, 1, 1, 1]


def test_cancel_goes_up_even_to_who_comes_later(build: Build) -> None:
    made = processor(build)
    subscribed(made, 2).subscription.cancel()
    upstream = ManualPublisher()
    upstream.subscribe(made)
    upstream.wait_cancelled()
    assert upstream.requests == []


def test_a_build_that_makes_no_stream_is_refused() -> None:
    for wrong in (None, 7):
        with pytest.raises(TypeError, match="build must be callable"):
            processor(wrong)  # type: ignore[arg-type]

    def no_stream(_stream: Any) -> Any:
        return []

    with pytest.raises(TypeError, match=r"no_stream must return a Stream, got list"):
        processor(no_stream)


def test_both_kinds_are_processors_and_cannot_be_pickled() -> None:
    for made in (processor(square), SerializedProcessor(), rf.MulticastProcessor()):
        assert isinstance(made, rf.Processor)
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(made)


@ends
def test_sides_and_signals_that_race_lose_nothing(build: Build, end: tuple[Any, ...]) -> None:
    for _ in range(60):
        made = processor(build)
        downstream = Recorder(request=rf.UNBOUNDED)

        def signal(made: Any = made) -> None:
            ManualPublisher().subscribe(made)
            getattr(made, end[0])(*end[1:])

        run_threads([signal, lambda made=made, below=downstream: made.subscribe(below)])
        assert downstream.wait_terminal() == end
        downstream.check()


def test_of_subscribers_that_race_one_is_served() -> None:
    for _ in range(40):
        made = processor(square)
        several = [Recorder(request=9) for _ in range(3)]
        run_threads([lambda d=d, made=made: made.subscribe(d) for d in several])
        rf.range_(3).subscribe(made)
        served = [d for d in several if d.error is None]
        assert [d.elements for d in served] == [[0, 1, 4]]
        for downstream in several:
            downstream.check()


def test_of_publishers_that_race_one_is_kept() -> None:
    for _ in range(40):
        made = processor(square)
        several = [ManualPublisher() for _ in range(3)]
        run_threads(
            [lambda p=p, made=made: p.subscribe(made) for p in several]
            + [lambda made=made: made.subscribe(Recorder(request=1))]
        )
        assert sorted(p.cancels for p in several) == [0, 1, 1]


# -- SerializedProcessor ---------------------------------------------------------------------------
class Held(rf.MulticastProcessor[int]):
    """A processor whose ``on_next`` waits, so that the mailbox in front of it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def on_next(self, element: int, /) -> None:
        self.entered.set()
        wait_for(self.go, "the go")
        super().on_next(element)


@pytest.mark.parametrize("on_full", ["error", "wait"])
def test_a_full_mailbox_is_an_error_or_waited_for(on_full: Any) -> None:
    held = Held()
    serialized = SerializedProcessor(held, capacity=2, on_full=on_full)
    downstream = subscribed(serialized, rf.UNBOUNDED)
    first = start_thread(lambda: serialized.on_next(0))
    wait_for(held.entered, "the first element")
    serialized.on_next(1)
    assert serialized.try_next(2) is rf.Emission.OK
    assert serialized.queued == 2
    assert serialized.try_next(3) is rf.Emission.FULL
    last = start_thread(lambda: serialized.on_next(3))
    if on_full == "error":
        last.result()
    held.go.set()
    first.result()
    last.result()
    if on_full == "error":
        downstream.wait_terminal()
        assert isinstance(downstream.error, rf.BufferOverflowError)
        assert serialized.try_next(4) is rf.Emission.TERMINATED
    else:
        serialized.on_complete()
        assert downstream.wait_terminal() == ("on_complete",)
        assert downstream.elements == [0, 1, 2, 3]
    downstream.check()


@pytest.mark.parametrize("end", ["on_complete", "last cancel"])
def test_who_sends_by_hand_can_see_that_nobody_listens_any_more(end: str) -> None:
    hub: rf.MulticastProcessor[int] = rf.MulticastProcessor()
    serialized = SerializedProcessor(hub)
    downstream = subscribed(serialized)
    assert (hub.ended, serialized.ended) == (False, False)
    if end == "on_complete":
        serialized.on_complete()
    else:
        downstream.subscription.cancel()
    assert (hub.ended, serialized.ended) == (True, True)
    assert not SerializedProcessor(processor(square)).ended  # which does not tell


def test_only_a_processor_can_be_serialized() -> None:
    with pytest.raises(TypeError, match="has no on_subscribe"):
        SerializedProcessor(rf.range_(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_full"):
        SerializedProcessor(on_full="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity"):
        SerializedProcessor(capacity=0)


def test_what_a_processor_that_has_ended_is_sent_is_told_to_be_lost() -> None:
    full = rf.SerializedProcessor(rf.MulticastProcessor[int](buffer_size=4))
    told = [full.try_next(n) for n in range(8)]
    assert told == [rf.Emission.OK] * 5 + [rf.Emission.TERMINATED] * 3  # the fifth ended it
    left = rf.SerializedProcessor[int, int]()
    rf.from_publisher(left).for_each(print).cancel()
    assert left.ended
    assert left.try_next(1) is rf.Emission.TERMINATED
