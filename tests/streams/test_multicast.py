"""Multicast: one bounded buffer, one upstream subscription, the same elements for all."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest

import rstreams_fast as rsf
from rstreams_fast import MulticastProcessor
from rstreams_fast.errors import (
    AlreadySubscribedError,
    BufferOverflowError,
    DemandExceededError,
)
from tests.helpers import DEADLINE, Element, calls_of, start_thread, wait_for
from tests.rules.probes import Forgetful, ManualPublisher, Plain, Recorder, raising, subscribed
from tests.stepping import steps
from tests.streams.held import Hold, references_alone

ALL = rsf.UNBOUNDED


def attached(**options: Any) -> tuple[ManualPublisher, MulticastProcessor[Any]]:
    publisher, processor = ManualPublisher(), MulticastProcessor[Any](**options)
    publisher.subscribe(processor)
    return publisher, processor


def feed(processor: Any, elements: Any) -> None:
    for element in elements:
        processor.on_next(element)


def test_more_is_asked_for_while_a_slow_subscriber_is_still_at_it() -> None:
    publisher, processor = attached(buffer_size=8)
    asked: list[int] = []
    feed(processor, range(8))  # unasked
    subscribed(processor, ALL, on_next=lambda _r, _x: asked.append(publisher.requested))
    assert asked == [0, 0, 0, 0, 0, 0, 6, 6]  # when three quarters were had
    assert publisher.requested == 6


@pytest.mark.usefixtures("fast_sources")
def test_a_burst_is_taken_at_one_go_and_asked_for_at_one_go() -> None:
    shared = rsf.range_(20_000).multicast(min_subscribers=2)
    first, second = Forgetful(request=ALL), Forgetful(request=ALL)
    shared.subscribe(first)
    calls = calls_of(lambda: shared.subscribe(second))
    assert first.taken == second.taken == 20_000
    assert calls < 2 * 20_000 + 20_000 / 5  # one for each on_next, and those for the bursts


def test_a_blocked_subscriber_does_not_keep_from_others_what_it_has_made_room_for() -> None:
    """It is in the middle of its slice, and waits there for another that needs the room."""
    processor = MulticastProcessor[int](buffer_size=64)
    reached = threading.Event()

    def note(_recorder: Recorder, element: int) -> None:
        if element == 72:
            reached.set()

    far = Recorder(request=ALL, on_next=note)
    near = Recorder(on_next=lambda _r, x: wait_for(reached, "element 72") if x == 10 else None)
    processor.subscribe(near)
    processor.subscribe(far)
    rsf.range_(100).subscribe_on().subscribe(processor)
    far.wait_elements(64)
    near.subscription.request(ALL)
    near.wait_terminal()
    far.wait_terminal()
    assert near.elements == far.elements == list(range(100))


@pytest.mark.parametrize("n", [12, 16])
def test_room_is_asked_for_though_another_thread_asked_when_the_elements_came(n: int) -> None:
    """It is over when the elements have been had; after 12, no others come to have it repaired."""
    hold = Hold()

    def finish_asking(_recorder: Recorder, element: int) -> None:
        if element == 10:
            hold.leave.set()
            asker.result()

    processor = MulticastProcessor[int](buffer_size=16)
    upstream = ManualPublisher(lambda me: len(me.requests) == 1 and hold())
    upstream.subscribe(processor)
    recorder = subscribed(processor, on_next=finish_asking)
    asker = start_thread(lambda: recorder.subscription.request(100))
    wait_for(hold.entered, "the request")
    for first in range(0, n, 4):
        processor.burst += range(first, first + 4)
        processor.on_burst()
    assert recorder.elements == list(range(n))
    assert upstream.requested > 16


def test_an_element_that_a_request_brings_comes_after_those_in_the_buffer() -> None:
    processor = MulticastProcessor[int](buffer_size=8)
    upstream = ManualPublisher(lambda me: processor.on_next(3) if len(me.requests) == 2 else None)
    upstream.subscribe(processor)
    recorder = subscribed(processor, 1)
    feed(processor, range(3))  # nobody has asked for all of them
    recorder.subscription.request(10)
    assert recorder.elements == [0, 1, 2, 3]


def test_who_comes_while_the_slow_are_dropped_does_not_lag_as_they_do() -> None:
    _, processor = attached(buffer_size=2, slow="drop")
    late: list[Recorder] = []

    class ComesAgain(Recorder):
        def on_error(self, error: BaseException, /) -> None:
            super().on_error(error)
            late.append(subscribed(processor))

    slow = [ComesAgain(), ComesAgain()]
    for recorder in slow:
        processor.subscribe(recorder)
    fast = subscribed(processor, ALL)
    feed(processor, range(3))
    assert [type(recorder.error) for recorder in slow] == [BufferOverflowError] * 2
    (figures,) = rsf.metrics_of(fast.subscription)
    assert (figures.held, figures.max_held) == (2, 2)
    for recorder in late:
        recorder.subscription.request(ALL)
    feed(processor, [3])
    assert fast.elements == [0, 1, 2, 3]
    assert [recorder.elements for recorder in late] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("on_last_cancel", ["shut_down", "keep"])
def test_who_subscribes_to_a_failed_publisher_gets_the_error_at_once(on_last_cancel: str) -> None:
    _, processor = attached(on_last_cancel=on_last_cancel)
    slow, error = subscribed(processor), ValueError("broken")
    processor.on_next(1)
    processor.on_error(error)
    assert slow.signals == [("on_subscribe",), ("on_error", error)]
    assert subscribed(processor, ALL).signals == [("on_subscribe",), ("on_error", error)]


def test_what_is_left_of_a_completed_publisher_still_goes_to_who_comes_late() -> None:
    _, processor = attached(buffer_size=4)
    slow = subscribed(processor, 1)
    feed(processor, range(3))
    processor.on_complete()
    late = subscribed(processor)
    assert late.terminal is None
    late.subscription.request(2)
    assert late.signals[1:] == [("on_next", 1), ("on_next", 2), ("on_complete",)]
    slow.subscription.request(2)
    assert slow.terminal == ("on_complete",)
    assert subscribed(processor).signals == [("on_subscribe",), ("on_complete",)]


def test_a_shut_down_before_upstream_came_cancels_it_when_it_comes() -> None:
    publisher, processor = ManualPublisher(), MulticastProcessor[int]()
    subscribed(processor, 3).subscription.cancel()
    publisher.subscribe(processor)
    assert publisher.cancels == 1
    assert publisher.requests == []


@pytest.mark.parametrize("signal", ["on_subscribe", "on_next"])
def test_one_who_raises_counts_as_cancelled(signal: str, dropped: list[BaseException]) -> None:
    publisher, processor = attached()
    boom = OSError("the subscriber's own")
    subscribed(processor, ALL, raises=(signal, boom))
    processor.on_next(1)
    assert (dropped, publisher.cancels) == ([boom], 1)


def test_one_who_makes_a_bad_request_leaves_the_others_alone() -> None:
    publisher, processor = attached()
    stays = subscribed(processor, ALL)
    assert isinstance(subscribed(processor, 0).error, ValueError)
    assert (stays.terminal, publisher.cancels) == (None, 0)


def test_a_subscriber_that_is_subscribed_twice_is_told_and_has_ended() -> None:
    publisher, processor = attached()
    recorder, other = subscribed(processor, ALL), subscribed(processor, ALL)
    processor.on_next(1)
    processor.subscribe(recorder)
    assert isinstance(recorder.error, AlreadySubscribedError)
    assert "§1.10" in str(recorder.error)
    processor.on_next(2)
    assert recorder.elements == [1]
    recorder.check()  # one on_subscribe, nothing after the end
    assert other.elements == [1, 2]
    assert publisher.cancels == 0


class ByValue(Recorder):
    """Equal to others of its name."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.name = name

    def __eq__(self, other: object) -> Any:
        return isinstance(other, ByValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def test_equal_subscribers_are_the_same_and_the_second_is_refused() -> None:
    _, processor = attached()
    first, second, other = (ByValue(name, request=ALL) for name in ("a", "a", "b"))
    for recorder in (first, second, other):
        processor.subscribe(recorder)
    assert isinstance(second.error, AlreadySubscribedError)
    assert [signal[0] for signal in second.signals] == ["on_subscribe", "on_error"]
    processor.on_next(1)
    assert first.elements == other.elements == [1]
    assert second.elements == []
    first.subscription.cancel()
    third = ByValue("a", request=ALL)
    processor.subscribe(third)
    processor.on_next(2)
    assert third.elements == [2]


def odd(**methods: Any) -> type[Recorder]:
    """A kind of subscribers with other comparisons."""
    return type("Odd", (Recorder,), {"__hash__": lambda _self: 1} | methods)


SAME = odd(__eq__=lambda _self, _other: NotImplemented)  # leaves the answer to the other
EQUAL = odd(__eq__=lambda _self, _other: True)
ONE_SIDED = odd(__eq__=lambda self, _other: hasattr(self, "claims"))
RAISING = odd(__eq__=Mock(side_effect=OSError), __bool__=Mock(side_effect=OSError))
NO_HASH = odd(__hash__=Mock(side_effect=KeyError))
VAGUE = odd(__eq__=lambda _self, _other: "perhaps")
ANOTHER_HASH = odd(
    __eq__=lambda _self, _other: False, __hash__=lambda _self: random.getrandbits(60)
)


@pytest.mark.parametrize("claims", [0, 1])
@pytest.mark.parametrize(
    "kinds",
    [
        (RAISING, RAISING),
        (NO_HASH, NO_HASH),
        (VAGUE, VAGUE),
        (ANOTHER_HASH, ANOTHER_HASH),
        (SAME, EQUAL),  # equal, but of another kind
        (ONE_SIDED, ONE_SIDED),
    ],
)
def test_equality_that_cannot_be_trusted_counts_for_nothing(
    kinds: tuple[type[Recorder], type[Recorder]], claims: int
) -> None:
    _, processor = attached()
    recorders: list[Any] = [kind(request=ALL) for kind in kinds]
    recorders[claims].claims = True
    for recorder in recorders:
        processor.subscribe(recorder)
    processor.on_next(1)
    assert [recorder.elements for recorder in recorders] == [[1], [1]]
    processor.subscribe(recorders[1])  # but identity does
    assert isinstance(recorders[1].error, AlreadySubscribedError)
    for recorder in recorders:
        recorder.subscription.cancel()


def test_equality_may_use_the_publisher() -> None:
    """A method of a subscriber is user code: no lock is held while it runs."""
    _, processor = attached()
    visitors: list[Recorder] = []

    class Busy(Recorder):
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> Any:
            visitors.append(subscribed(processor, ALL))
            return False

    first, second = Busy(request=ALL), Busy(request=ALL)
    processor.subscribe(first)
    processor.subscribe(second)
    processor.on_next(1)
    assert visitors
    assert all(recorder.elements == [1] for recorder in (first, second, *visitors))


@pytest.mark.parametrize("with_subscriber", [True, False])
def test_more_than_was_asked_for_and_fits_ends_it_all(with_subscriber: bool) -> None:
    publisher, processor = attached(buffer_size=3)
    recorder = subscribed(processor) if with_subscriber else None
    feed(processor, range(3))
    assert publisher.cancels == 0
    feed(processor, range(10))
    assert publisher.cancels == 1
    recorder = recorder or subscribed(processor)
    assert isinstance(recorder.error, DemandExceededError)
    assert "§1.1" in str(recorder.error)
    recorder.check()


def test_subscribers_may_come_and_go_from_within_on_next() -> None:
    _, processor = attached(buffer_size=8)
    late: list[Recorder] = []

    def invite(_recorder: Recorder, element: int) -> None:
        if element == 2:
            late.append(subscribed(processor, ALL))
        elif element == 4:
            second.subscription.cancel()

    first = subscribed(processor, ALL, on_next=invite)
    second = subscribed(processor, ALL)
    feed(processor, range(6))
    assert first.elements == list(range(6))
    assert second.elements == [0, 1, 2, 3]
    assert late[0].elements == [3, 4, 5]  # the one before was being delivered
    for recorder in (first, second, *late):
        recorder.check()


@pytest.mark.parametrize("signal", ["on_subscribe", "on_next", "on_error", "on_complete"])
def test_what_one_raises_the_others_never_see(signal: str, dropped: list[BaseException]) -> None:
    _, processor = attached()
    boom = RuntimeError("the subscriber's own")
    before = subscribed(processor, 9)
    raising = subscribed(processor, 9, raises=(signal, boom))
    after = subscribed(processor, 9)
    feed(processor, range(2))
    end = ValueError("the end") if signal == "on_error" else None
    processor.on_complete() if end is None else processor.on_error(end)
    assert dropped == [boom]
    assert raising.signals[-1][0] == signal
    for recorder in (before, after):
        assert recorder.elements == [0, 1]
        assert recorder.terminal == (("on_complete",) if end is None else ("on_error", end))


@pytest.mark.parametrize("signal", ["on_next", "on_error", "on_complete"])
def test_an_interrupt_leaves_and_everybody_is_told(signal: str) -> None:
    publisher, processor = attached()
    interrupt = KeyboardInterrupt()
    before = subscribed(processor, 9)
    subscribed(processor, 9, raises=(signal, interrupt))
    after = subscribed(processor, 9)
    args = {"on_next": (1,), "on_error": (ValueError(),), "on_complete": ()}[signal]
    with pytest.raises(KeyboardInterrupt):
        getattr(processor, signal)(*args)
    for recorder in (before, after):
        assert recorder.terminal is not None
        if signal == "on_next":
            assert recorder.error is interrupt
        recorder.check()
    assert publisher.cancels == (1 if signal == "on_next" else 0)
    assert subscribed(processor).terminal is not None


@pytest.mark.parametrize("leaves_from", ["request", "subscribe"])
def test_an_interrupt_that_leaves_upstream_reaches_everybody(leaves_from: str) -> None:
    class Interrupted(ManualPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            super().subscribe(subscriber)
            if leaves_from == "subscribe":
                raise KeyboardInterrupt

    source = Interrupted(raising(KeyboardInterrupt()))
    shared = rsf.from_publisher(source).multicast(min_subscribers=2)
    idle, asking = subscribed(shared), Recorder(request=1)
    with pytest.raises(KeyboardInterrupt):
        shared.subscribe(asking)
    assert isinstance(idle.error, KeyboardInterrupt)
    assert isinstance(asking.error, KeyboardInterrupt)
    assert source.cancels == 1


needs_counting = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)


@needs_counting
@pytest.mark.parametrize("how", ["error", "drop", "twice", "upstream breaks off"])
def test_nothing_keeps_a_subscriber_that_has_failed(how: str) -> None:
    publisher, processor = attached(buffer_size=4, slow="drop")
    stays, subscriber = subscribed(processor, ALL), Plain()
    processor.subscribe(subscriber)
    subscription = subscriber.subscription
    with references_alone():
        if how == "drop":
            feed(processor, range(10))
        subscription.request(2)
        feed(processor, range(2))
        if how == "error":
            processor.on_error(ValueError("broken"))
        elif how == "twice":
            processor.subscribe(subscriber)
        elif how == "upstream breaks off":
            with pytest.raises(TypeError):
                processor.on_next(None)
        assert subscriber.error is not None
        gone = weakref.ref(subscriber)
        subscriber.subscription = subscriber.error = None
        del subscriber
        assert gone() is None, gc.get_referrers(gone())
    assert (subscription, stays, publisher) is not None  # all others were kept on purpose


@needs_counting
def test_an_element_is_gone_when_all_have_had_it() -> None:
    _, processor = attached(buffer_size=8)
    fast, slow = Plain(), Plain()
    processor.subscribe(fast)
    processor.subscribe(slow)
    fast.subscription.request(ALL)
    alive = []
    for _ in range(6):
        element = Element()
        alive.append(weakref.ref(element))
        processor.on_next(element)
        del element
    assert all(reference() is not None for reference in alive)
    slow.subscription.request(4)
    assert [reference() is None for reference in alive] == [True] * 4 + [False] * 2
    slow.subscription.cancel()
    assert all(reference() is None for reference in alive)


@needs_counting
@pytest.mark.parametrize(
    ("on_last_cancel", "how"),
    [
        *product(["shut_down", "keep", "restart"], ["complete", "error"]),
        *product(["shut_down", "restart"], ["cancel"]),
    ],
)
@pytest.mark.parametrize("operator", ["multicast", "replay"])
def test_a_shared_stream_that_is_over_needs_no_collector(
    operator: str, on_last_cancel: str, how: str
) -> None:
    publisher, subscriber, element = ManualPublisher(), Plain(), Element()
    stream = rsf.from_publisher(publisher)
    bounds: dict[str, Any] = {"count": 2} if operator == "replay" else {}
    shared = getattr(stream, operator)(on_last_cancel=on_last_cancel, **bounds)
    with references_alone():
        shared.subscribe(subscriber)
        subscriber.subscription.request(2)
        publisher.subscriber.on_next(element)
        hub = weakref.ref(publisher.subscriber)
        if how == "complete":
            publisher.subscriber.on_complete()
        elif how == "error":
            publisher.subscriber.on_error(ValueError("broken"))
        else:
            subscriber.subscription.cancel()
        publisher.subscriber = None  # what it does not need any more
        gone = weakref.ref(element)
        del element, shared, stream
        assert gone() is None, gc.get_referrers(gone())
        assert hub() is None, gc.get_referrers(hub())


@pytest.mark.parametrize("operator", ["multicast", "replay"])
def test_a_source_is_cancelled_when_all_who_share_it_have_been_forgotten(operator: str) -> None:
    publisher = ManualPublisher()
    bounds: dict[str, Any] = {"count": 2} if operator == "replay" else {}
    shared = getattr(rsf.from_publisher(publisher), operator)(on_last_cancel="keep", **bounds)
    recorder = subscribed(shared, 3)
    publisher.subscriber.on_next(1)
    recorder.subscription.cancel()
    assert (publisher.cancels, publisher.requested) == (0, 3)
    del shared, recorder
    hub, publisher.subscriber = weakref.ref(publisher.subscriber), None
    gc.collect()
    assert hub() is None
    assert publisher.cancels == 1


@pytest.mark.parametrize("how", ["complete", "error", "shut down", "unconnected"])
def test_a_source_that_is_over_is_not_cancelled_by_the_collector(how: str) -> None:
    if how == "unconnected":
        publisher, processor = ManualPublisher(), MulticastProcessor[int]()
        subscribed(processor, 1)
    else:
        publisher, processor = attached()
        recorder = subscribed(processor, 1)
        if how == "complete":
            processor.on_complete()
        elif how == "error":
            processor.on_error(ValueError("broken"))
        else:
            recorder.subscription.cancel()
        del recorder
    before = publisher.cancels
    assert before == (how == "shut down")
    gone, publisher.subscriber = weakref.ref(processor), None
    del processor
    gc.collect()
    assert gone() is None
    assert publisher.cancels == before


def test_a_source_on_a_loop_is_closed_when_all_who_share_it_have_been_forgotten() -> None:
    said_by_loop: list[Any] = []

    async def share() -> None:
        came, closed = asyncio.Event(), asyncio.Event()

        async def numbers() -> AsyncIterator[int]:
            try:
                for number in range(100):
                    yield number
            finally:
                closed.set()

        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, said: said_by_loop.append(said)
        )
        shared = rsf.from_async_iterable(numbers).multicast(on_last_cancel="keep")
        recorder = subscribed(shared, 3, on_next=lambda _recorder, _number: came.set())
        await came.wait()
        recorder.subscription.cancel()
        await asyncio.sleep(0)  # the loop has dropped it
        del shared, recorder
        gc.collect()
        await closed.wait()

    asyncio.run(asyncio.wait_for(share(), DEADLINE))
    assert said_by_loop == []


