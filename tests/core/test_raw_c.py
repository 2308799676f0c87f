"""Races on the raw C core, from several Python threads: cffi lets the GIL go around every call.

The bodies of the threads are in ``csrc/tests/race.c``. They check what they see and give up when
they wait in vain, so a broken core is a wrong answer and never a hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import CANCELLED, TERMINATED
from tests.helpers import run_threads

#: Many times a time slice. The programs of ``csrc/tests`` race for longer.
MANY = 50_000

#: Seconds after which no further race is begun.
ENOUGH = 0.5

#: A start from which the free-running indices wrap round 2**64 early in the race.
NEARLY_WRAPPED = 2**64 - 1000


def race(*bodies: Callable[[], int]) -> list[int]:
    """Run every body in a thread of its own, without the GIL, and return their answers."""
    return run_threads(bodies)


def new_ring(capacity: int, start: int = 0) -> tuple[Any, Any]:
    ring = ffi.new("rsf_ring *")
    assert lib.rsf_ring_init(ring, capacity)
    ring.tail = ring.cached_head = ring.head = ring.cached_tail = start
    return ring, ffi.new("uint64_t[]", lib.rsf_ring_slots(ring))


@pytest.mark.parametrize("capacity", [1, 3, 1024])
@pytest.mark.parametrize("burst", [1, 64])
def test_ring_loses_nothing(capacity: int, burst: int) -> None:
    until = time.monotonic() + ENOUGH
    # Through a small ring every few elements are a hand-over, and on a busy machine every hand-over
    # a wait for the processor.
    some = min(MANY, 500 * capacity)
    for _ in range(MANY // some):
        ring, storage = new_ring(capacity, NEARLY_WRAPPED)
        answers = race(
            partial(lib.rsf_race_ring_produce, ring, storage, some, burst),
            partial(lib.rsf_race_ring_consume, ring, storage, burst),
        )
        assert answers == [some, some]
        assert lib.rsf_ring_is_drained(ring)
        assert lib.rsf_ring_size(ring) == 0
        if time.monotonic() > until:
            break


def test_ring_guard_lets_one_in_at_a_time() -> None:
    ring, _ = new_ring(4)
    plain = ffi.new("uint64_t *")
    answers = race(*[partial(lib.rsf_race_ring_guard, ring, plain, MANY)] * 3)
    assert answers == [MANY] * 3
    assert plain[0] == 3 * MANY


def test_demand_adds_up() -> None:
    demand = ffi.new("rsf_demand *")
    requested_1, requested_2, fulfilled_1, fulfilled_2 = race(
        partial(lib.rsf_race_demand_request, demand, 3, MANY),
        partial(lib.rsf_race_demand_request, demand, 1, MANY),
        partial(lib.rsf_race_demand_fulfil, demand, MANY),
        partial(lib.rsf_race_demand_fulfil, demand, MANY),
    )
    assert (requested_1, requested_2) == (3 * MANY, MANY)
    assert (fulfilled_1, fulfilled_2) == (MANY, MANY)
    assert lib.rsf_demand_load(demand) == 2 * MANY


def test_demand_saturates() -> None:
    demand = ffi.new("rsf_demand *")
    race(
        partial(lib.rsf_race_demand_request, demand, UNBOUNDED // 8, 1000),
        partial(lib.rsf_race_demand_request, demand, UNBOUNDED, 1000),
        partial(lib.rsf_race_demand_fulfil, demand, 1000),
    )
    assert lib.rsf_demand_load(demand) == UNBOUNDED


@pytest.mark.parametrize(
    ("end", "sentinel"),
    [(lib.rsf_demand_cancel, CANCELLED), (lib.rsf_demand_terminate, TERMINATED)],
    ids=["cancel", "terminate"],
)
def test_demand_counts_to_its_end(end: Callable[[Any], int], sentinel: int) -> None:
    demand = ffi.new("rsf_demand *")
    requested, fulfilled, left = race(
        partial(lib.rsf_race_demand_request, demand, 2, MANY),
        partial(lib.rsf_race_demand_fulfil, demand, MANY),
        partial(end, demand),
    )
    assert left == requested - fulfilled
    assert lib.rsf_demand_load(demand) == sentinel


class RacedSerializer:
    """A serializer with the C subscriber of ``race.h``, and what keeps their memory alive."""

    def __init__(self, capacity: int) -> None:
        slots = lib.rsf_serial_slots(capacity)
        self._cells = ffi.new("rsf_serial_cell[]", slots)
        self._slots = ffi.new("uint64_t[]", slots)
        self.subscriber = ffi.new("rsf_race_subscriber *")
        self.subscriber.cells = self._cells
        self.subscriber.slots = self._slots
        self.serial = ffi.addressof(self.subscriber, "serial")
        assert lib.rsf_serial_init(self.serial, self._cells, capacity)

    def signal(self, thread: int, count: int) -> Callable[[], int]:
        return partial(lib.rsf_race_serial_signal, self.subscriber, thread, count)

    def terminate(self, kind: int) -> Callable[[], int]:
        return partial(lib.rsf_race_serial_terminate, self.subscriber, kind)

    def check(self, received: list[int], terminals: int) -> None:
        assert self.subscriber.violation == 0
        assert [self.subscriber.received[i] for i in range(len(received))] == received
        assert self.subscriber.terminals == terminals
        assert lib.rsf_serial_size(self.serial) == 0


@pytest.mark.parametrize("capacity", [1, 3, 1024])
def test_serializer_delivers_in_order_one_at_a_time(capacity: int) -> None:
    raced = RacedSerializer(capacity)
    threads = 3
    count = MANY // 4
    assert race(*[raced.signal(i, count) for i in range(threads)]) == [count] * threads
    raced.check([count] * threads, terminals=0)
    assert raced.terminate(lib.RSF_SERIAL_COMPLETE)() == 1
    raced.check([count] * threads, terminals=1)


def test_serializer_ends_once_and_last() -> None:
    for _ in range(50):
        raced = RacedSerializer(8)
        *accepted, first, second = race(
            raced.signal(0, MANY),
            raced.signal(1, MANY),
            raced.terminate(lib.RSF_SERIAL_COMPLETE),
            raced.terminate(lib.RSF_SERIAL_ERROR),
        )
        assert first + second == 1
        # What was accepted came before the end; what came after was refused.
        raced.check(accepted, terminals=1)
