"""One source, two subscribers: each gets every element.

How far one may be ahead of the other, ``MULTICAST_BUFFER``, was chosen by the first group and the
last: processor time per element, at best and at the median, on two busy cores (RxPY: 2545/2884 in
the same run).

    buffer_size        32         64        128       256      512     1024     2048     4096
    two at once  2643/3235  1616/1808   797/1061   501/746  522/602  431/511  472/553  385/527
    two threads  4408/4562  2382/2627  1492/1636  931/1139  633/940  720/760  695/782  584/702
"""

from __future__ import annotations

from collections.abc import Callable

import rstreams_fast as rsf
from bench.measure import Contestant, Group, Role, Work, WrongResultError
from bench.peers import rxpy
from bench.workloads import CHECKED, Collecting, Sink, Summing

__all__ = ["SHARING"]

_REPLAYED = 1000


def _contestant(
    name: str, role: Role, n: int, run: Callable[[int, Sink, Sink], None], note: str = ""
) -> Contestant:
    """``run(n, one, other)`` feeds ``0 .. n - 1`` to both."""

    def check() -> None:
        sinks = Collecting(), Collecting()
        run(CHECKED, *sinks)
        if any(sink.elements != list(range(CHECKED)) for sink in sinks):
            raise WrongResultError(f"{name}: the elements are not those expected, in order")

    def begin(n: int) -> tuple[Work, object]:
        one, other = Summing(), Summing()

        def work() -> object:
            run(n, one, other)
            return one.total, other.total

        return work, (n * (n - 1) // 2,) * 2

    return Contestant(name, role, n, begin, note, check)


def _feed(shared: rsf.Stream[int], one: Sink, other: Sink) -> None:
    shared.subscribe(one)
    shared.subscribe(other)
    one.wait()
    other.wait()


def _multicast(n: int, one: Sink, other: Sink) -> None:
    _feed(rsf.range_(n).multicast(min_subscribers=2), one, other)


def _replay(n: int, one: Sink, other: Sink) -> None:
    _feed(rsf.range_(n).replay(count=_REPLAYED, min_subscribers=2), one, other)


def _to_threads(n: int, one: Sink, other: Sink) -> None:
    shared = rsf.range_(n).multicast(min_subscribers=2)
    shared.publish_on().subscribe(one)
    shared.publish_on().subscribe(other)
    one.wait()
    other.wait()


def _loop(n: int, one: Sink, other: Sink) -> None:
    first, second = one.on_next, other.on_next
    for i in range(n):
        first(i)
        second(i)


SHARING = [
    Group(
        "multicast",
        "use",
        "range, multicast, on_next of two subscribers in one thread",
        [
            _contestant("ours", "ours", 50_000, _multicast),
            _contestant("the same calls in a loop", "floor", 100_000, _loop),
            _contestant("RxPY 6.1 publish", "peer", 20_000, rxpy.publish, "no bound, no demand"),
        ],
    ),
    Group(
        "replay",
        "use",
        f"the same, with the last {_REPLAYED} elements kept for those who come late",
        [
            _contestant("ours", "ours", 50_000, _replay),
            _contestant("the same calls in a loop", "floor", 100_000, _loop),
            _contestant(
                "RxPY 6.1 replay",
                "peer",
                2_000,
                lambda n, one, other: rxpy.replay(n, _REPLAYED, one, other),
            ),
        ],
    ),
    Group(
        "multicast-threads",
        "use",
        "range, multicast, publish_on twice: on_next of two subscribers, each on its own thread",
        [
            _contestant("ours", "ours", 50_000, _to_threads),
            _contestant("the same calls in one thread", "floor", 100_000, _loop),
        ],
    ),
]
