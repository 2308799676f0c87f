"""Long chains: neither assembling, subscribing, asking, signalling nor cancelling nests them all.

Where the stack is too short all the same, the stream fails; it never just stops.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rstreams_fast as rf
from tests.helpers import DEADLINE, start_thread, wait_for, wait_until
from tests.operators import firsts, uses
from tests.operators.entry import ignore, same
from tests.rules.probes import Recorder, subscribed

Op = Callable[[rf.Stream[Any]], rf.Stream[Any]]


#: Each operator that works on the thread that asks, and some together. Each leaves range_(5) as it
#: is.
OPS: dict[str, Op] = {
    **{name: use.same for name, use in firsts().items() if use.chains and not use.threads},
    "stages": lambda s: s.map(same).filter(lambda _x: True).take(9).scan(lambda _a, b: b),
    "observed maps": lambda s: s.do_on_complete(ignore).map(same),
    "many": lambda s: s.map(same).do_on_complete(ignore).batch(2).unbatch().do_on_error(ignore),
}
OBSERVED = OPS["observed maps"]
SOME = pytest.mark.parametrize("name", ["stages", "Scan", "observed maps", "Unbatch", "many"])


def chain(stream: rf.Stream[Any], op: Op, n: int) -> rf.Stream[Any]:
    for _ in range(n):
        stream = op(stream)
    return stream


def within_deadline(call: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """The outcome of a call that may hang."""
    return start_thread(call, "deep").result(seconds)


def frames() -> int:
    frame, n = sys._getframe(), 0
    while frame is not None:
        frame, n = frame.f_back, n + 1
    return n


@pytest.fixture
def quiet() -> Iterator[None]:
    """No error that nobody could take is logged."""
    before = rf.on_dropped_error(ignore)
    yield
    rf.on_dropped_error(before)


@pytest.mark.parametrize("name", OPS)
def test_a_long_chain_gives_its_elements(name: str) -> None:
    for n in (50, 1000):
        stream = chain(rf.range_(5), OPS[name], n)
        assert within_deadline(stream.to_list, 100) == [0, 1, 2, 3, 4]


def test_twenty_thousand_stages_are_composed_one_upon_the_other_without_copies() -> None:
    streams = [rf.range_(5)]
    for _ in range(20_000):
        streams.append(streams[-1].map(same))
    held = sum(sys.getsizeof(stream._parts) for stream in streams)
    assert held < 20_000 * 100  # bytes: a copy of all for each would be 1.6 GB
    assert streams[-1].to_list() == [0, 1, 2, 3, 4]
    assert streams[3].map(str).to_list() == ["0", "1", "2", "3", "4"]
    assert len(streams[-1].parts) == 20_000


@pytest.mark.parametrize(
    ("name", "boundaries"),
    [("Map", 0), ("observed", 0), ("Unbatch", 1), ("PublishOnTheCaller", 1)],
)
def test_the_figures_of_a_long_chain_do_not_nest(name: str, boundaries: int) -> None:
    n = 500
    recorder = subscribed(chain(rf.never(), OPS[name], n))
    figures = within_deadline(lambda: rf.metrics_of(recorder.subscription))
    recorder.subscription.cancel()
    breaks = [each for each in figures if each.name.startswith("trampoline")]
    assert len(figures) - len(breaks) == n * boundaries
    assert all(each.held == 0 for each in figures)


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("name", ["publish_on", "subscribe_on"])
def test_a_long_chain_of_boundaries_on_a_pool_gives_its_elements(name: str, n: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        op: Op = lambda s: getattr(s.do_on_complete(ignore), name)(pool)  # noqa: E731
        stream = chain(rf.range_(5), op, n)
        assert within_deadline(stream.to_list) == [0, 1, 2, 3, 4]


@SOME
def test_a_long_chain_keeps_stop_and_wait(name: str) -> None:
    stream = chain(rf.range_(5), OPS[name], 64)

    def one_by_one() -> list[Any]:
        with stream.iterate(prefetch=1) as elements:
            return list(elements)

    assert within_deadline(one_by_one) == [0, 1, 2, 3, 4]


@SOME
def test_a_long_chain_can_be_left(name: str) -> None:
    cancels: list[int] = []
    source = rf.range_(10**9).do_on_cancel(lambda: cancels.append(1))
    stream = chain(source, OPS[name], 64)
    assert within_deadline(stream.first) in (0, -1)
    if name != "stages":  # where take(9) cancels, too
        assert cancels == [1]


@pytest.mark.parametrize("n", [200, 1000])
def test_cancel_passes_a_long_chain_from_another_thread(n: int) -> None:
    cancelled = threading.Event()
    observed: list[int] = []
    source = rf.never().do_on_cancel(cancelled.set)
    stream = chain(source, lambda s: s.map(same).do_on_cancel(lambda: observed.append(1)), n)
    start_thread(subscribed(stream, 7).subscription.cancel).result()
    wait_for(cancelled, "the cancel at the source")
    assert sum(observed) == n


def test_an_error_comes_after_the_elements_before_it() -> None:
    def three() -> Iterator[int]:
        yield from range(3)
        raise ValueError("after three")

    stream = chain(rf.from_iterable(three()), OBSERVED, 100)
    recorder = within_deadline(lambda: subscribed(stream, rf.UNBOUNDED))
    assert recorder.elements == [0, 1, 2]
    assert isinstance(recorder.error, ValueError)
    recorder.check()


def test_a_long_chain_asks_for_no_more_than_it_was_asked_for() -> None:
    asked: list[int] = []
    pulled: list[int] = []
    source = rf.range_(10**9).do_on_next(pulled.append).do_on_request(asked.append)
    stream = chain(source, OBSERVED, 100)
    recorder = subscribed(stream)
    assert asked == []
    recorder.subscription.request(3)
    assert (sum(asked), pulled, recorder.elements) == (3, [0, 1, 2], [0, 1, 2])
    recorder.subscription.request(2)
    assert (sum(asked), pulled[3:], recorder.elements[3:]) == (5, [3, 4], [3, 4])
    recorder.subscription.cancel()


def test_a_long_chain_holds_no_more_than_it_says_live() -> None:
    pulled: list[int] = []
    stream = chain(rf.range_(10**9).do_on_next(pulled.append), OBSERVED, 100)
    ahead: list[int] = []
    held: list[int] = []

    def look(x: int) -> int:
        figures = rf.metrics_of(recorder.subscription)
        assert {each.name for each in figures} == {"trampoline: at most 64 elements"}
        ahead.append(len(pulled) - len(ahead) - 1)
        assert ahead[-1] <= sum(each.max_held for each in figures)
        held.append(sum(each.held for each in figures))
        return x

    recorder = subscribed(stream.map(look))
    recorder.subscription.request(1000)
    recorder.subscription.cancel()
    assert len(recorder.elements) == 1000
    assert 0 < max(held) <= max(ahead)


def test_the_stack_that_a_chain_takes_does_not_grow_with_it() -> None:
    depths: list[list[int]] = []
    for n in (100, 1000):
        depths.append([])
        op: Op = lambda s: s.do_on_request(note).map(note).do_on_complete(note)  # noqa: E731

        def note(x: Any = None, seen: list[int] = depths[-1]) -> Any:
            seen.append(frames())
            return x

        chain(rf.range_(2), op, n).run()
    assert max(depths[1]) <= max(depths[0])


def test_a_short_chain_has_no_trampoline() -> None:
    recorder = subscribed(chain(rf.never(), lambda s: s.map(same).do_on_error(ignore), 4))
    assert rf.metrics_of(recorder.subscription) == ()
    recorder.subscription.cancel()


def test_a_long_chain_within_a_function_of_another_ends() -> None:
    inner = chain(rf.range_(5), OBSERVED, 100)
    ended = threading.Event()

    def wait_for_another(x: int) -> int:
        subscribed(inner, rf.UNBOUNDED).wait_terminal()  # by the user's means, not by ours
        return x + len(inner.to_list())

    outer = chain(rf.range_(3), lambda s: s.do_on_complete(ended.set).map(same), 100)
    outer = chain(outer.map(wait_for_another), OBSERVED, 100)
    assert within_deadline(outer.to_list) == [5, 6, 7]
    assert ended.is_set()


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
def test_what_leaves_passes_a_long_chain(leaving: type[BaseException]) -> None:
    closed = threading.Event()

    def numbers() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    def leave(x: int) -> int:
        if x == 5:
            raise leaving
        return x

    stream = chain(rf.from_iterable(numbers()), OBSERVED, 50).map(leave)
    stream = chain(stream, OBSERVED, 50)
    with pytest.raises(leaving):
        within_deadline(stream.to_list)
    assert closed.is_set()


def test_a_long_chain_lets_go_of_its_subscriber() -> None:
    recorder = subscribed(chain(rf.range_(10**9), OPS["many"], 100), 3)
    subscription = recorder.subscription
    subscription.cancel()
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None
    del subscription


def with_frames_left(n: int, call: Callable[[], Any]) -> Any:
    """Make ``call`` where ``n`` more frames fit on the stack, or so."""
    if frames() + n >= sys.getrecursionlimit():
        return call()
    return with_frames_left(n, call)


def outcome(left: int, stream: rf.Stream[Any]) -> str:
    """What becomes of the stream where ``left`` more frames fit on the stack, or so."""

    def attempt() -> str:
        try:
            return str(with_frames_left(left, stream.to_list))
        except RecursionError:
            return "too deep"

    return str(within_deadline(attempt))


# A finalizer that happens to run where the stack is full cannot do its work; nor can pytest's hook,
# which would say so.
@pytest.mark.usefixtures("unraisable", "quiet")
@pytest.mark.parametrize("name", ["observed maps", "Unbatch", "Scan", "PublishOnTheCaller"])
def test_too_short_a_stack_is_an_error_and_no_hang(name: str) -> None:
    stream = chain(rf.range_(5), OPS[name], 32)
    outcomes = {outcome(left, stream) for left in range(2, 700, 29)}
    assert outcomes == {"too deep", "[0, 1, 2, 3, 4]"}


class Endless(Recorder):
    """A subscriber that fills the stack."""

    def on_next(self, element: Any) -> None:
        self.on_next(element)


@pytest.mark.parametrize("below", [lambda s: s.do_on_complete(ignore), OPS["Unbatch"]])
def test_a_full_stack_below_another_thread_is_signalled(below: Op) -> None:
    with ThreadPoolExecutor(1) as pool:
        recorder = Endless(request=1)
        below(rf.range_(5).publish_on(pool)).subscribe(recorder)
        recorder.wait_terminal()
    assert isinstance(recorder.error, RecursionError)


def test_a_full_stack_after_the_end_is_reported(dropped: list[BaseException]) -> None:
    class EndlessAtTheEnd(Recorder):
        def on_complete(self) -> None:
            self.on_complete()

    with ThreadPoolExecutor(1) as pool:
        rf.range_(5).publish_on(pool).subscribe(EndlessAtTheEnd(request=9))
        wait_until(lambda: dropped, "the report")
    assert isinstance(dropped[0], RecursionError)


def test_what_leaves_below_another_thread_is_signalled() -> None:
    leaving = ("on_next", KeyboardInterrupt())
    with ThreadPoolExecutor(1) as pool:
        stream = rf.range_(5).publish_on(pool).do_on_complete(ignore)
        recorder = subscribed(stream, 1, raises=leaving)
        recorder.wait_terminal()
    assert recorder.error is leaving[1]


def test_a_full_stack_leaves_through_the_call_that_filled_it() -> None:
    with pytest.raises(RecursionError):
        rf.range_(5).map(same).do_on_complete(ignore).subscribe(Endless(request=1))


def test_a_function_without_end_fails_the_stream() -> None:
    def endless(x: int) -> int:
        return endless(x)

    recorder = subscribed(chain(rf.range_(5).map(endless), OPS["many"], 20), 1)
    assert recorder.elements == []
    assert isinstance(recorder.error, RecursionError)


def paged(n: int, page: int = 0, *, ask: bool = False) -> rf.Stream[Any]:
    """Every page, written recursively."""

    def follow(answer: int) -> rf.Stream[int]:
        here = rf.from_iterable([answer])
        return here.concat(paged(n, answer + 1, ask=ask)) if answer + 1 < n else here

    async def fetch(number: int) -> int:
        await asyncio.sleep(0)
        return number

    pages = rf.from_iterable([page])
    return (pages.map_async(fetch) if ask else pages).concat_map(follow)


NESTED: dict[str, Op] = {
    "concat of boundaries": lambda s: rf.concat(rf.empty(), s.publish_on("caller")),
    "merge of boundaries": lambda s: s.merge(rf.empty().publish_on("caller")).map(same),
    "merge on the caller": lambda s: rf.merge(rf.empty(), s.subscribe_on("caller")),
    "defer": lambda s: rf.defer(lambda: s),
    "multicast": lambda s: s.multicast(),
    **{name: use.within for name, use in uses(lambda use: use.within).items()},
}


@pytest.mark.parametrize("name", NESTED)
def test_a_thousand_streams_within_each_other_give_their_elements(name: str) -> None:
    stream = chain(rf.range_(5), NESTED[name], 1000)
    assert within_deadline(stream.to_list, 100) == [0, 1, 2, 3, 4]


def test_merges_of_threads_folded_sixty_times_complete() -> None:
    with ThreadPoolExecutor(2) as pool:
        merged = chain(rf.range_(5), lambda s: s.merge(rf.range_(3).publish_on(pool)).map(same), 60)
        assert len(within_deadline(merged.to_list, 100)) == 5 + 60 * 3


@pytest.mark.parametrize("ask", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_thousand_pages_that_follow_each_other_end(ask: bool) -> None:
    assert within_deadline(paged(1000, ask=ask).to_list, 100) == list(range(1000))


@pytest.mark.usefixtures("unraisable", "quiet")
@pytest.mark.parametrize("name", NESTED)
def test_too_short_a_stack_for_streams_within_each_other_is_an_error_and_no_hang(name: str) -> None:
    for left in range(2, 400, 67):
        stream = chain(rf.range_(5), NESTED[name], 32)
        assert outcome(left, stream) in ("too deep", "[0, 1, 2, 3, 4]")


@pytest.mark.usefixtures("quiet")
def test_a_long_chain_of_processors_may_be_too_deep_but_does_not_hang() -> None:
    """Each is subscribed before the one below is there, so it cannot know on how many it stands."""

    def processed(stream: rf.Stream[Any]) -> rf.Stream[Any]:
        made = rf.processor(lambda s: s.map(same))
        stream.subscribe(made)
        return rf.from_publisher(made)

    assert within_deadline(chain(rf.range_(5), processed, 10).to_list) == [0, 1, 2, 3, 4]
    with pytest.raises(RecursionError):
        within_deadline(chain(rf.range_(5), processed, 400).to_list)
