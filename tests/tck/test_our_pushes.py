"""Sources that do not wait to be asked, and what stands below them, under the whole kit."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast import Emitter, Overflow
from rstreams_fast.tck import PublisherVerification
from tests.helpers import start_thread
from tests.rules.probes import HandTimer
from tests.tck import NO_REGISTRY, SILENCE, add_cases
from tests.tck.test_our_publishers import FAIL_AT, StreamVerification
from tests.tck.test_our_subscribers import StageVerification

#: More than the kit ever asks of one publisher: nothing is to be lost here.
ENOUGH = 4000

# -- on_overflow, below a source that sends everything at once -------------------------------------


class OnOverflowBuffer(StreamVerification):
    __test__ = True
    strategy = Overflow.BUFFER

    def stages(self, stream: rf.Stream[int]) -> rf.Stream[Any]:
        return stream.on_overflow(self.strategy, capacity=ENOUGH)


# -- create ----------------------------------------------------------------------------------------


class CreateAtOnce(StreamVerification):
    """Sends everything within subscribe."""

    __test__ = True
    overflow = Overflow.BUFFER

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return self.create(elements)

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        return self.create(elements, ValueError(FAIL_AT))

    def create_failed_publisher(self) -> rf.Stream[Any]:
        return self.create(0, ValueError(FAIL_AT))

    def create(self, elements: int, error: Exception | None = None) -> rf.Stream[Any]:
        def send(emitter: Emitter[int]) -> None:
            for n in range(elements):
                emitter.next(n)
            end(emitter, error)

        return rf.create(send, overflow=self.overflow, capacity=ENOUGH)


def end(emitter: Emitter[Any], error: Exception | None) -> None:
    if error is None:
        emitter.complete()
    else:
        emitter.error(error)


class CreateOnAThread(CreateAtOnce):
    """A thread sends, but no more than is asked for, which it looks at."""

    overflow = Overflow.BUFFER

    def create(self, elements: int, error: Exception | None = None) -> rf.Stream[Any]:
        def begin(emitter: Emitter[int]) -> None:
            # Without a reference, so that the thread ends when a subscription is forgotten.
            start_thread(partial(_send_politely, weakref.ref(emitter), elements, error), "sender")

        return rf.create(begin, overflow=self.overflow, capacity=ENOUGH)


class CreateWithLatest(CreateOnAThread):
    """Here an element that was asked for must be waited for, too: the next would replace it."""

    def create(self, elements: int, error: Exception | None = None) -> Any:
        def stream() -> rf.Stream[int]:
            taken: list[int] = []

            def begin(emitter: Emitter[int]) -> None:
                send = partial(_send_politely, weakref.ref(emitter), elements, error, taken)
                start_thread(send, "sender")

            return rf.create(begin, overflow=Overflow.LATEST).do_on_next(taken.append)

        return ForEachSubscriber(stream)


class ForEachSubscriber:
    """A stream of its own for each."""

    def __init__(self, make: Callable[[], rf.Stream[int]]) -> None:
        self._make = make

    def subscribe(self, subscriber: Any, /) -> None:
        self._make().subscribe(subscriber)


def _send_politely(
    forgettable: Callable[[], Emitter[int] | None],
    elements: int,
    error: Exception | None,
    taken: list[int] | None = None,
) -> None:
    pause = threading.Event()
    sent, seconds = 0, 0.0002
    while (emitter := forgettable()) is not None and not emitter.cancelled:
        if sent == elements:
            end(emitter, error)
            return
        if emitter.demand > 0 and (taken is None or len(taken) == sent):
            emitter.next(sent)
            sent, seconds = sent + 1, 0.0002
            continue
        del emitter
        pause.wait(seconds)
        seconds = min(2 * seconds, 0.02)


# -- interval --------------------------------------------------------------------------------------


class Interval(PublisherVerification):
    """Ticks of a clock that a thread moves."""

    silence = SILENCE
    not_claimed = NO_REGISTRY

    @pytest.fixture(autouse=True)
    def _with_clock(self) -> Iterator[None]:
        self.timer = HandTimer()
        stop = threading.Event()

        def move() -> None:
            while not stop.wait(0.0002):
                self.timer.advance(1)

        mover = start_thread(move, "clock")
        yield
        stop.set()
        mover.result()

    def create_publisher(self, elements: int) -> rf.Stream[int]:
        ticks = rf.interval(
            1, delay=0, overflow=Overflow.DROP_LATEST, capacity=ENOUGH, timer=self.timer
        )
        # Counted anew: on a loaded machine the clock may be moved past the first ticks.
        return ticks.map(lambda _n: 1).scan(operator.add).take(elements)

    def create_failing_publisher(self, elements: int) -> Any:
        def check(n: int) -> int:
            if n > elements:
                raise ValueError(FAIL_AT)
            return n

        return self.create_publisher(elements + 1).map(check)


# -- on_overflow, as a subscriber ------------------------------------------------------------------


class OverflowStage(StageVerification):
    __test__ = True
    silence = SILENCE
    strategy = Overflow.BUFFER

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        return stream.on_overflow(self.strategy)


add_cases(
    globals(),
    OnOverflowBuffer,
    "strategy",
    OnOverflowDropOldest=Overflow.DROP_OLDEST,
    OnOverflowDropLatest=Overflow.DROP_LATEST,
)
add_cases(
    globals(),
    StreamVerification,
    "stages",
    OnOverflowBetweenThreads=lambda _, stream: (
        stream.subscribe_on().on_overflow(Overflow.BUFFER, capacity=ENOUGH).publish_on()
    ),
)
add_cases(
    globals(),
    CreateOnAThread,
    "overflow",
    CreateWithError=Overflow.ERROR,
    CreateWithDropOldest=Overflow.DROP_OLDEST,
    CreateWithDropLatest=Overflow.DROP_LATEST,
)
add_cases(
    globals(),
    OverflowStage,
    "strategy",
    DropOldestStage=Overflow.DROP_OLDEST,
    DropLatestStage=Overflow.DROP_LATEST,
    LatestStage=Overflow.LATEST,
    ErrorStage=Overflow.ERROR,
)
