"""What the project wants to reach, and what was measured for it in one run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.measure import Spread, Timing

__all__ = ["TARGETS", "Round", "Target", "judge", "rounds_of"]

#: Of every round: group, contestant, timing.
Measured = Sequence[Mapping[str, Mapping[str, Timing]]]


@dataclass(frozen=True)
class Round:
    """What one round measured; a ``KeyError`` where it did not."""

    values: Mapping[str, Mapping[str, Timing]]
    #: Of every group, its fastest floor over all rounds.
    floors: Mapping[str, str]
    by_cpu: bool = False

    def of(self, group: str, name: str) -> float:
        timing = self.values[group][name]
        if not self.by_cpu:
            return timing.wall
        if not timing.cpu:
            raise KeyError(name)  # no time was measured, or less than the clock can tell
        return timing.cpu

    def floor(self, group: str) -> float:
        return self.of(group, self.floors[group])

    def ratio(self, group: str, above: str, below: str) -> float:
        return self.of(group, above) / self.of(group, below)


@dataclass(frozen=True)
class Target:
    """A figure that is to be at most, or at least, ``bound``."""

    path: str
    what: str
    relation: str  # "<=" or ">="
    bound: float
    figure: Callable[[Round], float]
    unit: str = ""

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.relation == "<=" else value >= self.bound


def rounds_of(measured: Measured, roles: Mapping[str, Mapping[str, str]]) -> list[Round]:
    """``roles``: of every group, its contestants' roles."""
    floors: dict[str, str] = {}
    for group, contestants in roles.items():
        medians = {
            name: statistics.median(walls)
            for name, role in contestants.items()
            if role == "floor"
            and (walls := [r[group][name].wall for r in measured if name in r.get(group, {})])
        }
        if medians:
            floors[group] = min(medians, key=lambda name: medians[name])
    return [Round(values, floors) for values in measured]


