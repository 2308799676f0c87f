"""What ``metrics_of`` says of a boundary in which elements wait, and of what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rstreams_fast as rsf
from tests.rules.probes import Clock, ManualPublisher, send, subscribed


@dataclass
class Figures:
    """Of a boundary that was asked for ``demand`` results and got the elements ``sent``."""

    build: Callable[[rsf.Stream[Any]], rsf.Stream[Any]]
    demand: int
    sent: list[Any]
    held: int
    max_held: int
    held_bytes: int | None = None
    dropped: int = 0
    #: Whether the elements wait for the subscriber to ask; else for another publisher, or a time.
    waits_for_demand: bool = True


FIGURES = {
    "merge of 2 publishers: at most 8 elements of each, 16 in all": Figures(
        lambda s: s.merge(rsf.never(), prefetch=8), 2, [1, 2, 3, 4], 2, 16
    ),
    "merge_sorted of 2 publishers: at most 4 elements of each, 8 in all": Figures(
        lambda s: s.merge_sorted(rsf.never(), prefetch=4), 1, [1, 2], 2, 8, waits_for_demand=False
    ),
    "concat_map": Figures(
        lambda s: s.concat_map(lambda _: rsf.never(), prefetch=4), 2, [1, 2, 3], 2, 4,
        waits_for_demand=False,
    ),
    "unbatch(): at most 1 iterable": Figures(lambda s: s.unbatch(), 3, [[1, 2, 3, 4]], 1, 1),
    "batch(4, after 10 s): at most 4 elements and 90 bytes": Figures(
        lambda s: s.batch(4, seconds=10, timer=Clock(), max_bytes=90, weigher=abs), 1, [20], 1, 4,
        held_bytes=20, waits_for_demand=False,
    ),
    "on_overflow": Figures(
        lambda s: s.on_overflow(rsf.Overflow.DROP_LATEST, capacity=2), 1, [1, 2, 3, 4], 2, 2,
        dropped=1,
    ),
    "publish_on": Figures(
        lambda s: s.publish_on("caller", prefetch=8, max_bytes=100, weigher=len), 1, ["abc"] * 3,
        2, 8, held_bytes=6,
    ),
    "publish_records_on": Figures(
        lambda s: s.publish_records_on("i8", "caller", capacity=10, chunk=4), 1, [np.arange(8)],
        4, 10, held_bytes=32,
    ),
    "multicast": Figures(lambda s: s.multicast(buffer_size=8), 1, [1, 2, 3], 2, 8),
    "replay": Figures(
        lambda s: s.replay(count=3, max_bytes=100, weigher=len), 4, ["a" * n for n in range(6)],
        3, 3 + 1024, held_bytes=3 + 4 + 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_boundary_says_live_what_it_holds_and_waits_for(name: str) -> None:
    expected, above = FIGURES[name], ManualPublisher()
    recorder = subscribed(expected.build(rsf.from_publisher(above)), expected.demand)

    def look() -> rsf.BoundaryMetrics:
        return rsf.metrics_of(recorder.subscription)[0]

    first, second = look(), look()
    assert name in first.name
    assert (first.held, first.demand, first.waited_for_demand) == (0, expected.demand, 0)
    assert second.waited_for_upstream > first.waited_for_upstream
    send(above, *expected.sent)
    figures, later = look(), look()
    assert (figures.held, figures.max_held) == (expected.held, expected.max_held)
    assert (figures.held_bytes, figures.dropped) == (expected.held_bytes, expected.dropped)
    if expected.waits_for_demand:
        assert figures.demand == 0
        assert later.waited_for_demand > figures.waited_for_demand
        assert later.waited_for_upstream == figures.waited_for_upstream
    recorder.subscription.cancel()
    after = rsf.metrics_of(recorder.subscription)
    assert {(each.held, each.held_bytes or 0, each.demand) for each in after} <= {(0, 0, 0)}
    assert len(after) == (name not in ("multicast", "replay"))
