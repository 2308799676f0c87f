"""What comes and goes in a long stream leaves nothing: neither while it lasts nor after it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed

#: Blocks of memory that may come and go: far fewer than there are pages, switches or groups.
MARGIN = 300

Look = Callable[[object], object]


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def pages(depth_first: bool) -> Callable[[int, Look], None]:
    def run(n: int, look: Look) -> None:
        def following(page: int) -> rsf.Stream[int]:
            return rsf.from_iterable((page + 1,) if page + 1 < n else ())

        rsf.range_(1).expand(following, depth_first=depth_first).for_each(look).result(60)

    return run


def switches(n: int, look: Look) -> None:
    """From publishers that have given one element, and are silent then."""
    above = ManualPublisher()
    stream = rsf.from_publisher(above).switch_map(
        lambda page: rsf.from_iterable((page,)).concat(rsf.never()), prefetch=2
    )
    below: Recorder = subscribed(stream.do_on_next(look).filter(lambda _: False), rsf.UNBOUNDED)
    for page in range(n):
        send(above, page)
    above.requests.clear()
    below.subscription.cancel()


def groups(n: int, look: Look) -> None:
    """Of one element each, over with it."""
    parts: Any = rsf.range_(n).group_by(lambda page: page)
    parts.flat_map(lambda group: group.take(1)).for_each(look).result(60)


@pytest.mark.parametrize(
    ("run", "n"),
    [(pages(False), 1000), (pages(True), 1000), (switches, 1000), (groups, 10_000)],
    ids=["pages", "pages, depth first", "switches", "groups"],
)
def test_memory_returns_to_where_it_was(run: Callable[[int, Look], None], n: int) -> None:
    found: list[int] = [0] * 3
    places = {n // 10: 0, n - 1: 1}
    seen = 0

    def look(page: object) -> None:
        nonlocal seen
        seen += 1
        place = places.get(page)  # type: ignore[call-overload]
        if place is not None:
            found[place] = blocks()

    run(n, look)  # what is made once
    before, seen = blocks(), 0
    run(n, look)
    early, late, after = found[0], found[1], blocks()
    assert seen == n
    assert late - early < MARGIN
    assert after - before < MARGIN


@pytest.mark.usefixtures("slow_sources")
def test_of_slow_publishers_that_are_left_nothing_is_kept_to_be_asked_again() -> None:
    test_memory_returns_to_where_it_was(groups, 3000)
