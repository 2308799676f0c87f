"""Operators that several threads work on: one is held up between two of its steps."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import Element, Problem, start_thread, wait_for, wait_until
from tests.rules.probes import Clock, HandTimer, ManualPublisher, Recorder, send, subscribed
from tests.stepping import steps

UNBOUNDED = rsf.UNBOUNDED
CLOCK = "rstreams-fast-shared"  # how the names of the threads begin that do what is due


class HeldUp:
    """Stands for ``thing``, and holds up who is the first to have used ``name`` of it, in a thread
    whose name begins like that.
    """

    def __init__(self, thing: Any, name: str, thread: str, *, before: bool = False) -> None:
        self.thing = thing
        self.name = name
        self.thread = thread
        self.before = before  # or who is about to use it
        self.there, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.thing, name)
        if not callable(found):
            self.pass_by(name)
            return found

        def call(*args: Any) -> Any:
            if self.before:
                self.pass_by(name)
            result = found(*args)
            if not self.before:
                self.pass_by(name)
            return result

        return call

    def pass_by(self, name: str) -> None:
        mine = threading.current_thread().name.startswith(self.thread)
        if name == self.name and mine and not self.there.is_set():
            self.there.set()
            wait_for(self.go_on)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *raised: object) -> Any:
        return self.__getattr__("__exit__")(*raised)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")  # a record would keep an error


# -- switch_map ------------------------------------------------------------------------------------
def test_who_brings_an_element_does_not_cancel_the_publisher_opened_for_it() -> None:
    inner = ManualPublisher()
    senders = []

    class Outer(ManualPublisher):
        def request(self, n: int, /) -> None:
            super().request(n)
            senders.append(start_thread(lambda: send(self, 0), "sender"))
            wait_for(up.there)

    recorder = subscribed(rsf.from_publisher(Outer()).switch_map([inner].__getitem__))
    up = recorder.subscription._upward_wip = HeldUp(
        recorder.subscription._upward_wip, "enter", "sender"
    )
    recorder.subscription.request(1)  # and opens it, before the sender goes on
    assert inner.subscribes == 1
    up.go_on.set()
    senders[0].result()
    send(inner, "one")
    assert (inner.cancels, recorder.elements) == (0, ["one"])


@pytest.mark.parametrize("threads", [1, 2])
def test_it_does_not_complete_before_the_newest_that_came_while_it_delivered(threads: int) -> None:
    outer = ManualPublisher()
    at_work, go_on = threading.Event(), threading.Event()

    def end() -> None:
        send(outer, 1)
        outer.subscriber.on_complete()

    def switch(_recorder: Recorder, element: int) -> None:
        if element == 1 and threads == 1:
            end()
        elif element == 1:
            at_work.set()
            wait_for(go_on)

    recorder = Recorder(request=1, on_next=switch)
    inners = [rsf.range_(2), rsf.range_(7, 9)]
    rsf.from_publisher(outer).switch_map(inners.__getitem__).subscribe(recorder)
    send(outer, 0)
    asking = start_thread(lambda: recorder.subscription.request(5))
    if threads == 2:
        wait_for(at_work)
        end()
        go_on.set()
    asking.result()
    assert recorder.elements == [0, 1, 7, 8]
    assert recorder.terminal == ("on_complete",)


def test_an_element_that_is_opened_is_not_discarded_by_who_brings_the_next() -> None:
    discarded: list[Any] = []
    used: list[Any] = []
    asked, answer = threading.Event(), threading.Event()
    cancelling, cancelled = threading.Event(), threading.Event()

    class Slow(ManualPublisher):
        def request(self, n: int, /) -> None:
            super().request(n)
            if n > 1:
                asked.set()
                wait_for(answer)

        def cancel(self) -> None:
            super().cancel()
            cancelling.set()
            wait_for(cancelled)

    outer, inners = ManualPublisher(), [Slow(), ManualPublisher(), ManualPublisher()]
    elements = [["0"], ["1"], ["2"]]

    def fn(element: Any) -> Any:
        used.append(element)
        return inners[int(element[0])]

    recorder = subscribed(rsf.from_publisher(outer).switch_map(fn).on_discard(discarded.append))
    fan_in = recorder.subscription._subscription
    recorder.subscription.request(1)
    send(outer, elements[0])
    asker = start_thread(lambda: recorder.subscription.request(5))
    wait_for(asked)  # it works upward, and is in the first publisher's request
    up = fan_in._upward_wip = HeldUp(fan_in._upward_wip, "enter", "sender")
    sender = start_thread(lambda: send(outer, elements[1]), "sender")
    wait_for(up.there)
    answer.set()
    wait_for(cancelling)  # it switches to the second
    up.go_on.set()
    sender.result()
    send(outer, elements[2])
    cancelled.set()
    asker.result()
    assert [*discarded, *used[1:]] == [["1"], ["2"]]


def test_an_object_that_comes_twice_is_discarded_as_often_as_it_is_left_out() -> None:
    discarded: list[Any] = []
    outer, thing = ManualPublisher(), Element()
    stream = rsf.from_publisher(outer).switch_map(lambda _thing: ManualPublisher())
    subscribed(stream.on_discard(discarded.append), 5)
    send(outer, thing, thing)
    main, other = ManualPublisher(), ManualPublisher()
    stream = rsf.from_publisher(main).with_latest_from(other)
    recorder = subscribed(stream.on_discard(discarded.append), 5)
    for number in (1, 2):
        send(other, thing)
        send(main, number)
    assert (recorder.elements, discarded) == ([(1, thing), (2, thing)], [])


# -- parts -----------------------------------------------------------------------------------------
def test_a_group_that_is_made_while_another_is_taken_is_delivered() -> None:
    above = ManualPublisher()
    in_key, go_on = threading.Event(), threading.Event()

    def key(element: str) -> str:
        if element == "c":
            in_key.set()
            wait_for(go_on)
        return element

    below = subscribed(rsf.from_publisher(above).group_by(key), 1)
    send(above, "a", "b")  # a is delivered, b waits for demand
    sender = start_thread(lambda: send(above, "c"))
    wait_for(in_key)
    below.subscription.request(2)  # takes b out
    go_on.set()
    sender.result()
    assert [group.key for group in below.elements] == ["a", "b", "c"]


def test_who_closes_a_group_leaves_the_next_of_its_key_open() -> None:
    for step in steps():
        above = ManualPublisher()
        below = subscribed(rsf.from_publisher(above).group_by(lambda _: "k"), UNBOUNDED)
        send(above, 0)
        first = subscribed(below.elements[0].take(1))

        def close_and_open_another(first: Any = first, above: Any = above) -> None:
            first.subscription.cancel()
            send(above, 1)

        with step.meanwhile(close_and_open_another):
            first.subscription.request(1)  # take(1) ends it
        send(above, 2)
        assert len(below.elements) == 2, step


def test_a_part_keeps_no_error_that_comes_after_its_reader_has_left() -> None:
    for step in steps():
        above = ManualPublisher()
        below = subscribed(rsf.from_publisher(above).group_by(lambda _: "k"), UNBOUNDED)
        send(above, 0)
        part = below.elements[0]
        reader = subscribed(part, UNBOUNDED)
        errors = [Problem()]
        gone = weakref.ref(errors[0])
        with step.meanwhile(reader.subscription.cancel):
            above.subscriber.on_error(errors.pop())
        for recorder in (below, reader):
            recorder.signals.clear()
            recorder.terminal = None
        if gone() is not None:  # a cycle may hold it; a collection at each step takes minutes
            gc.collect()
        assert gone() is None, step
        assert part is not None


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_window_does_not_end_by_the_time_of_the_one_before(cancelled: bool) -> None:
    for step in steps():
        above, timer = ManualPublisher(), Clock()
        below = subscribed(rsf.from_publisher(above).window_time(10, timer=timer), UNBOUNDED)
        send(above, 0)
        if cancelled:
            subscribed(below.elements[0], UNBOUNDED).subscription.cancel()
            timer.advance(9)
            with step.meanwhile(lambda timer=timer: timer.advance(1)):
                send(above, 1)
        else:
            with step.meanwhile(lambda above=above: send(above, 1)):
                timer.advance(10)
        second = subscribed(below.elements[1], UNBOUNDED)
        timer.advance(1 if cancelled else 5)
        send(above, 2)
        found = (second.elements, second.terminal, len(below.elements))
        assert found == ([1, 2], None, 2), step


def test_who_is_late_to_look_for_readers_does_not_count_the_time_of_others() -> None:
    above, timer = ManualPublisher(), HandTimer()
    stream = rsf.from_publisher(above).group_by(lambda e: e, prefetch=1, patience=10, timer=timer)
    below = subscribed(stream, UNBOUNDED)
    deadline = below.subscription.capacity._clock
    held = HeldUp(timer, "now", CLOCK)
    deadline.now = held.now
    send(above, "a")  # nobody reads it
    timer.advance(10)
    wait_for(held.there)
    assert subscribed(below.elements[0], 1).elements == ["a"]
    send(above, "b")  # nobody reads this one, from now on
    held.go_on.set()
    wait_until(lambda: not deadline._working, "the look")
    assert below.terminal is None
    timer.advance(10)
    below.wait_terminal()


# -- time ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held", ["the clock", "the end"])
@pytest.mark.parametrize("operator", ["debounce", "sample"])
def test_the_last_element_is_not_lost_when_its_time_is_the_end(operator: str, held: str) -> None:
    for step in steps():
        above, timer = ManualPublisher(), Clock()
        below = subscribed(getattr(rsf.from_publisher(above), operator)(10, timer=timer), UNBOUNDED)
        send(above, "last")
        calls = [lambda timer=timer: timer.advance(10), above.subscriber.on_complete]
        first, second = calls if held == "the clock" else reversed(calls)
        with step.meanwhile(second):
            first()
        assert below.signals[1:] == [("on_next", "last"), ("on_complete",)], step


def test_a_deadline_of_delay_elements_that_is_late_takes_no_moment_but_its_own() -> None:
    above, timer = ManualPublisher(), HandTimer()
    below = subscribed(rsf.from_publisher(above).delay_elements(10, timer=timer), UNBOUNDED)
    fan_in = below.subscription
    send(above, "e1")
    first = fan_in._deadline
    late = first._work
    timer.advance(10)
    below.wait_elements(1)
    send(above, "e2")
    # The thread that delivered the first may still hold the drain, and be the one to see this.
    wait_until(lambda: fan_in._deadline not in (None, first), "the second deadline")
    second = fan_in._deadline
    work, second._work = second._work, lambda: None
    timer.advance(10)
    late()
    assert below.elements == ["e1"]
    work()
    below.wait_elements(2)
    assert below.elements == ["e1", "e2"]


# -- one after the other ---------------------------------------------------------------------------
def test_a_publisher_that_ends_on_two_threads_ends_once() -> None:
    for step in steps():
        a, b = ManualPublisher(), ManualPublisher()
        below = subscribed(rsf.concat(a, b), 5)
        with step.meanwhile(a.subscriber.on_complete), pytest.raises(TypeError):
            a.subscriber.on_next(None)
        if b.requests:  # it is its turn
            send(b, 1)
            assert below.elements == [1], step
        else:
            assert below.terminal is not None, step


def test_a_publisher_that_is_attached_after_its_end_takes_no_demand_of_the_next() -> None:
    class Silent(ManualPublisher):
        def subscribe(self, subscriber: Any, /) -> None:
            self.subscriber = subscriber

    for step in steps():
        a, b = Silent(), Silent()
        below = subscribed(rsf.concat(a, b))
        with step.meanwhile(a.subscriber.on_complete):
            a.subscriber.on_subscribe(a)
        below.subscription.request(5)
        b.subscriber.on_subscribe(b)
        assert b.requests == [5], step


def test_who_is_subscribed_again_while_two_cancels_are_under_way_hears_of_it() -> None:
    hub = rsf.MulticastProcessor[int](on_last_cancel="keep")
    first = HeldUp(hub._registry, "release", "first", before=True)
    second = HeldUp(first, "release", "second", before=True)
    again = HeldUp(second, "release", "again")
    hub._registry = again  # type: ignore[assignment]
    subscriptions: list[Any] = []

    class Subscriber(rsf.Subscriber[int]):
        def on_subscribe(self, subscription: Any, /) -> None:
            subscriptions.append(subscription)

        def on_next(self, element: int, /) -> None: ...
        def on_error(self, error: BaseException, /) -> None: ...
        def on_complete(self) -> None: ...

    subscriber = Subscriber()
    hub.subscribe(subscriber)
    threads = [start_thread(subscriptions[0].cancel, "first")]
    wait_for(first.there)
    threads.append(start_thread(lambda: hub.subscribe(subscriber), "again"))
    wait_for(again.there)
    hub.subscribe(subscriber)
    threads.append(start_thread(subscriptions[1].cancel, "second"))
    wait_for(second.there)
    for held in (again, first, second):
        held.go_on.set()
    for thread in threads:
        thread.result()
    assert len(subscriptions) == 3


# -- after the end ---------------------------------------------------------------------------------
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize(
    "operator", ["concat_map", "switch_map", "flat_map", "flat_map_sequential"]
)
def test_a_publisher_that_is_made_too_late_is_not_kept(operator: str, sequence: bool) -> None:
    outer = ManualPublisher()
    gone: list[Any] = []

    def fn(_element: Any) -> Any:
        recorder.subscription.cancel()
        thing = Element() if sequence else ManualPublisher()
        gone.append(weakref.ref(thing))
        return rsf.from_iterable([thing]) if sequence else thing

    recorder = subscribed(getattr(rsf.from_publisher(outer), operator)(fn))
    recorder.subscription.request(5)
    send(outer, 1)
    gc.collect()
    assert gone[0]() is None


@pytest.mark.parametrize("operator", ["concat", "retry"])
def test_an_error_is_not_kept_that_comes_with_a_cancel(operator: str) -> None:
    gone: list[Any] = []

    def answer(me: Any) -> None:
        error = Problem()
        gone.append(weakref.ref(error))
        me.subscriber.on_error(error)
        below.subscription.cancel()

    def when(_error: BaseException) -> bool:
        below.subscription.cancel()
        return True

    above = ManualPublisher(answer)
    stream: Any = rsf.concat(above, rsf.range_(3))
    if operator == "retry":
        stream = rsf.from_publisher(above).retry(3, when=when)
    below = subscribed(stream)
    below.subscription.request(1)
    gc.collect()
    assert gone[0]() is None


def test_with_latest_from_does_not_keep_a_source_that_it_never_asked() -> None:
    things = [Element()]
    gone = weakref.ref(things[0])
    below = subscribed(rsf.from_iterable(things).with_latest_from(ManualPublisher()), 5)
    del things
    below.subscription.cancel()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("waits", [False, True])
def test_on_overflow_keeps_no_error_that_comes_while_it_is_cancelled(waits: bool) -> None:
    for step in steps():
        above = ManualPublisher()
        below = subscribed(rsf.from_publisher(above).on_overflow(rsf.Overflow.BUFFER), 1)
        send(above, *[0, 1] * waits)
        errors = [Problem()]
        gone = weakref.ref(errors[0])
        with step.meanwhile(below.subscription.cancel):
            above.subscriber.on_error(errors.pop())
        below.signals.clear()
        below.terminal = None
        if gone() is not None:
            gc.collect()
        assert gone() is None, step


def test_an_error_is_reported_if_the_last_who_shares_leaves_before_it(dropped: list[Any]) -> None:
    for step in steps():
        source, error = ManualPublisher(), Problem()
        shared = rsf.from_publisher(source).multicast()
        recorder = subscribed(shared, 1)
        with step.meanwhile(recorder.subscription.cancel):
            source.subscriber.on_error(error)
        later = subscribed(shared)  # is told of an error that the stream ended with
        assert dropped.count(error) + (error is later.error) == 1, step
        assert recorder.error is None or later.error is error, step
        dropped.clear()
