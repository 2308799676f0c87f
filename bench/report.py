"""The ratios: ``python -m bench.report [--processes N] [--rounds N] [--json FILE] [--strict]``.

Contestants alternate: every round runs each of them once, in an order that rotates, so that a mood
of the machine meets all of them; and they do so in several fresh processes. A ratio is taken within
a round; printed are its median over the rounds and, in brackets, its quartiles. The clock decides;
the same ratio of processor time, which others on the machine disturb less, stands beside it. Every
run's result is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.contestants import BOUNDARY, FUSED_C, FUSED_PYTHON, Contestant
from bench.measure import Timing, time_once
from rstreams_fast import __version__, backend

#: Quartiles of fewer would say nothing.
MIN_ROUNDS = 3

OURS = "ours"
PYTHON_FLOOR = "hand-written Python loop"
C_FLOOR = "C loop"
BOUNDED_QUEUE = "queue.Queue(1024)"
SIMPLE_QUEUE = "SimpleQueue, unbounded"
OBSERVE_ON = "RxPY 6.1 observe_on"


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:7.2f}  [{self.low:.2f} .. {self.high:.2f}]"


@dataclass(frozen=True)
class Goal:
    """A ratio of times that the project promises: at most, or at least, ``bound``.

    Of several names below, the one with the lowest median counts.
    """

    what: str
    above: str
    below: tuple[str, ...]
    bound: float
    at_most: bool

    def ratio(self, times: list[dict[str, float]]) -> Spread:
        """From every round's time per element, by contestant."""
        fastest = min(self.below, key=lambda name: statistics.median(t[name] for t in times))
        return Spread.of([t[self.above] / t[fastest] for t in times])

    def holds(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound


@dataclass(frozen=True)
class Workload:
    title: str
    contestants: list[Contestant]
    goals: list[Goal]


WORKLOADS = [
    Workload(
        "fused, Python callables: range -> map -> filter -> on_next",
        FUSED_PYTHON,
        [
            Goal("ours / the faster floor", OURS, (PYTHON_FLOOR, C_FLOOR), 1.15, at_most=True),
            Goal("RxPY 6.1 / ours", "RxPY 6.1", (OURS,), 2.7, at_most=False),
        ],
    ),
    Workload("fused, C callables", FUSED_C, []),
    Workload(
        "boundary at 1024 between two threads, to a Python on_next",
        BOUNDARY,
        [
            Goal("queue.Queue / ours", BOUNDED_QUEUE, (OURS,), 8.0, at_most=False),
            Goal("RxPY 6.1 observe_on / ours", OBSERVE_ON, (OURS,), 50.0, at_most=False),
            Goal("ours / unbounded SimpleQueue", OURS, (SIMPLE_QUEUE,), 1.35, at_most=True),
        ],
    ),
]


def measure(workload: Workload, rounds: int) -> list[dict[str, Timing]]:
    """Per round, the timing of every contestant by name."""
    expected = {}
    for contestant in workload.contestants:
        contestant.check()
        expected[contestant.name] = contestant.expected_total()
        time_once(contestant, expected[contestant.name])  # warm-up
    measured = []
    for number in range(rounds):
        turn = number % len(workload.contestants)
        order = workload.contestants[turn:] + workload.contestants[:turn]
        measured.append({c.name: time_once(c, expected[c.name]) for c in order})
    return measured


def report(workload: Workload, measured: list[dict[str, Timing]]) -> tuple[dict[str, object], bool]:
    """Print one workload's table; return it for the JSON file, and whether every goal holds."""
    print(f"\n{workload.title}")
    print(f"  {'':28}{'ns per element':^28}{'CPU ns':>8}   {'times ours':^24}")
    contestants: dict[str, object] = {}
    for contestant in workload.contestants:
        name = contestant.name
        wall = Spread.of([timings[name].wall for timings in measured])
        cpu = Spread.of([timings[name].cpu for timings in measured])
        times = Spread.of([timings[name].wall / timings[OURS].wall for timings in measured])
        print(f"  {name:28}{wall!s:28}{cpu.median:8.0f}   {times!s:24}")
        contestants[name] = {
            "elements": contestant.n,
            "wall_ns_per_element": asdict(wall),
            "cpu_ns_per_element": asdict(cpu),
            "times_ours": asdict(times),
        }
    goals, all_hold = [], True
    for goal in workload.goals:
        ratio = goal.ratio([{name: t.wall for name, t in timings.items()} for timings in measured])
        cpu_ratio = goal.ratio(
            [{name: t.cpu for name, t in timings.items()} for timings in measured]
        )
        holds = goal.holds(ratio.median)
        all_hold = all_hold and holds
        relation = "at most" if goal.at_most else "at least"
        verdict = "holds" if holds else "DOES NOT HOLD"
        print(
            f"  {goal.what:32}{ratio!s:24} {relation} {goal.bound:g}: {verdict}"
            f"  (of CPU: {cpu_ratio.median:.2f})"
        )
        goals.append(
            {
                "what": goal.what,
                relation: goal.bound,
                "ratio": asdict(ratio),
                "cpu_ratio": asdict(cpu_ratio),
                "holds": holds,
            }
        )
    table: dict[str, object] = {"title": workload.title, "contestants": contestants, "goals": goals}
    return table, all_hold


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    return {
        "rstreams_fast": __version__,
        "backend": backend,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor,
        "cores": os.cpu_count(),
    }


def measure_in_processes(processes: int, rounds: int) -> list[list[dict[str, Timing]]]:
    """Per workload, the rounds of several fresh processes one after the other.

    Where code and data happen to lie in memory makes a process faster or slower for all its life:
    one process would be one draw.
    """
    collected: list[list[dict[str, Timing]]] = [[] for _ in WORKLOADS]
    worker = [sys.executable, "-m", "bench.report", "--worker", "--rounds", str(rounds)]
    for number in range(processes):
        if sys.stderr.isatty():
            print(f"process {number + 1} of {processes}", end="\r", file=sys.stderr, flush=True)
        answer = subprocess.run(worker, stdout=subprocess.PIPE, text=True, check=True).stdout
        for workload, measured in zip(collected, json.loads(answer), strict=True):
            workload += [
                {name: Timing(**timing) for name, timing in timings.items()} for timings in measured
            ]
    return collected


def work(rounds: int) -> None:
    """What each of those processes does: measure everything and print it as JSON."""
    json.dump(
        [
            [{name: asdict(timing) for name, timing in timings.items()} for timings in measured]
            for measured in (measure(workload, rounds) for workload in WORKLOADS)
        ],
        sys.stdout,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--processes", type=int, default=5, help="fresh processes to measure in")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each process")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), metavar="FILE")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when a promised ratio does not hold"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.processes < 1:
        parser.error("--rounds and --processes must be at least 1")
    if options.worker:
        work(options.rounds)
        return 0
    if options.rounds * options.processes < MIN_ROUNDS:
        parser.error(f"quartiles need at least {MIN_ROUNDS} rounds over all processes")

    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"{options.rounds} rounds in each of {options.processes} processes", flush=True)
    tables, all_hold = [], True
    collected = measure_in_processes(options.processes, options.rounds)
    for workload, measured in zip(WORKLOADS, collected, strict=True):
        table, holds = report(workload, measured)
        tables.append(table)
        all_hold = all_hold and holds
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": facts,
        "processes": options.processes,
        "rounds": options.rounds,
        "workloads": tables,
    }
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nThe figures are in {options.json}.")
    return 1 if options.strict and not all_hold else 0


if __name__ == "__main__":
    sys.exit(main())