def test_who_leaves_before_the_source_began_does_not_count() -> None:
    publisher = ManualPublisher()
    shared = rsf.from_publisher(publisher).multicast(min_subscribers=2)
    subscribed(shared).subscription.cancel()
    first = subscribed(shared, 1)
    assert publisher.subscribes == 0
    second = subscribed(shared, 1)
    assert (publisher.subscribes, publisher.cancels) == (1, 0)
    publisher.subscriber.on_next(1)
    assert first.elements == second.elements == [1]


def test_a_shared_stream_starts_anew_after_the_last_has_left() -> None:
    publisher = ManualPublisher()
    shared = rsf.from_publisher(publisher).share()
    first, second = subscribed(shared, ALL), subscribed(shared, ALL)
    publisher.subscriber.on_next(1)
    first.subscription.cancel()
    second.subscription.cancel()
    assert (publisher.subscribes, publisher.cancels) == (1, 1)
    third = subscribed(shared, ALL)
    publisher.subscriber.on_next(2)
    assert (publisher.subscribes, publisher.cancels) == (2, 1)
    assert third.elements == [2]
    assert first.elements == second.elements == [1]


def test_one_is_the_same_subscriber_also_for_the_source_that_was_started_anew() -> None:
    publisher = ManualPublisher()
    shared = rsf.from_publisher(publisher).share(buffer_size=4)
    recorder = subscribed(shared)
    publisher.subscriber.on_next(1)
    publisher.subscriber.on_complete()
    other = subscribed(shared)  # the first has not had its element yet
    shared.subscribe(recorder)
    assert isinstance(recorder.error, AlreadySubscribedError)
    recorder.check()
    assert other.terminal is None


