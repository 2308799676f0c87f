"""The C core on threads that no interpreter knows, beside other cores."""

from __future__ import annotations

from bench.drivers import Driver, boost, core, java
from bench.measure import Contestant, Group, Outcome, Role, Work
from bench.workloads import BURST

__all__ = ["NATIVE"]


def _core(name: str, function: str, role: Role, n: int, setting: int, note: str = "") -> Contestant:
    return Contestant(name, role, n, lambda n: _driven(core(function), n, setting), note)


def _boost(name: str, function: str, n: int, burst: int, note: str) -> Contestant:
    return Contestant(name, "peer", n, lambda n: _driven(boost(function), n, burst), note)


def _driven(driver: Driver, n: int, setting: int) -> tuple[Work, object]:
    return (lambda: driver(n, setting)), n


def _java_ring(n: int, burst: int) -> tuple[Work, object]:
    driver = java()

    def work() -> Outcome:
        before = driver.cpu_ns()
        result = driver.ask("ring", n, burst)
        return Outcome(result, cpu=driver.cpu_ns() - before)

    return work, n


def _demand(threads: int) -> Group:
    n = 2_000_000
    return Group(
        f"demand-c-{threads}",
        "primitive",
        f"demand from C, {threads} thread{'s' if threads > 1 else ''}",
        [
            _core("ours, rsf_demand_request", "demand", "ours", n, threads),
            _core("bare CAS loop", "demand_by_cas", "floor", n, threads),
            _core("bare atomic add", "demand_by_add", "floor", n, threads, "cannot saturate"),
        ],
        unit="ns per request",
    )


def _ring(name: str, title: str, n: int, burst: int) -> Group:
    if burst == 1:
        how = "places asked for by 128; each element visible, and each place free, at once"
        simply = "ours, a call in and a call out for each"
    else:
        how = "lines fetched ahead"
        simply = "ours, nothing fetched ahead"
    consistent = _core(
        "one-line ring, sequentially consistent",
        "ring_plain_sc",
        "lost",
        n,
        burst,
        "indices are published by exchanges",
    )
    lost = [consistent] if burst == 1 else []  # in bursts an exchange more or less is nothing
    return Group(
        name,
        "primitive",
        title,
        [
            _core("ours", "ring", "ours", n, burst, how),
            _core(simply, "ring_simply", "ours", n, burst),
            _core(
                "no index, only the elements' lines",
                "ring_slots",
                "floor",
                n,
                burst,
                "no 0, no size, no close",
            ),
            _core(
                "one-line ring",
                "ring_plain",
                "floor",
                n,
                burst,
                "asks for the other side's index every time",
            ),
            *lost,
            _boost("boost spsc_queue", "ring", n, burst, "C++"),
            _boost("boost spsc_queue, consume_all", "ring_in_place", n, burst, "C++"),
            Contestant("JCTools SpscArrayQueue", "peer", n, lambda n: _java_ring(n, burst), "Java"),
        ],
    )


def _serial(threads: int) -> Group:
    n = 800_000
    bare = [_core("bare call", "serial_bare", "floor", n, 1)] if threads == 1 else []
    return Group(
        f"serializer-c-{threads}",
        "primitive",
        f"serializer from C, {threads} thread{'s' if threads > 1 else ''}",
        [
            _core("ours", "serial", "ours", n, threads),
            *bare,
            _core(
                "ours, always through the mailbox",
                "serial_by_mailbox",
                "lost",
                n,
                threads,
                "no way past it when nobody else signals",
            ),
            _core("pthread_mutex around it", "serial_by_lock", "peer", n, threads),
        ],
        unit="ns per signal",
    )


NATIVE = [
    _demand(1),
    _demand(8),
    _ring("ring-c", "C ring, one by one, two threads, capacity 1024", 2_000_000, 1),
    _ring("ring-c-bursts", "C ring, bursts of 256, two threads, capacity 1024", 8_000_000, BURST),
    _serial(1),
    _serial(4),
]
