"""``processor(build)`` and ``SerializedProcessor``: a subscriber above, a publisher below."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast.streams.processors import SerializedProcessor, processor
from tests.helpers import run_threads, wait_for
from tests.operators import USES
from tests.rules.probes import ManualPublisher, Recorder

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

Build = Callable[[rf.Stream[Any]], rf.Stream[Any]]

BUILDS: dict[str, Build] = {
    "identity": lambda s: s,
    **{name: USES[name][1].same for name in ("Map", "PublishOn", "observed", "Multicast")},
}


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def square(s: rf.Stream[int]) -> rf.Stream[int]:
    return s.map(lambda x: x * x)


# -- processor(build) ------------------------------------------------------------------------------
@pytest.mark.parametrize("upstream_first", [True, False])
def test_both_sides_may_come_first(build: Build, upstream_first: bool) -> None:
    made = processor(build)
    downstream = Recorder(request=rf.UNBOUNDED)
    steps = [lambda: rf.range_(5).subscribe(made), lambda: made.subscribe(downstream)]
    for step in steps if upstream_first else reversed(steps):
        step()
    assert downstream.wait_terminal() == ("on_complete",)
    assert downstream.elements == [0, 1, 2, 3, 4]
    downstream.check()


@pytest.mark.parametrize("failure", [None, ValueError("upstream failed")])
@pytest.mark.parametrize("subscribed", [True, False])
def test_who_comes_after_the_end_is_told(
    build: Build, failure: ValueError | None, subscribed: bool
) -> None:
    made = processor(build)
    if subscribed:
        ManualPublisher().subscribe(made)
    if failure is None:
        made.on_complete()
    else:
        made.on_error(failure)
    for _ in range(2):
        downstream = Recorder()
        made.subscribe(downstream)
        terminal = downstream.wait_terminal()
        assert terminal == (("on_complete",) if failure is None else ("on_error", failure))
        downstream.check()


def test_a_second_subscriber_is_told_so() -> None:
    made = processor(square)
    first, second = Recorder(request=9), Recorder(request=9)
    made.subscribe(first)
    made.subscribe(second)
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
    several = [Recorder() for _ in range(3)]
    for downstream in several:
        made.subscribe(downstream)
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
    downstream = Recorder(request=2)
    made.subscribe(downstream)
    downstream.subscription.cancel()
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


@pytest.mark.parametrize("end", ["complete", "error"])
def test_sides_and_signals_that_race_lose_nothing(build: Build, end: str) -> None:
    for _ in range(60):
        made = processor(build)
        downstream = Recorder(request=rf.UNBOUNDED)
        failure = ValueError("from upstream")

        def signal(made: Any = made, failure: BaseException = failure) -> None:
            ManualPublisher().subscribe(made)
            if end == "complete":
                made.on_complete()
            else:
                made.on_error(failure)

        def subscribe(made: Any = made, downstream: Recorder = downstream) -> None:
            made.subscribe(downstream)

        run_threads([signal, subscribe])
        expected = ("on_complete",) if end == "complete" else ("on_error", failure)
        assert downstream.wait_terminal() == expected
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
class Held:
    """A processor whose ``on_next`` waits, so that the mailbox in front of it fills."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.inner = rf.MulticastProcessor[int]()
        self.on_subscribe = self.inner.on_subscribe
        self.on_error = self.inner.on_error
        self.on_complete = self.inner.on_complete
        self.subscribe = self.inner.subscribe

    def on_next(self, element: int) -> None:
        self.entered.set()
        wait_for(self.go, "the go")
        self.inner.on_next(element)


def held_and_full(on_full: Any) -> tuple[Held, SerializedProcessor[int, int], Recorder, Any]:
    held = Held()
    serialized = SerializedProcessor(held, capacity=2, on_full=on_full)
    downstream = Recorder(request=rf.UNBOUNDED)
    serialized.subscribe(downstream)
    first = threading.Thread(target=serialized.on_next, args=(0,))
    first.start()
    wait_for(held.entered, "the first element")
    serialized.on_next(1)
    assert serialized.try_next(2) is rf.Emission.OK
    assert serialized.queued == 2
    assert serialized.try_next(3) is rf.Emission.FULL
    return held, serialized, downstream, first


def test_a_full_mailbox_is_an_error() -> None:
    held, serialized, downstream, first = held_and_full("error")
    serialized.on_next(3)
    held.go.set()
    first.join()
    downstream.wait_terminal()
    assert isinstance(downstream.error, rf.BufferOverflowError)
    assert serialized.try_next(4) is rf.Emission.TERMINATED
    downstream.check()


def test_a_full_mailbox_may_be_waited_for() -> None:
    held, serialized, downstream, first = held_and_full("wait")
    waiting = threading.Thread(target=serialized.on_next, args=(3,))
    waiting.start()
    held.go.set()
    first.join()
    waiting.join()
    serialized.on_complete()
    downstream.wait_terminal()
    assert downstream.elements == [0, 1, 2, 3]
    downstream.check()


@pytest.mark.parametrize("end", ["on_complete", "last cancel"])
def test_who_sends_by_hand_can_see_that_nobody_listens_any_more(end: str) -> None:
    hub: rf.MulticastProcessor[int] = rf.MulticastProcessor()
    serialized = SerializedProcessor(hub)
    downstream = Recorder()
    serialized.subscribe(downstream)
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