def judge(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """Every target with what was measured (``None``: nothing was) and whether it is met."""
    answer = []
    for target in TARGETS:
        spread = _spread(target, rounds)
        by_cpu = _spread(target, [replace(each, by_cpu=True) for each in rounds])
        answer.append(
            {
                "path": target.path,
                "what": target.what,
                "relation": target.relation,
                "bound": target.bound,
                "unit": target.unit,
                "measured": asdict(spread) if spread else None,
                "by_cpu": asdict(by_cpu) if by_cpu else None,
                "met": target.holds(spread.median) if spread else None,
            }
        )
    return answer


def _spread(target: Target, rounds: Sequence[Round]) -> Spread | None:
    figures = []
    for each in rounds:
        try:
            figures.append(target.figure(each))
        except KeyError:  # this round did not measure it
            continue
    return Spread.of(figures) if figures else None


def _at_most(path: str, what: str, bound: float, group: str, above: str, below: str) -> Target:
    return Target(path, what, "<=", bound, lambda r: r.ratio(group, above, below))


def _at_least(path: str, what: str, bound: float, group: str, above: str, below: str) -> Target:
    return Target(path, what, ">=", bound, lambda r: r.ratio(group, above, below))


def _one_more_map(r: Round) -> float:
    ours = r.of("maps-11", "ours") - r.of("maps-1", "ours")
    bare = r.of("maps-11", "hand-written loop") - r.of("maps-1", "hand-written loop")
    if bare <= 0:
        raise KeyError("maps-11")  # too noisy a round: eleven calls took no longer than one
    return ours / bare


def _near_floor(group: str) -> Target:
    def figure(r: Round) -> float:
        return r.of(group, "ours") / r.floor(group)

    return Target(_OPERATORS, f"{group}: ours / a loop by hand", "<=", 1.2, figure)


_FUSED_C = "fused, C callables"
_ENDS = "native ends, Python callables"
_BOUNDARY = "publish_on, 1024, thread to thread"
_LOOP = "thread to asyncio (async for)"
_MAP_ASYNC = "map_async, nothing suspends"
_RECORDS = "RecordRing, bulk"
_QUEUES = "queues, thread to thread"
_RING = "raw C ring"
_DEMAND = "DemandCounter from C"
_SERIAL = "serializer"
_SUBSCRIBE = "subscribe, five stages"
_SHARING = "one source, two subscribers"
_COMBINING = "several publishers, one subscriber"
_OPERATORS = "operators of RxPY's name"

#: Where one thread at a time runs Python there is nothing to aim at.
_HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_IN_PARALLEL = [
    _at_least(
        "map_blocking, without a GIL",
        "one thread / ours",
        1.7,
        "map_blocking-python",
        "one thread",
        "ours",
    ),
    _at_most(
        "map_blocking, without a GIL",
        "ours / a half in each thread",
        1.2,
        "map_blocking-python",
        "ours",
        "a half in each thread",
    ),
]

TARGETS = [
    Target(
        "fused map.filter, Python callables",
        "ours / the faster floor",
        "<=",
        1.10,
        lambda r: r.of("fused", "ours") / r.floor("fused"),
    ),
    _at_most(
        "fused map.filter, Python callables",
        "for_each / hand-written loop",
        1.15,
        "fused",
        "for_each",
        "hand-written loop",
    ),
    _at_most(
        "fused map.filter, Python callables",
        "SyncSubscriber / subscribe(object)",
        1.3,
        "fused",
        "SyncSubscriber",
        "ours",
    ),
    _at_most(_FUSED_C, "ours / hand-written loop", 1.0, "fused-c", "ours", "hand-written loop"),
    _at_most(
        _FUSED_C,
        "ours / hand-written loop, names",
        1.0,
        "fused-names",
        "ours",
        "hand-written loop",
    ),
    _at_least("fused, one stage", "scan: RxPY / ours", 3, "fused-scan", "RxPY 6.1", "ours"),
    _at_least(
        "fused, one stage",
        "distinct_until_changed: RxPY / ours",
        3,
        "fused-distinct_until_changed",
        "RxPY 6.1",
        "ours",
    ),
    _at_least(
        "fused, one stage", "do_on_next: RxPY / ours", 2, "fused-do_on_next", "RxPY 6.1", "ours"
    ),
    _at_most(_ENDS, "to_list: ours / comprehension", 1.2, "to_list", "ours", "comprehension"),
    _at_most(_ENDS, "reduce: ours / loop", 1.2, "reduce", "ours", "hand-written loop"),
    _at_most(_ENDS, "to_arrow: ours / comprehension", 1.2, "to_arrow", "ours", "comprehension"),
    _at_most(
        _ENDS,
        "to_arrow, the callable does nothing",
        1.2,
        "to_arrow-nothing",
        "ours",
        "comprehension",
    ),
    Target("ten fused stages", "one more map / a bare call", "<=", 1.15, _one_more_map),
    _at_least(_BOUNDARY, "queue.Queue / ours", 10, "boundary", "queue.Queue(1024)", "ours"),
    _at_least(_BOUNDARY, "RxPY / ours", 100, "boundary", "RxPY 6.1 observe_on", "ours"),
    _at_most(
        "publish_on, 65 536, thread to thread",
        "ours / the direct loop",
        1.5,
        "boundary-65536",
        "ours",
        "the same calls in one thread",
    ),
    Target(
        _BOUNDARY,
        "memory that 1 000 000 elements add",
        "<=",
        2,
        lambda r: r.of("boundary-memory", "ours"),
        "MiB",
    ),
    _at_least(
        "beside two busy processes",
        "queue.Queue / ours",
        10,
        "boundary-busy",
        "queue.Queue(1024)",
        "ours",
    ),
    Target(
        "beside two busy processes",
        "ours there / ours alone",
        "<=",
        4,
        lambda r: r.of("boundary-busy", "ours") / r.of("boundary", "ours"),
    ),
    _at_least(_LOOP, "janus / ours", 10, "async-for", "janus", "ours"),
    _at_least(_LOOP, "culsans / ours", 10, "async-for", "culsans", "ours"),
    Target(
        _LOOP,
        "lag of the loop, 99th percentile",
        "<=",
        2,
        lambda r: r.of("loop-lag", "ours, 1 000 000 elements"),
        "ms",
    ),
    _at_most(
        _MAP_ASYNC, "ours / a function call", 3, "map_async", "ours", "calls of a plain function"
    ),
    _at_least(
        _MAP_ASYNC, "asyncio.gather / ours", 8, "map_async", "asyncio.gather of 1000", "ours"
    ),
    _at_least(
        "map_async, calls of one key in turn",
        "a worker for each key / ours",
        1,
        "map_async-key",
        "a worker for each key",
        "ours",
    ),
    *[
        _at_least(
            _RECORDS,
            f"of memcpy's speed, from C, {size} KiB",
            0.8,
            f"records-{size}",
            "memcpy",
            "ours, the C core's ring",
        )
        for size in (64, 256, 1024, 4096)
    ],
    *[
        _at_least(
            _RECORDS,
            f"of memcpy's speed, from Python, {size} KiB",
            0.8,
            f"records-{size}",
            "memcpy",
            "ours, write and read_into",
        )
        for size in (256, 1024, 4096)
    ],
    Target(
        _RECORDS,
        "where they are: 4096 KiB / 64 KiB",
        "<=",
        1.5,
        lambda r: (
            r.of("records-4096", "ours, reserve .. release")
            / r.of("records-64", "ours, reserve .. release")
        ),
    ),
    *[
        _at_least(
            _QUEUES,
            f"{threads} a side: queue.Queue / ours",
            5,
            f"queue-{threads}",
            "queue.Queue",
            "ours",
        )
        for threads in (1, 2, 4, 8)
    ],
    _at_least(
        _QUEUES, "a bound of 1: queue.Queue / ours", 1, "queue-of-one", "queue.Queue", "ours"
    ),
    _at_least(_RING, "one by one: boost / ours", 3, "ring-c", "boost spsc_queue", "ours"),
    _at_least(_RING, "one by one: JCTools / ours", 1, "ring-c", "JCTools SpscArrayQueue", "ours"),
    _at_least(
        _RING, "bursts of 256: boost / ours", 1.5, "ring-c-bursts", "boost spsc_queue", "ours"
    ),
    *[
        _at_most(
            _DEMAND,
            f"{threads} thread{'s' if threads > 1 else ''}: ours / bare CAS loop",
            bound,
            f"demand-c-{threads}",
            "ours, rsf_demand_request",
            "bare CAS loop",
        )
        for threads, bound in ((1, 1.3), (8, 1.5))
    ],
    Target(
        _SERIAL,
        "1 thread, from Python: over the bare call",
        "<=",
        25,
        lambda r: r.of("serializer-1", "ours") - r.of("serializer-1", "bare call of on_next"),
        "ns",
    ),
    Target(
        _SERIAL,
        "1 thread, from C: over the bare call",
        "<=",
        25,
        lambda r: r.of("serializer-c-1", "ours") - r.of("serializer-c-1", "bare call"),
        "ns",
    ),
    _at_least(
        _SERIAL,
        "4 threads: threading.Lock / ours",
        5,
        "serializer-4",
        "threading.Lock around on_next",
        "ours",
    ),
    _at_least(_SHARING, "multicast: RxPY / ours", 5, "multicast", "RxPY 6.1 publish", "ours"),
    _at_least(_SHARING, "replay: RxPY / ours", 20, "replay", "RxPY 6.1 replay", "ours"),
    Target(
        _SHARING,
        "to two publish_on",
        "<=",
        500,
        lambda r: r.of("multicast-threads", "ours"),
        "ns",
    ),
    _at_least(_COMBINING, "merge: RxPY / ours", 3, "merge", "RxPY 6.1", "ours"),
    _at_least(_COMBINING, "zip_: RxPY / ours", 20, "zip", "RxPY 6.1", "ours"),
    _at_least(_COMBINING, "flat_map: RxPY / ours", 12, "flat_map", "RxPY 6.1", "ours"),
    _at_least(_COMBINING, "concat_map: RxPY / ours", 8, "concat_map", "RxPY 6.1", "ours"),
    *[
        _at_least(_OPERATORS, f"{group}: RxPY / ours", 3, group, "RxPY 6.1", "ours")
        for group in (
            "combine_latest",
            "with_latest_from",
            "race",
            "batch-sliding",
            "group_by",
            "windows",
            "window_time",
            "switch_map",
            "distinct",
            "timestamp",
            "throttle_first",
            "debounce",
            "default_if_empty",
            "repeat",
            "on_error_return",
            "generate",
            "last",
            "count",
            "any",
            "all",
        )
    ],
    # A bare loop is 2.8 to 3 times as fast as RxPY here, which sets the aim.
    *map(_near_floor, ("take_until", "start_with", "do_finally", "defer", "using")),
    *[
        _at_most(
            "map_async, 2 % of the calls slow",
            f"ordered / unordered, {count} at once",
            1.1,
            f"map_async-{count}",
            "ours",
            "ours, unordered",
        )
        for count in (64, 256)
    ],
    _at_least(
        "map_blocking, two workers",
        "concurrent.futures by hand / ours",
        0.95,
        "map_blocking",
        "concurrent.futures by hand",
        "ours",
    ),
    *([] if _HAS_GIL else _IN_PARALLEL),
    Target(
        _COMBINING,
        "merge of two threads",
        "<=",
        250,
        lambda r: r.of("merge-threads", "ours"),
        "ns",
    ),
    Target(_SUBSCRIBE, "time", "<=", 5, lambda r: r.of("subscribe", "ours") / 1e3, "us"),
    Target(_SUBSCRIBE, "kept when idle", "<=", 1024, lambda r: r.of("idle", "ours"), "bytes"),
    Target(_SUBSCRIBE, "a million of them", "<=", 2, lambda r: r.of("million-idle", "ours"), "GB"),
]
