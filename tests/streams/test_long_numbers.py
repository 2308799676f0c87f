"""Numbers of more digits than the interpreter is willing to write down.

``test_arguments.py`` has those that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rf
from tests.core.conftest import BACKENDS, load
from tests.rules.probes import subscribed

HUGE = 10**5000
BITS = re.escape(f"<an int of {HUGE.bit_length()} bits>")

five = rf.range_(5)
DESCRIBED: dict[str, Callable[[], rf.Stream[Any]]] = {
    "take": lambda: five.take(HUGE),
    "skip": lambda: five.skip(HUGE),
    "batch": lambda: five.batch(HUGE),
    "scan": lambda: five.scan(lambda a, _b: a, HUGE),
    "publish_on": lambda: five.publish_on(max_bytes=HUGE, weigher=int),
    "replay": lambda: five.replay(count=HUGE),
    "multicast": lambda: five.multicast(min_subscribers=HUGE),
}
IN_CORE: dict[str, Callable[[Any], object]] = {
    "DemandCounter": lambda core: core.DemandCounter(-HUGE),
    "SpscRing": lambda core: core.SpscRing(HUGE),
    "poll_many": lambda core: core.SpscRing(1).poll_many(-HUGE),
    "get": lambda core: core.SpscRing(1).get(-HUGE),
    "commit": lambda core: core.RecordRing("i8", 1).commit(HUGE),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_it_is_described(name: str) -> None:
    assert re.search(BITS, DESCRIBED[name]().describe())


def test_a_range_of_them_is_described() -> None:
    assert "range" in rf.range_(HUGE).describe()
    assert rf.range_(-HUGE, HUGE).take(2).to_list() == [-HUGE, -HUGE + 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IN_CORE)
def test_the_core_names_it(name: str, backend: str) -> None:
    with pytest.raises(ValueError, match=f"must be .*-?{BITS}"):
        IN_CORE[name](load(backend))


@pytest.mark.parametrize("n", [HUGE, -HUGE], ids=["huge", "as huge, below 0"])
def test_it_may_be_requested(n: int) -> None:
    recorder = subscribed(five, n)
    if n > 0:
        assert recorder.elements == [0, 1, 2, 3, 4]
    else:
        assert re.search(f"3.9.*-{BITS}", str(recorder.error))
