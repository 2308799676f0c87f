"""Multicast and replay between threads: nothing lost, doubled, reordered, overlapping, or kept."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import MulticastProcessor, ReplayProcessor
from rstreams_fast.errors import BufferOverflowError
from tests.helpers import DEADLINE, run_threads, start_thread, wait_for, wait_until
from tests.rules.probes import Recorder

ALL = rsf.UNBOUNDED

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


class Feeder:
    """A publisher of the numbers below ``count``, or until ``stop``, from a thread of its own.

    It notes the most that was asked for at once, and who is subscribed.
    """

    def __init__(
        self, count: int, error: BaseException | None = None, stop: threading.Event | None = None
    ) -> None:
        self._count = count
        self._error = error
        self._stop = stop or threading.Event()
        self.subscribes = 0
        self.cancels = 0
        self.sent = 0
        self.most_asked = 0
        self._threads: list[Any] = []
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Any, /) -> None:
        with self._lock:
            self.subscribes += 1
        subscription = _Fed(self, subscriber)
        subscriber.on_subscribe(subscription)
        thread = start_thread(subscription.run, "feeder")
        with self._lock:
            self._threads.append(thread)

    def join(self) -> None:
        for thread in self._threads:
            thread.result()


class _Fed:
    def __init__(self, feeder: Feeder, subscriber: Any) -> None:
        self._feeder = feeder
        self._subscriber = subscriber
        self._changed = threading.Condition()
        self._demand = 0
        self._cancelled = False

    def request(self, n: int, /) -> None:
        with self._changed:
            self._demand += n
            self._feeder.most_asked = max(self._feeder.most_asked, self._demand)
            self._changed.notify()

    def cancel(self) -> None:
        with self._changed:
            if not self._cancelled:
                with self._feeder._lock:
                    self._feeder.cancels += 1
            self._cancelled = True
            self._changed.notify()

    def run(self) -> None:
        for n in range(self._feeder._count):
            if self._feeder._stop.is_set():
                break
            with self._changed:
                assert self._changed.wait_for(lambda: self._demand or self._cancelled, DEADLINE), (
                    f"nobody asked for {n}"
                )
                if self._cancelled:
                    return
                self._demand -= 1
            self._feeder.sent = n + 1
            self._subscriber.on_next(n)
        if self._feeder._error is not None:
            self._subscriber.on_error(self._feeder._error)
        else:
            self._subscriber.on_complete()


def check_row(recorder: Recorder, *, starts_anywhere: bool = False) -> None:
    recorder.check()
    elements = recorder.elements
    first = elements[0] if starts_anywhere and elements else 0
    assert elements == list(range(first, first + len(elements)))


def takes_by(portions: Callable[[], int]) -> Callable[[Recorder, Any], object]:
    """Ask for another portion when the last has come."""
    left = 0

    def on_next(tape: Recorder, _element: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            left = portions()
            tape.subscription.request(left)

    return on_next


# -- rates ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("slow", ["gate", "drop"])
@pytest.mark.parametrize("buffer_size", [1, 7, 64])
def test_subscribers_that_ask_on_threads_of_their_own_get_everything(
    slow: Any, buffer_size: int
) -> None:
    total = 600
    feeder, processor = Feeder(total), MulticastProcessor[int](buffer_size=buffer_size, slow=slow)
    tapes = [Recorder() for _ in range(4)]
    for tape in tapes:
        processor.subscribe(tape)
    feeder.subscribe(processor)

    def ask(tape: Recorder, seed: int) -> None:
        randomly = random.Random(seed)
        asked = 0
        while tape.terminal is None and asked < total:
            asked += (n := randomly.randint(1, 2 * buffer_size))
            tape.subscription.request(n)
            if slow == "gate":
                tape.wait_elements(min(asked, total) if tape.error is None else 0)
            else:
                threading.Event().wait(0.0005)

    run_threads([lambda t=tape, s=n: ask(t, s) for n, tape in enumerate(tapes)])  # type: ignore[misc]
    for tape in tapes:
        tape.wait_terminal()
        check_row(tape)
        if slow == "gate":
            assert len(tape.elements) == total
            assert tape.error is None
        else:
            assert tape.error is None or isinstance(tape.error, BufferOverflowError)
            assert (len(tape.elements) == total) == (tape.error is None)
    feeder.join()
    assert feeder.most_asked <= buffer_size


def test_the_fast_are_never_further_ahead_than_the_buffer() -> None:
    total, ahead = 400, 5
    feeder, processor = Feeder(total), MulticastProcessor[int](buffer_size=ahead)
    gaps: list[int] = []
    slow = Recorder()
    fast = Recorder(on_next=lambda tape, _x: gaps.append(len(tape.elements) - len(slow.elements)))
    processor.subscribe(slow)
    processor.subscribe(fast)
    fast.subscription.request(ALL)
    feeder.subscribe(processor)
    for n in range(total):
        slow.subscription.request(1)
        slow.wait_elements(n + 1)
    for tape in (slow, fast):
        tape.wait_terminal()
        check_row(tape)
    # One more: an element counts as had when the subscriber begins with it.
    assert max(gaps) <= ahead + 1
    feeder.join()


def test_a_subscriber_that_is_stuck_on_its_own_thread_holds_nobody_up() -> None:
    processor = MulticastProcessor[int](buffer_size=100)
    entered, leave = threading.Event(), threading.Event()

    def stick(_tape: Recorder, element: int) -> None:
        if element == 0:
            entered.set()
            wait_for(leave, "leave")

    stuck, fast = Recorder(on_next=stick), Recorder()
    processor.subscribe(stuck)
    processor.on_next(0)
    worker = start_thread(lambda: stuck.subscription.request(ALL))
    wait_for(entered, "the stuck subscriber's element")
    processor.subscribe(fast)
    fast.subscription.request(ALL)
    for n in range(1, 101):
        processor.on_next(n)
    assert fast.elements == list(range(1, 101))
    assert stuck.elements == [0]
    leave.set()
    worker.result()
    processor.on_complete()
    assert stuck.elements == list(range(101))
    check_row(stuck)
    check_row(fast, starts_anywhere=True)


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython drops objects without a collection"
)
@pytest.mark.parametrize("how", ["dropped", "cancelled"])
def test_one_who_is_over_but_stuck_keeps_nothing_of_what_comes_later(how: str) -> None:
    class Element:
        pass

    processor = MulticastProcessor[Element](buffer_size=4, slow="drop")
    entered, leave = threading.Event(), threading.Event()

    def stick(tape: Recorder, _element: Element) -> None:
        tape.signals.clear()
        entered.set()
        wait_for(leave, "leave")

    stuck = Recorder(on_next=stick)
    processor.subscribe(stuck)
    passing = Recorder(on_next=lambda tape, _x: tape.signals.clear())
    processor.subscribe(passing)
    passing.subscription.request(ALL)
    processor.on_next(Element())
    worker = start_thread(lambda: stuck.subscription.request(ALL))
    wait_for(entered, "the stuck subscriber's element")
    if how == "cancelled":
        stuck.subscription.cancel()
    alive = []
    for _ in range(50):
        element = Element()
        alive.append(weakref.ref(element))
        processor.on_next(element)
        del element
    left = [reference() for reference in alive if reference() is not None]
    del left[:]
    assert sum(reference() is not None for reference in alive) == 0
    leave.set()
    worker.result()
    stuck_error = stuck.error
    assert isinstance(stuck_error, BufferOverflowError) == (how == "dropped")
    assert stuck.violations == passing.violations == []


# -- coming and going ------------------------------------------------------------------------------
@pytest.mark.parametrize("keeps", [False, True])
def test_who_comes_and_goes_sees_an_unbroken_piece_and_who_stays_sees_all(keeps: bool) -> None:
    stop = threading.Event()
    feeder = Feeder(10**9, stop=stop)
    processor: Any = (
        ReplayProcessor[int](count=5, buffer_size=16)
        if keeps
        else MulticastProcessor[int](buffer_size=16)
    )
    stayers = [Recorder(on_next=takes_by(lambda: 3)) for _ in range(2)]
    for tape in stayers:
        processor.subscribe(tape)
        tape.subscription.request(1)
    feeder.subscribe(processor)

    def visit(seed: int) -> list[Recorder]:
        randomly = random.Random(seed)
        tapes = []
        for _ in range(100):
            last = randomly.randint(1, 6)

            def leave(tape: Recorder, _x: int, last: int = last) -> None:
                if len(tape.elements) == last:
                    tape.subscription.cancel()

            tape = Recorder(on_next=leave)
            processor.subscribe(tape)
            tape.subscription.request(last + 1)
            if randomly.random() < 0.5:
                tape.wait_elements(last)
                assert len(tape.elements) == last
            tape.subscription.cancel()
            tapes.append(tape)
        return tapes

    visitors = run_threads([lambda s=seed: visit(s) for seed in range(3)])  # type: ignore[misc]
    stop.set()
    for tape in stayers:
        tape.wait_terminal()
        check_row(tape)
        assert len(tape.elements) == feeder.sent
    for tape in itertools.chain(*visitors):
        check_row(tape, starts_anywhere=True)
        assert tape.error is None
    feeder.join()
    assert feeder.cancels == 0


@pytest.mark.parametrize("ending", ["complete", "error"])
@pytest.mark.parametrize("keeps", [False, True])
def test_everybody_gets_exactly_one_end_however_late(ending: str, keeps: bool) -> None:
    error = ValueError("broken") if ending == "error" else None
    for _ in range(30):
        feeder = Feeder(5, error)
        processor: Any = (
            ReplayProcessor[int](count=3, buffer_size=4) if keeps else MulticastProcessor[int]()
        )
        tapes = [Recorder() for _ in range(12)]

        def join(mine: list[Recorder], processor: Any = processor) -> None:
            for tape in mine:
                processor.subscribe(tape)
                tape.subscription.request(ALL)

        run_threads(
            [
                lambda: feeder.subscribe(processor),  # noqa: B023 - run before the next round
                *(lambda m=tapes[n::3]: join(m) for n in range(3)),  # type: ignore[misc]
            ]
        )
        for tape in tapes:
            tape.wait_terminal()
            check_row(tape, starts_anywhere=True)
            assert tape.error is error
        feeder.join()


def test_a_shared_stream_never_refuses_anybody() -> None:
    feeder = Feeder(10**9)  # ends by being cancelled only
    shared = rsf.from_publisher(feeder).share(buffer_size=4)

    def visit(seed: int) -> list[Recorder]:
        randomly = random.Random(seed)
        tapes = []
        for _ in range(40):
            tape = Recorder()
            shared.subscribe(tape)
            tape.subscription.request(randomly.randint(1, 30))
            if randomly.random() < 0.5:
                tape.wait_elements(1)
            tape.subscription.cancel()
            tapes.append(tape)
        return tapes

    for tapes in run_threads([lambda s=seed: visit(s) for seed in range(3)]):  # type: ignore[misc]
        for tape in tapes:
            check_row(tape, starts_anywhere=True)
            assert tape.error is None
    feeder.join()
    assert feeder.subscribes >= 1
    assert feeder.cancels == feeder.subscribes


# -- an upstream that breaks the rules -------------------------------------------------------------
# -- finalizers ------------------------------------------------------------------------------------
class Forgotten:
    """Calls when it is collected, which a cycle leaves to the garbage collector."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._itself = self
        self._call = call

    def __del__(self) -> None:
        self._call()


