"""What another thread does between two steps of a run that is pushed, done there by hand."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.upstream import Upstream
from tests.helpers import Element, start_thread, wait_for, wait_gone
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

PROBLEM = ValueError("problem")


class Watched:
    """In place of a slot: says, once, that it was read here and what was found."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self._slot = PushSubscription.__dict__[name]
        self._reader = threading.get_ident()
        self.then: Callable[[Any, Any], bool] | None = None  # false: not yet
        patch.setattr(PushSubscription, name, self)

    def __get__(self, owner: Any, _kind: type) -> Any:
        value = self._slot.__get__(owner)
        then = self.then
        if then is not None and threading.get_ident() == self._reader:
            self.then = None
            if not then(owner, value):
                self.then = then
        return value

    def __set__(self, owner: Any, value: Any) -> None:
        self._slot.__set__(owner, value)


class Backlog(deque[Any]):
    """Calls ``when_empty`` when it has been found empty, before that can be acted on."""

    when_empty: Callable[[], object] | None = None

    def __bool__(self) -> bool:
        some = len(self) > 0
        call = self.when_empty
        if not some and call is not None:
            self.when_empty = None
            call()
        return some


def elsewhere(call: Callable[[], object]) -> None:
    """Have it done by another thread, and wait for that."""
    start_thread(call).result()


# -- what comes last -------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [None, PROBLEM])
def test_an_element_and_the_end_may_come_while_the_drain_finds_nothing_to_do(
    error: BaseException | None,
) -> None:
    upstream = ManualPublisher()

    def publish() -> None:
        upstream.subscriber.on_next(1)
        if error is None:
            upstream.subscriber.on_complete()
        else:
            upstream.subscriber.on_error(error)

    def on_next(recorder: Recorder, element: int) -> None:
        if element == 0:  # the seed: what it asks for comes while the drain is on its way out
            recorder.subscription.request(1)
            backlog.when_empty = lambda: elsewhere(publish)

    recorder = subscribed(rsf.from_publisher(upstream).scan(lambda a, b: a + b, 0), on_next=on_next)
    upstream.subscriber._backlog = backlog = Backlog()
    recorder.subscription.request(1)
    terminal = ("on_complete",) if error is None else ("on_error", error)
    assert recorder.signals[1:] == [("on_next", 0), ("on_next", 1), terminal]
    recorder.check()


def test_an_error_may_come_while_the_drain_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream, late_error = ManualPublisher(), Watched(monkeypatch, "_late_error")
    recorder = subscribed(rsf.from_publisher(upstream).scan(lambda a, b: a + b, 0))

    def then(_push: Any, found: Any) -> bool:
        assert found is None
        elsewhere(lambda: upstream.subscriber.on_error(PROBLEM))
        return True

    late_error.then = then
    recorder.subscription.request(1)
    assert late_error.then is None
    assert recorder.signals[1:] == [("on_next", 0), ("on_error", PROBLEM)]
    recorder.check()


# -- what comes while all is dropped ---------------------------------------------------------------
def test_an_element_that_comes_while_everything_is_dropped_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream, is_open = ManualPublisher(), Watched(monkeypatch, "_open")
    recorder = subscribed(rsf.from_publisher(upstream).map(lambda x: x), 1)

    def then(push: Any, found: Any) -> bool:
        if isinstance(push, PushSubscription):
            assert found
            elsewhere(recorder.subscription.cancel)
            return True
        return False

    element = Element()
    gone = weakref.ref(element)
    is_open.then = then
    upstream.subscriber.on_next(element)
    assert is_open.then is None
    del element
    wait_gone(gone, "the element")
    assert recorder.signals == [("on_subscribe",)]


def test_an_error_that_comes_while_everything_is_let_go_of_is_reported_and_not_kept(
    dropped: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = ManualPublisher()
    recorder = subscribed(rsf.from_publisher(upstream).map(lambda x: x), 1)
    ended = Upstream.ended

    def cancelled_then(self: Upstream) -> bool:
        first = ended(self)
        elsewhere(recorder.subscription.cancel)
        return first

    monkeypatch.setattr(Upstream, "ended", cancelled_then)
    upstream.subscriber.on_error(PROBLEM)
    assert dropped == [PROBLEM]
    assert upstream.subscriber._late_error is None
    assert recorder.signals == [("on_subscribe",)]


def test_an_error_that_comes_while_one_is_looked_for_to_be_let_go_of_is_reported(
    dropped: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, late_error = ManualPublisher(), Watched(monkeypatch, "_late_error")
    recorder = subscribed(rsf.from_publisher(upstream).map(lambda x: x), 1)
    counts, go_on = threading.Event(), threading.Event()
    ended = Upstream.ended

    def held_then(self: Upstream) -> bool:
        first = ended(self)
        counts.set()
        wait_for(go_on)
        return first

    def then(_push: Any, found: Any) -> bool:
        assert found is None
        go_on.set()
        signalling.result()
        return True

    monkeypatch.setattr(Upstream, "ended", held_then)
    signalling = start_thread(lambda: upstream.subscriber.on_error(PROBLEM))
    wait_for(counts)
    late_error.then = then
    recorder.subscription.cancel()
    assert late_error.then is None
    assert dropped == [PROBLEM]
    assert upstream.subscriber._late_error is None


# -- asking in place of what was dropped -----------------------------------------------------------
@pytest.mark.parametrize("look", range(3))
def test_what_two_threads_have_dropped_is_asked_for_again_once(
    look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, owed = ManualPublisher(), Watched(monkeypatch, "_owed")
    recorder = subscribed(rsf.from_publisher(upstream).filter(lambda x: x > 0), 2)
    looks = 0

    def then(push: Any, _found: Any) -> bool:
        nonlocal looks
        if push._wip.value == 0:  # who looks now does so without the drain
            looks += 1
            if looks > look:
                elsewhere(lambda: send(upstream, -2))
                return True
        return False

    owed.then = then
    send(upstream, -1)
    if owed.then is not None:  # there is no such moment
        owed.then = None
        send(upstream, -2)
    assert upstream.requested == 4
    send(upstream, 1, 2)
    assert recorder.elements == [1, 2]
    recorder.check()


def test_what_the_drain_has_dropped_is_asked_for_again_where_take_sets_the_bound() -> None:
    upstream = ManualPublisher()

    def on_next(_recorder: Recorder, element: int) -> None:
        if element == 1:
            send(upstream, 2)

    recorder = subscribed(
        rsf.from_publisher(upstream).filter(lambda x: x % 2).take(2), rsf.UNBOUNDED, on_next=on_next
    )
    assert upstream.requests == [2]
    send(upstream, 1)
    assert upstream.requests == [2, 1]
    send(upstream, 3)
    assert recorder.signals[1:] == [("on_next", 1), ("on_next", 3), ("on_complete",)]


# -- a seed ----------------------------------------------------------------------------------------
def test_no_element_overtakes_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ManualPublisher()
    recorder = subscribed(rsf.from_publisher(upstream).scan(lambda a, b: a + b, 100))
    enter, asked = PushSubscription._enter, threading.Event()

    def ask_and_answer() -> None:
        recorder.subscription.request(5)
        assert upstream.requested == 4
        send(upstream, 1)

    def overtaken(self: PushSubscription) -> None:
        if not asked.is_set():
            asked.set()
            elsewhere(ask_and_answer)
        enter(self)

    monkeypatch.setattr(PushSubscription, "_enter", overtaken)
    recorder.subscription.request(1)
    assert asked.is_set()
    assert recorder.elements == [100, 101]
    recorder.check()
