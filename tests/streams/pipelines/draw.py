"""Random pipelines, for hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from rstreams_fast.api import UNBOUNDED
from tests.streams.pipelines import model as m

__all__ = ["OPERATORS", "pipelines"]

_small = st.integers(0, 6)
_positive = st.integers(1, 6)
_seeds = st.none() | st.integers(0, 9)
_executors = st.sampled_from(
    ["own", "pool", "loop", "caller", "refusing:0", "refusing:1", "refusing:3"]
)

_sizes = st.integers(0, 12) | st.sampled_from([30, 70])
_origins = st.one_of(
    st.builds(m.Origin, kind=st.sampled_from(["range"]), size=_sizes),
    st.builds(
        m.Origin,
        kind=st.sampled_from(
            ["list", "list", "iterator", "generate", "defer", "using", "async",
             "foreign", "foreign-late", "foreign-thread",
             "foreign-thread-late", "create", "create-thread"]
        ),
        size=_sizes,
        fails=st.sampled_from([False, False, False, True]),
    ),
    st.sampled_from(
        [m.Origin("empty", 0), m.Origin("error", 0, fails=True), m.Origin("callable", 1)]
    ),
)  # fmt: skip

_beside = st.lists(_origins, min_size=1, max_size=2).map(tuple)
_prefetches = st.sampled_from([1, 2, 4, 16])
_inner = st.sampled_from(["list", "range", "foreign", "foreign-late", "foreign-thread", "create"])

#: For each operator how its arguments are drawn.
OPERATORS: dict[type[m.Op], st.SearchStrategy[Any]] = {
    m.Map: st.builds(m.Map, in_c=st.booleans()),
    m.Spread: st.builds(m.Spread),
    m.MapNotNone: st.builds(m.MapNotNone),
    m.Filter: st.builds(m.Filter, divisor=st.integers(1, 4), in_c=st.booleans()),
    m.Take: st.builds(m.Take, n=_small),
    m.TakeWhile: st.builds(m.TakeWhile, limit=st.sampled_from([0, 3, 20, 50])),
    m.Skip: st.builds(m.Skip, n=_small),
    m.SkipWhile: st.builds(m.SkipWhile, limit=st.sampled_from([0, 3, 20, 50])),
    m.Scan: st.builds(m.Scan, seed=_seeds),
    m.Reduce: st.builds(m.Reduce, seed=_seeds),
    m.Batch: st.builds(m.Batch, n=_positive),
    m.Windows: st.builds(m.Windows, n=_positive, skip=_positive, streams=st.booleans()),
    m.Sift: st.builds(m.Sift, operator=st.sampled_from(["debounce", "throttle_first", "sample"])),
    m.Groups: st.builds(m.Groups, prefetch=_prefetches),
    m.DoOn: st.builds(
        m.DoOn,
        signal=st.sampled_from(
            ["next", "subscribe", "error", "complete", "request", "cancel", "finally"]
        ),
    ),
    m.Unbatch: st.builds(m.Unbatch),
    m.PublishOn: st.builds(
        m.PublishOn,
        executor=_executors,
        prefetch=st.sampled_from([1, 2, 4, 16]),
        max_bytes=st.none() | st.sampled_from([1, 8]),
        delay_error=st.booleans(),
    ),
    m.SubscribeOn: st.builds(m.SubscribeOn, executor=_executors),
    m.MapAsync: st.builds(
        m.MapAsync,
        concurrency=st.integers(1, 4),
        prefetch=st.sampled_from([4, 8]),
        ordered=st.booleans(),
        suspends=st.booleans(),
        in_turn=st.booleans(),
        loop=st.sampled_from(["shared", "shared", "shared", "private"]),
    ),
    m.MapBlocking: st.builds(
        m.MapBlocking,
        concurrency=st.integers(1, 3),
        prefetch=st.sampled_from([4, 8]),
        ordered=st.booleans(),
    ),
    m.Distinct: st.builds(m.Distinct),
    m.DistinctKeys: st.builds(m.DistinctKeys, max_keys=_positive),
    m.Continuing: st.builds(m.Continuing),
    m.Passing: st.builds(m.Passing, operator=st.sampled_from(["named", "log", "timestamp"])),
    m.WindowTime: st.builds(m.WindowTime, prefetch=_prefetches),
    m.DelayElements: st.builds(m.DelayElements),
    m.HeavyBatch: st.builds(
        m.HeavyBatch,
        n=_positive,
        max_bytes=st.none() | st.sampled_from([1, 6]),
        timed=st.booleans(),
    ),
    m.Timeout: st.builds(m.Timeout),
    m.OnOverflow: st.builds(
        m.OnOverflow, strategy=st.sampled_from(["BUFFER", "DROP_OLDEST", "DROP_LATEST"])
    ),
    m.Merge: st.builds(m.Merge, others=_beside, prefetch=_prefetches, delay_error=st.booleans()),
    m.Zip: st.builds(m.Zip, others=_beside, prefetch=_prefetches),
    m.CombineLatest: st.builds(
        m.CombineLatest,
        other=st.builds(m.Origin, kind=_inner, size=st.integers(0, 1)),
        prefetch=_prefetches,
    ),
    m.WithLatest: st.builds(
        m.WithLatest,
        other=st.builds(m.Origin, kind=st.sampled_from(["list", "range", "foreign"]), size=_small),
    ),
    m.Race: st.builds(m.Race, first=st.booleans()),
    m.TakeUntil: st.builds(m.TakeUntil, kind=st.sampled_from(["never", "never", "list", "empty"])),
    m.Concat: st.builds(m.Concat, others=_beside),
    m.FlatMap: st.builds(
        m.FlatMap,
        kind=_inner,
        concurrency=st.integers(1, 3),
        prefetch=_prefetches,
        delay_error=st.booleans(),
        sequential=st.booleans(),
    ),
    m.ConcatMap: st.builds(m.ConcatMap, kind=_inner, prefetch=_prefetches),
    m.SwitchMap: st.builds(m.SwitchMap, kind=_inner, size=_small, prefetch=_prefetches),
    m.Expand: st.builds(m.Expand, kind=_inner, depth_first=st.booleans()),
    m.StartWith: st.builds(m.StartWith, n=_small),
    m.IfEmpty: st.builds(m.IfEmpty, n=_positive),
    m.ErrorReturn: st.builds(m.ErrorReturn),
    m.Shared: st.builds(
        m.Shared,
        kind=st.sampled_from(["multicast", "share", "replay"]),
        buffer_size=st.sampled_from([1, 2, 4, 16]),
    ),
    m.Through: st.builds(
        m.Through,
        kind=st.sampled_from(["processor", "serialized", "multicast", "replay"]),
        upstream_first=st.booleans(),
    ),
    m.Retry: st.builds(m.Retry, times=st.integers(0, 2)),
    m.Repeat: st.builds(m.Repeat, times=st.integers(0, 2)),
    m.Resume: st.builds(m.Resume, other=_origins),
}

_amounts = st.sampled_from([1, 1, 2, 3, 7, 100, UNBOUNDED])
_demands = st.builds(
    m.Demand,
    first=st.just(0) | _amounts,
    inside=st.sampled_from([0, 0, 1, 1, 2]),
    outside=st.lists(_amounts, min_size=1, max_size=3).map(tuple),
    by=st.sampled_from(["main", "main", "another", "two"]),
)
_points = st.integers(0, 6)
_anywhere = st.sampled_from(["subscribe", "next", "outside"])
_stops = st.one_of(
    st.just(m.Stop()),
    st.just(m.Stop()),
    st.builds(m.Stop, st.just("cancel"), _points, _anywhere),
    st.builds(m.Stop, st.just("raise"), _points, st.sampled_from(["subscribe", "next"])),
    st.builds(
        m.Stop,
        st.just("bad"),
        _points,
        st.sampled_from(["next", "outside"]),
        st.sampled_from([0, -1, True, 1.5, "1"]),
    ),
)
_bursts = st.sampled_from([1, 2, 256])


def _may_follow(origin: m.Origin, ops: list[m.Op], op: m.Op) -> bool:
    """Whether what comes out is known: order matters only where it is kept, and what is recovered
    from is known where nothing overtakes. Who subscribes twice needs a source that lets him.
    """
    if op.recovers:
        exact = origin.is_pulled and not any(above.is_boundary for above in ops)
        return exact and not (isinstance(op, (m.Retry, m.Repeat)) and origin.kind == "iterator")
    return not op.needs_order or all(above.keeps_order for above in ops)


@st.composite
def pipelines(draw: Any, pool: tuple[type[m.Op], ...] = tuple(OPERATORS)) -> m.Pipeline:
    """Any source, any operators of the pool, any demand, any end, one failure at most."""
    ops: list[m.Op] = []
    origin = draw(_origins)
    for kind in draw(st.lists(st.sampled_from(pool), max_size=8)):
        op = draw(OPERATORS[kind])
        if _may_follow(origin, ops, op):
            ops.append(op)
    borne = m.continued(tuple(ops))  # which element is left out depends on their order
    places = [
        index
        for index, op in enumerate(ops)
        if op.functions and (index not in borne or all(above.keeps_order for above in ops[:index]))
    ]
    fault = None
    if places and draw(st.booleans()):
        fault = m.Fault(draw(st.sampled_from(places)), draw(_points))
        if isinstance(op := ops[fault.op], m.MapBlocking):  # else which call is number n is chance
            ops[fault.op] = dataclasses.replace(op, concurrency=1)
    subscribers = 1
    stop = draw(_stops)
    if ops and isinstance(ops[-1], m.Shared) and stop.where != "subscribe":
        subscribers = draw(st.integers(1, 3))
    return m.Pipeline(
        origin=origin,
        ops=tuple(ops),
        demand=draw(_demands),
        stop=stop,
        fault=fault,
        burst=draw(_bursts),
        subscribers=subscribers,
        discards=draw(st.sampled_from([True, True, False])),
    )
