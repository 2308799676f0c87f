"""Random pipelines, for hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from rstreams_fast.api import UNBOUNDED
from tests.operators import OPERATORS, Op, Origin
from tests.operators.flow import MapBlocking
from tests.operators.sources import origins
from tests.streams.pipelines import model as m

__all__ = ["MODELLED", "may_follow", "pipelines"]

#: What random pipelines are made of.
MODELLED = tuple(op for op in OPERATORS if op.modelled)
_ORIGINS = origins()
_DRAWN = {op: op.drawn() for op in MODELLED}

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


def may_follow(origin: Origin, ops: list[Op], op: Op) -> bool:
    """Whether what comes out is known: order matters only where it is kept, and what is recovered
    from is known where nothing overtakes. What subscribes twice needs a source that allows it.
    """
    if op.recovers:
        exact = origin.is_pulled and not any(above.is_boundary for above in ops)
        return exact and not (op.resubscribes and origin.kind == "iterator")
    return not op.needs_order or all(above.keeps_order for above in ops)


@st.composite
def pipelines(draw: Any, pool: tuple[type[Op], ...] = MODELLED) -> m.Pipeline:
    """Any source, any operators of the pool, any demand, any end, one failure at most."""
    ops: list[Op] = []
    origin = draw(_ORIGINS)
    for kind in draw(st.lists(st.sampled_from(pool), max_size=8)):
        op = draw(_DRAWN[kind])
        if may_follow(origin, ops, op):
            ops.append(op)
    borne = m.continued(tuple(ops))  # which element is left out depends on their order
    places = [
        index
        for index, op in enumerate(ops)
        if hasattr(op, "fn")
        and (index not in borne or all(above.keeps_order for above in ops[:index]))
    ]
    fault = None
    if places and draw(st.booleans()):
        fault = m.Fault(draw(st.sampled_from(places)), draw(_points))
        if isinstance(op := ops[fault.op], MapBlocking):  # else which call is number n is chance
            ops[fault.op] = dataclasses.replace(op, concurrency=1)
    subscribers = 1
    stop = draw(_stops)
    if ops and ops[-1].shared and stop.where != "subscribe":
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