@pytest.mark.parametrize(
    "call",
    [
        lambda fast, _other: fast.subscription.request(1),
        lambda _fast, other: other.subscription.cancel(),
    ],
    ids=["request", "cancel"],
)
def test_who_leaves_while_others_are_looked_at_gates_no_more(call: Callable[..., object]) -> None:
    for step in steps():
        publisher, processor = attached(buffer_size=2)
        fast, other, slow = (subscribed(processor, demand) for demand in (ALL, ALL, ...))
        feed(processor, range(2))
        assert publisher.requested == 2
        with step.meanwhile(slow.subscription.cancel):
            call(fast, other)
        assert publisher.requested == 4, step


@pytest.mark.parametrize("which", ["same", "equal"])
def test_who_has_cancelled_may_come_again_before_that_was_acted_on(which: str) -> None:
    for step in steps():
        _, processor = attached(on_last_cancel="keep")
        first = ByValue("a", request=ALL)
        again = first if which == "same" else ByValue("a", request=ALL)
        processor.subscribe(first)
        subscription = first.subscription

        def come_again(
            processor: Any = processor, subscription: Any = subscription, again: Any = again
        ) -> None:
            subscription.cancel()  # which another thread is about to see to
            again.subscription = None
            processor.subscribe(again)

        with step.meanwhile(come_again):
            subscription.cancel()
        processor.on_next(1)
        assert again.signals[-2:] == [("on_subscribe",), ("on_next", 1)], step
        again.check()
