"""create: sources that push, from any thread."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import Emitter
from tests.helpers import Counted, run_threads
from tests.rules.probes import Recorder, raising, subscribed


def emitting(
    request: Any = ..., on_next: Any = None, **options: Any
) -> tuple[Recorder, Emitter[Any]]:
    """A recorder that has subscribed to a source of which the test holds the emitter."""
    emitters: list[Emitter[Any]] = []
    recorder = subscribed(rsf.create(emitters.append, **options), request, on_next=on_next)
    return recorder, emitters[0]


def test_it_is_called_for_each_subscriber_after_on_subscribe() -> None:
    calls: list[int] = []

    def send(emitter: Emitter[int]) -> None:
        calls.append(len(calls))
        for n in range(3):
            assert emitter.next(10 * len(calls) + n)
        assert emitter.complete()

    stream = rsf.create(send)
    assert calls == []
    assert stream.to_list() == [10, 11, 12]
    assert stream.map(lambda n: n + 1).to_list() == [21, 22, 23]
    recorder = subscribed(stream)
    assert recorder.signals == [("on_subscribe",)]
    recorder.subscription.request(2)
    assert recorder.elements == [30, 31]
    recorder.subscription.request(1)
    assert recorder.terminal == ("on_complete",)
    recorder.check()


def test_what_it_raises_ends_the_stream_after_what_was_sent() -> None:
    error = ValueError("as it should")

    def send(emitter: Emitter[int]) -> None:
        emitter.next(1)
        raise error

    recorder = subscribed(rsf.create(send))
    assert recorder.terminal is None
    recorder.subscription.request(1)
    assert recorder.elements == [1]
    assert recorder.error is error


def test_what_it_raises_after_the_end_is_reported(dropped: list[BaseException]) -> None:
    def send(emitter: Emitter[int]) -> None:
        emitter.complete()
        raise ValueError("late")

    assert rsf.create(send).to_list() == []
    assert [str(error) for error in dropped] == ["late"]


def test_keyboard_interrupt_leaves_and_the_subscriber_is_told() -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        rsf.create(raising(KeyboardInterrupt())).subscribe(recorder)
    assert isinstance(recorder.error, KeyboardInterrupt)
    recorder.check()


def test_keyboard_interrupt_of_a_subscriber_leaves_through_next(
    dropped: list[BaseException],
) -> None:
    recorder = Recorder(request=5, raises=("on_next", KeyboardInterrupt()))
    ended: list[int] = []

    def send(emitter: Emitter[int]) -> None:
        emitter.on_cancel(lambda: ended.append(1))
        emitter.next(1)

    with pytest.raises(KeyboardInterrupt):
        rsf.create(send).subscribe(recorder)
    assert ended == [1]
    assert dropped == []


def test_next_says_whether_it_counts() -> None:
    recorder, emitter = emitting(capacity=2)
    assert emitter.next(1)
    assert emitter.next(2)
    assert not emitter.cancelled
    assert not emitter.next(3)  # an overflow
    assert emitter.cancelled
    assert not emitter.next(4)
    recorder.subscription.request(5)
    assert recorder.elements == [1, 2]
    assert isinstance(recorder.error, rsf.BufferOverflowError)
    assert "create(BUFFER)" in str(recorder.error)
    assert "overflow=" in str(recorder.error)


def test_none_is_a_type_error_and_the_stream_goes_on() -> None:
    recorder, emitter = emitting(5)
    with pytest.raises(TypeError, match=r"§2\.13"):
        emitter.next(None)
    with pytest.raises(TypeError, match=r"§2\.13"):
        emitter.error(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exception instance"):
        emitter.error("no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        emitter.on_cancel(1)  # type: ignore[arg-type]
    assert emitter.next(1)
    assert recorder.elements == [1]
    assert recorder.terminal is None


def test_the_first_end_counts(dropped: list[BaseException]) -> None:
    late = ValueError("late")
    recorder, emitter = emitting(5)
    assert emitter.complete()
    assert not emitter.complete()
    assert not emitter.error(late)
    assert not emitter.next(1)
    assert recorder.signals == [("on_subscribe",), ("on_complete",)]
    assert dropped == [late]


def test_demand_is_what_was_asked_for_and_not_sent() -> None:
    recorder, emitter = emitting()
    assert emitter.demand == 0
    recorder.subscription.request(3)
    assert emitter.demand == 3
    emitter.next(1)
    assert emitter.demand == 2
    for n in range(4):
        emitter.next(n)
    assert emitter.demand == 0  # two are held: they come first
    recorder.subscription.request(3)
    assert emitter.demand == 1
    recorder.subscription.request(rsf.UNBOUNDED)
    assert emitter.demand == rsf.UNBOUNDED
    emitter.complete()
    assert emitter.demand == 0


def test_demand_within_on_next_does_not_count_the_element_being_delivered() -> None:
    seen: list[int] = []

    def look(_recorder: Recorder, _element: Any) -> None:
        seen.append(emitter.demand)

    recorder, emitter = emitting(on_next=look)
    recorder.subscription.request(2)
    emitter.next("a")
    emitter.next("b")
    assert seen == [1, 0]


ENDINGS: dict[str, Callable[[Emitter[Any], Recorder], object]] = {
    "cancel": lambda emitter, recorder: recorder.subscription.cancel(),
    "complete": lambda emitter, recorder: emitter.complete(),
    "error": lambda emitter, recorder: emitter.error(ValueError("as it should")),
    "overflow": lambda emitter, recorder: [emitter.next(n) for n in range(3)],
    "wrong request": lambda emitter, recorder: recorder.subscription.request(0),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_on_cancel_is_called_once_whatever_the_end(ending: str) -> None:
    recorder, emitter = emitting(capacity=2)
    calls: list[str] = []
    emitter.on_cancel(lambda: calls.append("first"))
    emitter.on_cancel(lambda: calls.append("second"))
    assert calls == []
    ENDINGS[ending](emitter, recorder)
    assert calls == ["first", "second"]
    assert emitter.cancelled
    emitter.on_cancel(lambda: calls.append("late"))
    assert calls == ["first", "second", "late"]
    emitter.complete()
    recorder.subscription.cancel()
    assert calls == ["first", "second", "late"]


def test_what_on_cancel_raises_is_reported(dropped: list[BaseException]) -> None:
    def fail() -> None:
        raise ValueError("as it should")

    recorder, emitter = emitting()
    calls: list[int] = []
    emitter.on_cancel(fail)
    emitter.on_cancel(lambda: calls.append(1))
    recorder.subscription.cancel()
    assert calls == [1]
    assert [type(error) for error in dropped] == [ValueError]


def test_on_cancel_is_called_once_however_ends_race() -> None:
    for _ in range(30):
        recorder, emitter = emitting(100)
        calls = Counted()
        run_threads(
            [
                partial(emitter.on_cancel, calls.add),
                partial(emitter.on_cancel, calls.add),
                emitter.complete,
                recorder.subscription.cancel,
            ]
        )
        assert calls.value == 2
        recorder.check()


@pytest.mark.parametrize("ending", ENDINGS)
def test_after_the_end_an_emitter_keeps_nothing(ending: str, dropped: list[BaseException]) -> None:
    class Closing:
        def close(self) -> None:
            """Close."""

    closing = Closing()
    recorder, emitter = emitting(capacity=2)
    emitter.on_cancel(closing.close)
    emitter.next(1)
    ENDINGS[ending](emitter, recorder)
    recorder.subscription.request(5)
    refs = weakref.ref(recorder), weakref.ref(closing)
    del recorder, closing
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert not emitter.next(2)


def test_an_error_of_the_function_keeps_no_subscriber() -> None:
    def send(emitter: Emitter[int]) -> None:
        raise ValueError("as it should")

    recorder = subscribed(rsf.create(send))
    assert recorder.error is not None
    frames = [frame for frame, _line in traceback.walk_tb(recorder.error.__traceback__)]
    assert not any(value is recorder for frame in frames for value in frame.f_locals.values())
    assert len(frames) == 2


def test_threads_race_with_cancel_and_request() -> None:
    for _ in range(20):
        recorder, emitter = emitting(capacity=10)
        run_threads(
            [
                lambda e=emitter: [e.next(n) for n in range(30)],
                lambda e=emitter: [e.next(n) for n in range(30)],
                partial(recorder.subscription.request, 15),
                recorder.subscription.cancel,
                emitter.complete,
            ]
        )
        assert emitter.cancelled
        assert len(recorder.elements) <= 15
        recorder.check()
        kept = weakref.ref(recorder)
        del recorder
        gc.collect()
        assert kept() is None


def test_a_coroutine_that_nobody_awaits_is_the_streams_error() -> None:
    async def send(emitter: Emitter[int]) -> None:
        emitter.next(1)

    with pytest.raises(TypeError, match="returned a coroutine, which nobody awaits; let fn start"):
        rsf.create(lambda emitter: send(emitter)).run()  # noqa: PLW0108
