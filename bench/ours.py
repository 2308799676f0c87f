"""rstreams_fast itself, doing the same work as the peers and the floors."""

from __future__ import annotations

import rstreams_fast as rsf
from bench.workloads import BOUND, Callables, Sink


def fused(n: int, callables: Callables, sink: Sink) -> None:
    rsf.range_(n).map(callables.map).filter(callables.predicate).subscribe(sink)
    sink.wait()


def boundary(n: int, sink: Sink) -> None:
    """``subscribe_on`` gives the source a thread of its own, so two threads take part."""
    rsf.range_(n).subscribe_on().publish_on(prefetch=BOUND).subscribe(sink)
    sink.wait()