@pytest.fixture
def collection_after() -> Iterator[Callable[[int], None]]:
    """Has the garbage collected at the n-th allocation from now, wherever that is."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.disable()

    def after(n: int) -> None:
        gc.set_threshold(gc.get_count()[0] + n)
        gc.enable()

    yield after
    gc.set_threshold(*threshold)
    gc.enable()


@pytest.mark.parametrize("make", [MulticastProcessor, ReplayProcessor])
@pytest.mark.parametrize("finalizer", ["cancel", "request", "subscribe", "on_next"])
def test_a_collection_may_come_at_any_allocation(
    make: Any, finalizer: str, collection_after: Callable[[int], None]
) -> None:
    options = {"count": 2} if make is ReplayProcessor else {}
    processor: Any = make(slow="drop", **options)
    stays = Recorder()
    processor.subscribe(stays)
    stays.subscription.request(ALL)
    signals = itertools.count()
    for n in range(60):
        gc.disable()
        for _ in range(2):
            visitor = Recorder()
            processor.subscribe(visitor)
            calls: dict[str, Callable[[], object]] = {
                "cancel": visitor.subscription.cancel,
                "request": lambda s=visitor.subscription: s.request(1),  # type: ignore[misc]
                "subscribe": lambda: processor.subscribe(Recorder()),
                "on_next": lambda: processor.on_next(next(signals)),
            }
            Forgotten(calls[finalizer])
        del visitor, calls
        collection_after(n // 3)
        if n % 3 == 0:
            visitor = Recorder()
            processor.subscribe(visitor)
            visitor.subscription.cancel()
        elif finalizer != "on_next":
            processor.on_next(next(signals))
        else:
            stays.subscription.request(1)
            processor.on_next(next(signals))
    gc.disable()
    gc.collect()
    sent = next(signals)
    # The collector may have run on the finalizers' thread, which then signals, too.
    wait_until(lambda: len(stays.elements) >= sent, "the last element")
    assert stays.violations == []
    assert sorted(stays.elements)[:sent] == list(range(sent))
    if finalizer != "on_next":  # two signals at once are in no order
        check_row(stays)


@pytest.mark.parametrize("kind", ["multicast", "replay"])
def test_an_element_may_use_the_publisher_when_it_is_let_go_of(kind: str) -> None:
    processor: Any = MulticastProcessor(slow="drop", buffer_size=2, on_last_cancel="keep")
    if kind == "replay":
        processor = ReplayProcessor(count=2)
    done: list[int] = []

    class Element:
        def __init__(self, n: int) -> None:
            self.n = n

        def __del__(self) -> None:
            def use() -> None:  # from another thread, so that a lock that is held would show
                tape = Recorder()
                processor.subscribe(tape)
                tape.subscription.request(1)
                tape.signals.clear()
                tape.subscription.cancel()

            if self.n < 10:
                start_thread(use).result()
                done.append(self.n)

    for n in range(20):
        processor.on_next(Element(n))
    processor.on_complete()
    gc.collect()
    assert sorted(done) == list(range(10))


# -- nothing is kept -------------------------------------------------------------------------------
def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("slow", ["gate", "drop"])
@pytest.mark.parametrize("demand", [..., 1, rsf.UNBOUNDED])
def test_of_a_thousand_that_leave_few_make_the_hub_look_at_the_others(
    demand: Any, slow: Any
) -> None:
    def calls(n: int) -> int:
        hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor(buffer_size=4, slow=slow)
        recorders = [Recorder(request=demand) for _ in range(n)]
        for recorder in recorders:
            hub.subscribe(recorder)
        rsf.never().subscribe(hub)
        return calls_of(lambda: [recorder.subscription.cancel() for recorder in recorders])

    assert calls(1000) < 11 * calls(100)


def test_who_leaves_last_of_those_that_gate_lets_the_others_go_on() -> None:
    hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor(buffer_size=4)
    gating = [Recorder(request=n % 3 or ...) for n in range(9)]
    quick = Recorder(request=rsf.UNBOUNDED)
    for recorder in (*gating, quick):
        hub.subscribe(recorder)
    rsf.range_(100).subscribe(hub)
    seen = [len(quick.elements)]
    for recorder in gating:
        recorder.subscription.cancel()
        seen.append(len(quick.elements))
    assert seen[0] < 10
    assert seen == sorted(seen)
    assert quick.elements == list(range(100))


def test_a_thousand_subscribers_cost_each_what_one_costs() -> None:
    def calls(n: int) -> int:
        hub: rsf.MulticastProcessor[int] = rsf.MulticastProcessor()
        recorders = [Recorder(request=rsf.UNBOUNDED) for _ in range(n)]

        def work() -> None:
            for recorder in recorders:
                hub.subscribe(recorder)
            rsf.range_(3).subscribe(hub)

        count = calls_of(work)
        assert all(recorder.elements == [0, 1, 2] for recorder in recorders)
        return count

    assert calls(1000) < 11 * calls(100)
